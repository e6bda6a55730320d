"""Where a step's time goes on each device, and to which operations.

Every instant of a step belongs to one thing on a device: to computing, where any operation
computes; else to a collective, which waits until the last of its group has arrived and moves data
from then on; else to dispatch, where the device waits for a program to be launched; else it is
idle. Operations that compute at the same time share it. So a device's parts add up to the step, and
so do its operations with dispatch and what is left of idle. A collective beside which something is
computed costs nothing, and is counted as overlap, beside the parts.
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


class Known(NamedTuple):
    """An event and what it is a run of."""

    event: Event
    operation: Operation
    arrival: int
    """When the last of a collective's group began it; its own start, of other operations."""


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
    """Of compute, beside which a collective went on."""


@dataclass
class OpShare:
    """What a device's step spends on one operation."""

    count: int = 0
    compute: float = 0.0
    """For operations that steer others, such as loops: what none of those had."""
    wait: float = 0.0
    move: float = 0.0


@dataclass
class DeviceStep:
    """One step on one device."""

    share: Share
    operations: defaultdict[Operation, OpShare] = field(
        default_factory=lambda: defaultdict(OpShare)
    )


Arrivals = dict[str, int]
"""When the last of its group began a collective, by the collective's run and group."""


def known(
    events: Iterable[Event],
    operations: Operations,
    places: Mapping[int, int],
    everywhere: Callable[[Arrivals], Arrivals] = lambda own: own,
) -> list[Known]:
    """What ran, on the devices of the mesh.

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
    seen: defaultdict[str, int] = defaultdict(int)
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
                seen[meeting] = max(seen[meeting], event.start)
        meetings.append(meeting)
    arrivals = everywhere(seen)
    return [
        Known(event, operation, arrivals.get(meeting, 0) if meeting else event.start)
        for (event, operation), meeting in zip(found, meetings, strict=True)
    ]


def _alone(own: Sequence[Known]) -> list[Known]:
    """What ran on one device; control operations that compiled to one kernel, as what they call.

    XLA:CPU makes small loops one kernel, which shows as one operation with nothing inside.
    """
    starts = sorted(one.event.start for one in own if one.operation.category != "control")
    return [
        one._replace(operation=replace(one.operation, category=one.operation.inside))
        if one.operation.category == "control"
        and bisect_left(starts, one.event.start) == bisect_left(starts, one.event.end)
        else one
        for one in own
    ]


def device_step(step: tuple[int, int], own: Sequence[Known]) -> DeviceStep:
    """Divide one step on one device among everything that it did.

    Args:
      step: its start and end.
      own: what ran on the device.
    """
    start, end = step
    own = _alone(own)
    found = DeviceStep(Share(float(end - start)))
    for one in own:
        found.operations[one.operation].count += 1
    # Instants at which something begins, arrives or ends, and what does.
    changes: defaultdict[int, list[tuple[int, bool]]] = defaultdict(list)
    cuts = {start, end}
    for number, one in enumerate(own):
        first, last = max(one.event.start, start), min(one.event.end, end)
        if first >= last:
            continue
        changes[first].append((number, True))
        changes[last].append((number, False))
        cuts |= {first, last}
        cuts |= {one.arrival} if first < one.arrival < last else set()
    active: dict[int, Known] = {}
    gaps = _Gaps(own)
    times = sorted(cuts)
    for now, then in pairwise(times):
        for number, begins in changes[now]:
            if begins:
                active[number] = own[number]
            else:
                active.pop(number, None)
        _spend(found, now, then - now, list(active.values()), gaps)
    return found


def _spend(
    found: DeviceStep, now: int, nanoseconds: float, active: list[Known], gaps: _Gaps
) -> None:
    """Give a stretch of time to what is active during all of it."""
    share = found.share
    moving = [one for one in active if one.operation.category == "collective"]
    steering = [one for one in active if one.operation.category == "control"]
    computing = [one for one in active if one not in moving and one not in steering]
    # Copies in the background take nothing from what is computed meanwhile.
    computing = [one for one in computing if one.operation.opcode not in _BACKGROUND] or computing
    if computing:
        share.compute += nanoseconds
        share.overlap += nanoseconds if moving else 0.0
        for one in computing:
            found.operations[one.operation].compute += nanoseconds / len(computing)
    elif moving:
        arrived = [one for one in moving if one.arrival <= now]
        if arrived:
            share.move += nanoseconds
            for one in arrived:
                found.operations[one.operation].move += nanoseconds / len(arrived)
        else:
            share.wait += nanoseconds
            for one in moving:
                found.operations[one.operation].wait += nanoseconds / len(moving)
    elif gaps.before_launch(now):
        share.dispatch += nanoseconds
    else:
        share.idle += nanoseconds
        for one in steering[-1:]:
            found.operations[one.operation].compute += nanoseconds


class _Gaps:
    """Tells whether a device that does nothing has yet to be given its next program."""

    def __init__(self, own: Sequence[Known]) -> None:
        self._own = own
        self._next = 0

    def before_launch(self, now: int) -> bool:
        """Whether what runs next is of another launch than what ran last. Times must not fall."""
        while self._next < len(self._own) and self._own[self._next].event.start <= now:
            self._next += 1
        if self._next == len(self._own):
            return False
        if self._next == 0:
            return True
        before, after = (self._own[number].event for number in (self._next - 1, self._next))
        return (before.module, before.launch) != (after.module, after.launch)


def middle_half(lengths: Sequence[float]) -> list[int]:
    """Which steps to look at: those of median length, without the quarters at both ends.

    The first traced steps are longer than the rest, and any may be interrupted. Parts of the same
    steps add up, which medians of parts would not.
    """
    order = sorted(range(len(lengths)), key=lambda number: lengths[number])
    cut = (len(order) + 1) // 4
    return sorted(order[cut : len(order) - cut])
