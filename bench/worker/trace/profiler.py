"""Profiler traces, in a separate phase after the rounds: no traced step is ever timed."""

import json
import statistics
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from bench.records.messages import RowEvent
from bench.records.rows import BlockFields, CellRow
from bench.records.step_programs import compressed
from bench.records.trace_rows import PARTS, TraceRow
from bench.worker import process_exchange
from bench.worker.block_session import BlockSession
from bench.worker.foreign.foreign_arm import ForeignArm
from bench.worker.process_exchange import EndedError
from bench.worker.prove.failures import in_all_processes
from bench.worker.prove.gate import Gate
from bench.worker.read.hlo import modules_of
from bench.worker.read.programs import live_programs
from bench.worker.time.clock import Arm
from bench.worker.trace import xspace
from bench.worker.trace.drawn_step import drawn_step
from bench.worker.trace.operations import Operation, Operations
from bench.worker.trace.step_parts import DeviceStep, device_step, identify_runs, middle_half

PASSES = 8
"""Traces of each arm. Arms take turns, so that the host's noise affects all of them."""

ENOUGH_S = 60.0
"""Seconds after which no pass begins; there are always at least two."""


def _process_name() -> str:  # the profiler's default would reveal the host's
    return f"process_{jax.process_index()}"


@dataclass
class TracedArm:
    """An arm that is traced, and the results of its traces so far."""

    arm: Arm
    run: str
    """Name of the TensorBoard run."""
    operations: Operations
    """Operations of the step's programs."""
    steps: list[list[DeviceStep]] = field(default_factory=list)
    """Traced steps, on this process's devices in the order of the mesh."""
    lengths: list[float] = field(default_factory=list)
    """Their nanoseconds, as the main process saw them."""
    untraced_ns: list[int] = field(default_factory=list)
    """Nanoseconds of steps without a profiler, run just before the traced ones."""
    kept: list[tuple[int, int]] = field(default_factory=list)
    """For each trace, the number of its step of median length, which alone keeps its runs, and
    `Recording.began`."""

    def trace(self, logdir: Path | None, steps: int, places: Mapping[int, int]) -> None:
        """Trace some steps, and keep the file in `logdir` if that is given.

        EndedError if it failed in some process; results of earlier traces are kept.
        """

        def take() -> tuple[list[int], int, list[list[DeviceStep]]]:
            untraced_ns = [self.arm.run(1) for _ in range(steps)]
            with nullcontext(logdir) if logdir else tempfile.TemporaryDirectory() as folder:
                path = record(self.arm, Path(folder), self.run, steps)
                recording = xspace.read(path.read_bytes(), self.arm.name)
            return untraced_ns, recording.began, read_steps(recording, self.operations, places)

        untraced_ns, began, found = in_all_processes(take, lambda *_: traceback.print_exc())
        lengths = process_exchange.from_main([one[0].share["total"] for one in found])
        middle = lengths.index(statistics.median_low(lengths))
        self.kept.append((len(self.steps) + middle, began))
        for device in chain.from_iterable(found[:middle] + found[middle + 1 :]):
            device.runs, device.launching = (), []
        self.steps += found
        self.lengths += lengths
        self.untraced_ns += untraced_ns


def trace_cells(session: BlockSession, _gate: Gate, settings: Mapping[str, Any]) -> None:
    """Trace every cell that is ok, in several passes, and send the attribution of its step time.

    Each trace has the settings' number of `steps`. That of the first pass is kept in their `logdir`
    for TensorBoard, which lists it under their `run`. If a trace fails, the cell keeps the results
    of earlier passes, and its samples.
    """
    mesh, logdir = session.mesh, Path(settings["logdir"])
    others = modules_of(live_programs())
    arms = [
        TracedArm(
            arm,
            f"{settings['run']}/{session.cells[arm.name]['cell']}",
            Operations(modules_of(session.proved[arm.name].programs), mesh.size, others),
        )
        for arm in session.ok_arms()
        if not isinstance(arm, ForeignArm)  # its devices' work is in other processes
    ]
    pending, total, places = list(arms), PASSES * len(arms), places_of(mesh)
    until = time.monotonic() + ENOUGH_S
    for turn in range(PASSES):
        if turn > 1 and process_exchange.from_main(time.monotonic() > until):
            break
        for traced in list(pending):
            done = turn * len(arms) + arms.index(traced)
            session.announce("trace", traced.arm.name, done, total)
            try:
                traced.trace(None if turn else logdir, settings["steps"], places)
            except EndedError:
                pending.remove(traced)
    for traced in arms:
        if traced.steps:
            cell = session.cells[traced.arm.name]
            cell["profile"] = traced.run
            session.emit(RowEvent(event="trace", row=trace_row(session.fields, cell, traced, mesh)))


def places_of(mesh: Mesh) -> dict[int, int]:
    """Map each local device's ordinal in traces to its index in `mesh.devices.flat`."""
    return {
        int(device.id if device.platform == "cpu" else device.local_hardware_id): place
        for place, device in enumerate(mesh.devices.flat)
        if device.process_index == jax.process_index()
    }


def record(arm: Arm, logdir: Path, run: str, steps: int) -> Path:
    """Record `steps` steps, each waited for, as the TensorBoard run named `run`; return its file.

    TensorBoard lists `<folders>/plugins/profile/<session>` as <folders>/<session>, so the run's
    last part is the session. An earlier run of the same name is replaced.
    """
    folder, _, session = run.rpartition("/")
    options: Any = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # it is most of a trace's size, without device time
    # It would add all programs of the process, mostly other arms', and these are most of the rest.
    options.enable_hlo_proto = False
    options.session_id = session
    logdir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=logdir, prefix=".draft-") as draft:
        with jax.profiler.trace(draft, profiler_options=options):
            for number in range(steps):
                with jax.profiler.StepTraceAnnotation(arm.name, step_num=number):
                    arm.run(1)
        (recorded,) = Path(draft).rglob("*.xplane.pb")
        path = logdir / folder / "plugins/profile" / session / f"{_process_name()}.xplane.pb"
        path.parent.mkdir(parents=True, exist_ok=True)
        recorded.replace(path)
    return path


def read_steps(
    recording: xspace.Recording, operations: Operations, places: Mapping[int, int]
) -> list[list[DeviceStep]]:
    """Attribute the time of each step, on each device of this process.

    `places` are the devices' indices in the mesh, by their ordinal in the trace. ValueError if it
    has no operation of the programs.
    """
    steps = []
    for start, end in recording.steps:
        events = [event for event in recording.events if start <= event.start < end]
        runs = identify_runs(operations.launched(events), operations, places, recording.began)
        by_device = ([run for run in runs if run.event.device == ordinal] for ordinal in places)
        steps.append([device_step((start, end), own) for own in by_device])
    found = (op for devices in steps for device in devices for op in device.operations)
    if not any(operation.opcode for operation in found):
        raise ValueError("no operation of the step's programs is in the trace")
    return steps


def parts_of(steps: Sequence[Sequence[DeviceStep]], places: Sequence[int]) -> list[Any]:
    """Return `steps` of a TraceRow, over the devices of all processes.

    `places` are the indices in the mesh of this process's devices, which each step lists.
    """
    own = [
        {"step": number, "device": place}
        | {f"{part}_ns": round(device.share[part]) for part in PARTS}
        for number, devices in enumerate(steps)
        for place, device in zip(places, devices, strict=True)
    ]
    parts = chain.from_iterable(process_exchange.gather(own))
    return sorted(parts, key=lambda part: (part["step"], part["device"]))


def mean_times(devices: Sequence[DeviceStep]) -> list[Any]:
    """Return `ops` of a TraceRow as they first ran: means over the steps of all processes."""
    own: defaultdict[Operation, Any] = defaultdict(Counter)
    for device in devices:
        for operation, spent in device.operations.items():
            own[operation].update(spent)
    names = ("module", "opcode", "category", "phase", "source", "transposes", "shapes")
    described = ({name: getattr(one, name) for name in names} | {"op": one.name} for one in own)
    everyones = process_exchange.gather(
        [*zip(map(json.dumps, described), own.values(), strict=True)]
    )
    totals: defaultdict[str, Any] = defaultdict(Counter)
    for description, total in chain.from_iterable(everyones):
        totals[description].update(total)
    steps = len(devices) * len(everyones)  # all processes have equally many devices
    return [
        {**json.loads(description), "count": total["count"] / steps}
        | {f"{part}_ns": round(total[part] / steps, 1) for part in ("compute", "wait", "move")}
        for description, total in totals.items()
    ]


def trace_row(fields: BlockFields, row: CellRow, traced: TracedArm, mesh: Mesh) -> TraceRow:
    """Return the stored row of a cell's traces."""
    places, lengths = list(places_of(mesh).values()), traced.lengths
    counted, median = middle_half(lengths), statistics.median(lengths)
    number, began = min(traced.kept, key=lambda one: abs(lengths[one[0]] - median))
    everyones_ns = process_exchange.gather(traced.untraced_ns)
    return TraceRow(
        **fields,
        cell=row["cell"],
        implementation=row["implementation"],
        profile=traced.run,
        host=_process_name(),
        steps=parts_of(traced.steps, places),
        counted=counted,
        ops=mean_times([device for number in counted for device in traced.steps[number]]),
        untraced_ns=[max(each) for each in zip(*everyones_ns, strict=True)],
        drawn=compressed(drawn_step(number, began, traced.steps[number], places)),
    )
