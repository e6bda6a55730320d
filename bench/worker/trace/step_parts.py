"""Where a step's time goes on each device, and to which operations.

Every instant of a step belongs to one thing on a device: to computing, where any operation
computes; else to a collective, which waits until the last of its group has arrived and moves data
from then on; else to dispatch, where the device waits for a program to be launched; else it is
idle. Operations that compute at the same time share it. So a device's parts add up to the step, and
so do its operations, together with dispatch and what is left of idle. A collective beside which
something is computed costs nothing: it is counted as overlap, apart from the parts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

from bench.worker.trace.operations import Operation, Operations
from bench.worker.trace.xspace import Event

_BACKGROUND = {"copy-start", "copy-done"}

Arrivals = dict[str, int]
"""When the last of its group began a collective, by the collective's run and group."""


class Run(NamedTuple):
    """One run of an operation."""

    event: Event
    operation: Operation
    arrival: int
    """When the last of a collective's group began it; the run's own start, of other operations."""


@dataclass
class Share:
    """Nanoseconds of a device's step."""

    total: float
    dispatch: float = 0.0
    compute: float = 0.0
    wait: float = 0.0
    move: float = 0.0
    idle: float = 0.0
    overlap: float = 0.0
    """Seconds of computation during which a collective was in progress."""


@dataclass
class OpShare:
    """Nanoseconds that a device's step spends on one operation."""

    count: int = 0
    compute: float = 0.0
    """Of operations that run others, such as loops: what none of the others had."""
    wait: float = 0.0
    move: float = 0.0


@dataclass
class DeviceStep:
    """One step on one device."""

    share: Share
    operations: defaultdict[Operation, OpShare] = field(
        default_factory=lambda: defaultdict(OpShare)
    )


def identify_runs(
    events: Iterable[Event],
    operations: Operations,
    places: Mapping[int, int],
    everywhere: Callable[[Arrivals], Arrivals] = lambda own: own,
) -> list[Run]:
    """Look up what ran on the devices of the mesh.

    Args:
      events: of one step, in order of their start.
      operations: of the step's programs.
      places: of devices in the mesh, by ordinal.
      everywhere: adds what other processes saw to the arrivals that this one saw.
    """
    found = [
        (event, operations.get(event.module, event.op, event.program))
        for event in events
        if event.device in places
    ]
    # The nth run of a collective on one device meets the nth on the others of its group; the end
    # of an asynchronous one meets their starts.
    runs: Counter[tuple[str, str, int]] = Counter()
    arrivals: Arrivals = {}
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
    arrivals = everywhere(arrivals)
    return [
        Run(event, operation, arrivals.get(meeting, 0) if meeting else event.start)
        for (event, operation), meeting in zip(found, meetings, strict=True)
    ]


def _resolve_kernels(runs: Sequence[Run]) -> list[Run]:
    """Treat control operations that compiled to one kernel as what they call.

    XLA:CPU makes small loops one kernel, which shows as one operation with nothing inside.
    """
    starts = sorted(run.event.start for run in runs if run.operation.category != "control")
    return [
        run._replace(operation=replace(run.operation, category=run.operation.inside))
        if run.operation.category == "control"
        and bisect_left(starts, run.event.start) == bisect_left(starts, run.event.end)
        else run
        for run in runs
    ]


def device_step(step: tuple[int, int], runs: Sequence[Run]) -> DeviceStep:
    """Divide one step on one device, from its start to its end, among all that the device did."""
    start, end = step
    runs = _resolve_kernels(runs)
    divided = DeviceStep(Share(float(end - start)))
    # Instants at which something begins, arrives or ends, and which run begins or ends then.
    changes: defaultdict[int, list[tuple[int, bool]]] = defaultdict(list)
    cuts = {start, end}
    for number, run in enumerate(runs):
        divided.operations[run.operation].count += 1
        first, last = max(run.event.start, start), min(run.event.end, end)
        if first >= last:
            continue
        changes[first].append((number, True))
        changes[last].append((number, False))
        cuts |= {first, last}
        cuts |= {run.arrival} if first < run.arrival < last else set()
    active: dict[int, Run] = {}
    following = 0
    for now, then in pairwise(sorted(cuts)):
        for number, begins in changes[now]:
            if begins:
                active[number] = runs[number]
            else:
                active.pop(number, None)
        while following < len(runs) and runs[following].event.start <= now:
            following += 1
        dispatching = _before_launch(runs, following)
        _spend(divided, now, then - now, list(active.values()), dispatching=dispatching)
    return divided


def _before_launch(runs: Sequence[Run], following: int) -> bool:
    """Whether the next run is of another launch of a program than the run before it."""
    if following == len(runs):
        return False
    if following == 0:
        return True
    before, after = runs[following - 1].event, runs[following].event
    return (before.module, before.launch) != (after.module, after.launch)


def _spend(
    step: DeviceStep, now: int, nanoseconds: float, active: list[Run], *, dispatching: bool
) -> None:
    """Assign a stretch of time to what is active during all of it."""
    share = step.share
    moving = [run for run in active if run.operation.category == "collective"]
    control = [run for run in active if run.operation.category == "control"]
    computing = [run for run in active if run not in moving and run not in control]
    # Copies in the background take nothing from what is computed meanwhile.
    computing = [run for run in computing if run.operation.opcode not in _BACKGROUND] or computing
    if computing:
        share.compute += nanoseconds
        share.overlap += nanoseconds if moving else 0.0
        for run in computing:
            step.operations[run.operation].compute += nanoseconds / len(computing)
    elif arrived := [run for run in moving if run.arrival <= now]:
        share.move += nanoseconds
        for run in arrived:
            step.operations[run.operation].move += nanoseconds / len(arrived)
    elif moving:
        share.wait += nanoseconds
        for run in moving:
            step.operations[run.operation].wait += nanoseconds / len(moving)
    elif dispatching:
        share.dispatch += nanoseconds
    else:
        share.idle += nanoseconds
        for run in control[-1:]:
            step.operations[run.operation].compute += nanoseconds


def middle_half(lengths: Sequence[float]) -> list[int]:
    """Choose the steps to look at: those of median length, without the quarters at both ends.

    The first traced steps are longer than the rest, and any may be interrupted. Parts of the same
    steps add up, which medians of parts would not.
    """
    order = sorted(range(len(lengths)), key=lambda number: lengths[number])
    cut = (len(order) + 1) // 4
    return sorted(order[cut : len(order) - cut])
