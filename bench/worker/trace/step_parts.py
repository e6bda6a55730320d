"""Attribution of a step's time on each device to parts and operations.

On a device, every instant of a step belongs to one part: to computing if any operation computes;
else to a collective, which waits until the last of its group has arrived and moves data from then
on; else to dispatch, if the device waits for a program to be launched; else it is idle. Concurrent
operations share an instant. The parts therefore add up to the step, and so do the operations
together with dispatch and the rest of idle. A collective that overlaps with computation costs
nothing; it is counted as overlap, which is not one of the parts.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

from bench.records.host import host_id
from bench.worker import process_exchange
from bench.worker.trace.operations import Operation, Operations
from bench.worker.trace.xspace import Event

_BACKGROUND = {"copy-start", "copy-done"}


class Run(NamedTuple):
    """One run of an operation."""

    event: Event
    operation: Operation
    arrival: int
    """Time at which the last of a collective's group began it; other operations' own start."""
    meeting: str
    """What the runs of a collective that wait for one another share; empty for others."""


Spent = defaultdict[str, float]
"""Nanoseconds by part: see PARTS. An operation also has its `count`; if it runs others, as a loop
does, its `compute` is the unattributed rest."""


@dataclass
class DeviceStep:
    """One step on one device. Times are those of its trace's clock, in nanoseconds."""

    share: Spent
    start: int = 0
    runs: Sequence[Run] = ()
    """The runs of operations, in order of their start; dropped once no one will draw them."""
    launching: list[tuple[int, int]] = field(default_factory=list)
    """Start and end of each wait for a launch."""
    operations: defaultdict[Operation, Spent] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(float))
    )


def identify_runs(
    events: Iterable[Event], operations: Operations, places: Mapping[int, int], began: int
) -> list[Run]:
    """Look up the operations of one step's events, in order of their start, on the mesh's devices.

    `places` are the devices' indices in the mesh, by ordinal; the trace's clock was 0 at `began`.
    """
    found = [
        (event, operations.get(event.module, event.op, event.program))
        for event in events
        if event.device in places
    ]
    # The nth run of a collective on one device meets the nth on the others in its group; the end of
    # an asynchronous collective meets their starts.
    runs: Counter[tuple[str, str, int]] = Counter()
    arrivals: dict[str, int] = {}
    meetings: list[str] = []
    for event, operation in found:
        meeting = ""
        if operation.category == "collective":
            place = places[event.device]
            number = runs[event.module, event.op, place]
            runs[event.module, event.op, place] += 1
            group = next((group for group in operation.groups if place in group), (place,))
            meeting = f"{event.module}/{operation.start or event.op}/{number}/{group}"
            if not operation.start:
                arrivals[meeting] = max(arrivals.get(meeting, 0), event.start)
        meetings.append(meeting)
    arrivals = _latest_arrivals(began, arrivals)
    return [
        Run(event, operation, arrivals.get(meeting, 0) if meeting else event.start, meeting)
        for (event, operation), meeting in zip(found, meetings, strict=True)
    ]


def _latest_arrivals(began: int, own: dict[str, int]) -> dict[str, int]:
    """Return when the last of all processes arrived, if they share a clock, or else of this one."""
    hosts, clocks, everyones = zip(*process_exchange.gather((host_id(), began, own)), strict=True)
    if not share_clock(hosts, clocks):
        return own
    latest: dict[str, int] = {}
    for start, arrivals in zip(clocks, everyones, strict=True):
        for meeting, at in arrivals.items():
            latest[meeting] = max(latest.get(meeting, 0), at + start)
    return {meeting: at - began for meeting, at in latest.items()}


def share_clock(hosts: Sequence[str], clocks: Sequence[int]) -> bool:
    """Whether the times of all processes' traces can be compared.

    Clocks of different hosts differ by more than the duration of a collective, so waiting for
    another host cannot be distinguished from moving data. `clocks` are the times at which the
    traces' clocks were 0; 0 if unknown.
    """
    return len(hosts) == 1 or (len(set(hosts)) == 1 and all(clocks))


def _resolve_kernels(runs: Sequence[Run]) -> Iterator[Run]:
    """Give control operations that compiled to one kernel the category of what they call.

    XLA:CPU compiles small loops to one kernel, which appears as one operation with none inside.
    """
    starts = sorted(run.event.start for run in runs if run.operation.category != "control")
    for run in runs:
        start, end, own = run.event.start, run.event.end, run.operation
        alone = bisect_left(starts, start) == bisect_left(starts, end)
        is_kernel = own.category == "control" and alone
        yield run._replace(operation=replace(own, category=own.inside)) if is_kernel else run


def device_step(step: tuple[int, int], runs: Sequence[Run]) -> DeviceStep:
    """Attribute one step on one device, given its start and end, to parts and operations."""
    start, end = step
    runs = list(_resolve_kernels(runs))
    divided = DeviceStep(defaultdict(float, total=float(end - start)), start, runs)
    cuts = {start, end}  # between two of them, no run begins, arrives or ends
    for run in runs:
        divided.operations[run.operation]["count"] += 1
        first, last = max(run.event.start, start), min(run.event.end, end)
        if first < last:
            cuts |= {first, last, min(max(run.arrival, first), last)}
    active: list[Run] = []
    following = 0
    for now, then in pairwise(sorted(cuts)):
        while following < len(runs) and runs[following].event.start <= now:
            active.append(runs[following])
            following += 1
        active = [run for run in active if run.event.end > now]
        _spend(divided, now, then - now, active, dispatching=_before_launch(runs, following))
    return divided


def _before_launch(runs: Sequence[Run], following: int) -> bool:
    """Whether the next run belongs to another launch of a program than the previous run."""
    if following in (0, len(runs)):
        return following < len(runs)
    before, after = runs[following - 1].event, runs[following].event
    return (before.module, before.launch) != (after.module, after.launch)


def _spend(step: DeviceStep, now: int, ns: int, active: list[Run], *, dispatching: bool) -> None:
    """Attribute an interval of `ns` nanoseconds to the runs that are active throughout."""

    def spend(part: str, runs: Sequence[Run], as_part: str = "") -> None:
        step.share[part] += ns
        for run in runs:
            step.operations[run.operation][as_part or part] += ns / len(runs)

    moving = [run for run in active if run.operation.category == "collective"]
    control = [run for run in active if run.operation.category == "control"]
    computing = [run for run in active if run not in moving and run not in control]
    # Background copies take no time from concurrent computation.
    computing = [run for run in computing if run.operation.opcode not in _BACKGROUND] or computing
    if computing:
        spend("compute", computing)
        step.share["overlap"] += ns if moving else 0.0
    elif arrived := [run for run in moving if run.arrival <= now]:
        spend("move", arrived)
    elif moving:
        spend("wait", moving)
    elif dispatching:
        spend("dispatch", ())
        step.launching.append((now, now + ns))
    else:
        spend("idle", control[-1:], "compute")


def middle_half(lengths: Sequence[float]) -> list[int]:
    """Choose the steps to average: the middle half by length.

    The first traced steps are longer than the rest, and any step may be interrupted. Mean parts of
    the same steps add up to the mean step; medians of parts would not.
    """
    order = sorted(range(len(lengths)), key=lambda number: lengths[number])
    cut = (len(order) + 1) // 4
    return sorted(order[cut : len(order) - cut])
