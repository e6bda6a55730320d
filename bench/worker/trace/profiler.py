"""Profiler traces, in a pass of their own: a traced step is never a timed one."""

from __future__ import annotations

import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import jax
from jax.sharding import Mesh

from bench.records.host import cores, host_id
from bench.records.rows import BlockFields, CellRow, OpTime, StepParts, TraceRow
from bench.worker import process_exchange
from bench.worker.time.clock import Arm
from bench.worker.trace import xspace
from bench.worker.trace.operations import Operation, Operations
from bench.worker.trace.step_parts import (
    Arrivals,
    DeviceStep,
    OpShare,
    device_step,
    known,
    middle_half,
)

T = TypeVar("T")

PASSES = 8
"""How often each arm is traced, by turns, so that what the host does meanwhile meets them all."""

ENOUGH_S = 60.0
"""No pass begins after so long, but a second one always does."""


def process_name() -> str:
    """What TensorBoard calls this process.

    The profiler's own name is the host's, which processes of a host share, and which is nobody's
    business where a trace is shown.
    """
    return f"process_{jax.process_index()}"


class Traced(NamedTuple):
    """What was seen of one arm."""

    steps: list[list[DeviceStep]]
    """Traced steps, on this process's devices in the order of the mesh."""
    untraced_ns: list[int]
    """Lengths of steps without a profiler, taken just before."""


class Shown(NamedTuple):
    """Where the time of traced steps went."""

    steps: list[StepParts]
    counted: list[int]
    """Steps to look at."""
    ops: list[OpTime]
    """Their means."""


@dataclass(frozen=True)
class Subject:
    """An arm to be traced."""

    arm: Arm
    run: str
    """Its TensorBoard run."""
    operations: Operations
    """Of its step's programs."""


def trace_by_turns(
    subjects: Sequence[Subject],
    mesh: Mesh,
    logdir: Path,
    steps: int,
    phase: Callable[[Literal["trace"], str, int, int], None],
) -> list[Traced]:
    """Trace every subject in every pass; the first pass stays, as what TensorBoard shows.

    Args:
      subjects: what to trace.
      mesh: that they run on.
      logdir: TensorBoard's.
      steps: of a trace.
      phase: told what is traced now, as the how manieth, of how many.

    Returns:
      What was seen of each subject: in the passes before one that failed, which is printed.
    """
    places = places_of(mesh)
    found = [Traced([], []) for _ in subjects]
    failed: set[int] = set()
    until = time.monotonic() + ENOUGH_S
    for turn in range(PASSES):
        if turn > 1 and process_exchange.from_main(time.monotonic() > until):
            break
        for number, subject in enumerate(subjects):
            if number in failed:
                continue
            done = turn * len(subjects) + number
            phase("trace", subject.arm.name, done, PASSES * len(subjects))
            taken = tried(partial(take, subject, None if turn else logdir, steps))
            read = None
            if taken is not None:
                recording, untraced_ns = taken
                read = tried(partial(read_steps, recording, subject.operations, places))
            if taken is None or read is None:
                failed.add(number)
                continue
            found[number].steps.extend(read)
            found[number].untraced_ns.extend(untraced_ns)
    return found


def tried(what: Callable[[], T]) -> T | None:
    """What comes of it. None, in all processes alike, where one of them fails, which is printed.

    A profiler's fault must not cost the samples.
    """
    found = None
    try:
        found = what()
    except Exception:  # noqa: BLE001 - whatever it is
        traceback.print_exc()
    return found if all(process_exchange.gather(found is not None)) else None


def take(subject: Subject, logdir: Path | None, steps: int) -> tuple[xspace.Recording, list[int]]:
    """A trace, and the lengths of as many steps before it; the trace's file is kept in `logdir`."""
    untraced_ns = [subject.arm.run(1) for _ in range(steps)]
    with tempfile.TemporaryDirectory() if logdir is None else nullcontext(logdir) as folder:
        path = record(subject.arm, Path(folder), subject.run, steps)
        return xspace.read(path.read_bytes(), subject.arm.name), untraced_ns


def places_of(mesh: Mesh) -> dict[int, int]:
    """Places in the mesh of this process's devices, by what its traces call them."""
    return {
        ordinal(device): place
        for place, device in enumerate(mesh.devices.flat)
        if device.process_index == jax.process_index()
    }


def ordinal(device: Any) -> int:
    """What a device is called in the traces of its process."""
    return int(device.id if device.platform == "cpu" else device.local_hardware_id)


def record(arm: Arm, logdir: Path, run: str, steps: int) -> Path:
    """Record `steps` steps, each waited for, as the TensorBoard run named `run`.

    TensorBoard lists `<folders>/plugins/profile/<session>` as <folders>/<session>, so the run's
    last part is the session. A run that was there is replaced.

    Returns:
      The trace's file.
    """
    folder, _, session = run.rpartition("/")
    options: Any = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # most of a trace's size, and none of its device time
    # Of all programs of the process, most of them of other arms: most of what is left of the size.
    options.enable_hlo_proto = False
    options.session_id = session
    logdir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=logdir, prefix=".draft-") as draft:
        with jax.profiler.trace(draft, profiler_options=options):
            for number in range(steps):
                with jax.profiler.StepTraceAnnotation(arm.name, step_num=number):
                    arm.run(1)
        (recorded,) = Path(draft).rglob("*.xplane.pb")
        path = logdir / folder / "plugins/profile" / session / f"{process_name()}.xplane.pb"
        path.parent.mkdir(parents=True, exist_ok=True)
        recorded.replace(path)
    return path


def read_steps(
    recording: xspace.Recording, operations: Operations, places: Mapping[int, int]
) -> list[list[DeviceStep]]:
    """Read where the time of each step went, on each device of this process.

    Args:
      recording: a trace.
      operations: of the step's programs.
      places: of devices in the mesh, by their ordinal in the trace.

    Raises:
      ValueError: no operation of the programs is in it.
    """
    found = []
    for start, end in recording.steps:
        events = [event for event in recording.events if start <= event.start < end]
        ours = known(events, operations, places, partial(arrivals_everywhere, recording.began))
        found.append(
            [
                device_step((start, end), [one for one in ours if one.event.device == ordinal])
                for ordinal in places
            ]
        )
    if all(
        operation.category == "unknown"
        for devices in found
        for device in devices
        for operation in device.operations
    ):
        raise ValueError("no operation of the step's programs is in the trace")
    return found


def arrivals_everywhere(began: int, own: Arrivals) -> Arrivals:
    """When the last of all processes arrived, where they are on one host and so have one clock.

    Clocks of different hosts are apart by more than a collective takes: there, a device's waiting
    for another host cannot be told from moving data.

    Args:
      began: when the clock of this process's trace showed 0.
      own: as this process saw it.
    """
    if jax.process_count() == 1:
        return own
    told = process_exchange.gather((host_id(), began, own))
    if len({host for host, _, _ in told}) > 1 or not all(start for _, start, _ in told):
        return own
    latest: Arrivals = {}
    for _, start, arrivals in told:
        for meeting, at in arrivals.items():
            latest[meeting] = max(latest.get(meeting, 0), at + start)
    return {meeting: at - began for meeting, at in latest.items()}


def summarize(steps: Sequence[Sequence[DeviceStep]], places: Sequence[int]) -> Shown:
    """Put together what steps spent on the devices of all processes.

    Args:
      steps: on the devices of this process.
      places: of these in the mesh.
    """
    counted = process_exchange.from_main(middle_half([step[0].share.total for step in steps]))
    own_parts = [
        _parts(number, place, device)
        for number, step in enumerate(steps)
        for place, device in zip(places, step, strict=True)
    ]
    own_ops = _ops([device for number in counted for device in steps[number]])
    parts = [part for found in process_exchange.gather(own_parts) for part in found]
    return Shown(
        steps=sorted(parts, key=lambda part: (part["step"], part["device"])),
        counted=counted,
        ops=_mean(process_exchange.gather(own_ops)),
    )


def trace_row(fields: BlockFields, row: CellRow, traced: Traced, mesh: Mesh) -> TraceRow:
    """What the traces of a cell showed, as it is stored."""
    shown = summarize(traced.steps, list(places_of(mesh).values()))
    on_cpu = jax.devices()[0].platform == "cpu"
    return TraceRow(
        **fields,
        cell=row["cell"],
        implementation=row["implementation"],
        profile=row.get("profile", ""),
        host=process_name(),
        steps=shown.steps,
        counted=shown.counted,
        ops=shown.ops,
        untraced_ns=[
            max(each) for each in zip(*process_exchange.gather(traced.untraced_ns), strict=True)
        ],
        cores=cores_of_all() if on_cpu else None,
    )


def cores_of_all() -> int:
    """Cores that the processes may use: one that several may counts once."""
    seen = process_exchange.gather((host_id(), sorted(cores())))
    return len({(host, core) for host, own in seen for core in own})


def _mean(found: Sequence[Sequence[OpTime]]) -> list[OpTime]:
    """Means over processes with equally many devices, in the order of the first."""
    if len(found) == 1:
        return list(found[0])
    sums: dict[tuple[str, str], OpTime] = {}
    for op in (op for ops in found for op in ops):
        key = (op["module"], op["op"])
        total = sums.get(key)
        sums[key] = {
            **op,
            "count": op["count"] / len(found) + (total["count"] if total else 0.0),
            "compute_ns": op["compute_ns"] / len(found) + (total["compute_ns"] if total else 0.0),
            "wait_ns": op["wait_ns"] / len(found) + (total["wait_ns"] if total else 0.0),
            "move_ns": op["move_ns"] / len(found) + (total["move_ns"] if total else 0.0),
        }
    return list(sums.values())


def _parts(step: int, place: int, device: DeviceStep) -> StepParts:
    total, dispatch, compute, wait, move, idle, overlap = map(round, astuple(device.share))
    return StepParts(
        step=step,
        device=place,
        total_ns=total,
        dispatch_ns=dispatch,
        compute_ns=compute,
        wait_ns=wait,
        move_ns=move,
        idle_ns=idle,
        overlap_ns=overlap,
    )


def _ops(devices: Sequence[DeviceStep]) -> list[OpTime]:
    """Means over device steps, in the order in which operations first ran."""
    sums: defaultdict[Operation, OpShare] = defaultdict(OpShare)
    for device in devices:
        for operation, share in device.operations.items():
            total = sums[operation]
            total.count += share.count
            total.compute += share.compute
            total.wait += share.wait
            total.move += share.move
    n = len(devices)
    return [
        OpTime(
            module=operation.module,
            op=operation.name,
            opcode=operation.opcode,
            category=operation.category,
            phase=operation.phase,
            source=operation.source,
            shapes=list(operation.shapes),
            transposes=operation.transposes,
            count=total.count / n,
            compute_ns=round(total.compute / n, 1),
            wait_ns=round(total.wait / n, 1),
            move_ns=round(total.move / n, 1),
        )
        for operation, total in sums.items()
    ]
