"""One traced step as a report draws it: when each operation ran on each device of the mesh."""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import jax

from bench.records.host import host_id
from bench.records.trace_rows import DrawnOps, DrawnRuns, DrawnStep
from bench.worker import process_exchange
from bench.worker.trace.step_parts import DeviceStep

MOST_RUNS = 10_000
"""Limit on the runs of all devices together; about 100 KB as stored."""

MOST_SHAPES = 4
"""Results of an operation whose shapes are stored; a fused all-reduce may have hundreds."""


@dataclass(frozen=True)
class KeptStep:
    """A traced step whose operations are kept."""

    number: int
    """Its number among all traced steps."""
    began: int
    """Time at which the clock of its trace was 0: nanoseconds since 1970, UTC; 0 if unknown."""
    devices: Sequence[DeviceStep]
    """This process's devices, in the order of the mesh."""


def drawn_step(kept: KeptStep, places: Sequence[int]) -> DrawnStep:
    """Return a step on the devices of all processes.

    It is given on this process's devices, whose indices in `mesh.devices.flat` are `places`.
    """
    rows = [
        row
        for place, device in zip(places, kept.devices, strict=True)
        for row in _rows(place, device)
    ]
    most = MOST_RUNS // jax.process_count()
    longest = heapq.nlargest(most, rows, key=lambda row: row[2])
    start = kept.devices[0].start
    everyones = process_exchange.gather((host_id(), kept.began, start, len(rows), longest))
    # As in bench.worker.trace.profiler: only processes of one host share a clock.
    hosts, clocks, *_ = zip(*everyones, strict=True)
    one_clock = len(everyones) == 1 or (len(set(hosts)) == 1 and all(clocks))
    numbers: dict[tuple[str, ...], int] = {}
    meetings: dict[tuple[int, str], int] = {}
    runs: list[tuple[int, ...]] = []
    for rank, (_, began, own_start, _, own) in enumerate(everyones):
        zero = clocks[0] + everyones[0][2] - began if one_clock else own_start
        for place, at, ns, wait, meeting, operation in own:
            op = numbers.setdefault(tuple(operation), len(numbers))
            key = (0 if one_clock else rank, meeting)
            number = meetings.setdefault(key, len(meetings)) if meeting else -1
            runs.append((place, at - zero, ns, op, wait, number))
    runs.sort(key=lambda run: (run[0], run[1], -run[2]))  # an operation before those inside it
    device, starts, lengths, op_of, waits, meeting_of = (
        [run[column] for run in runs] for column in range(6)
    )
    names, categories, sources, shapes = ([op[column] for op in numbers] for column in range(4))
    return DrawnStep(
        step=kept.number,
        ns=round(kept.devices[0].share["total"]),
        one_clock=one_clock,
        left_out=sum(count - len(own) for *_, count, own in everyones),
        ops=DrawnOps(
            op=names, category=cast("list[Any]", categories), source=sources, shapes=shapes
        ),
        runs=DrawnRuns(
            device=device, op=op_of, start=starts, ns=lengths, wait=waits, meeting=meeting_of
        ),
    )


def _rows(place: int, device: DeviceStep) -> Iterator[tuple[Any, ...]]:
    """Yield place, start, length, wait, meeting and operation of a device's runs."""
    for start, end in device.launching:
        yield place, start, end - start, 0, "", ("", "dispatch", "", "")
    for run in device.runs:
        event, operation = run.event, run.operation
        ns = event.end - event.start
        wait = min(max(run.arrival - event.start, 0), ns)
        shapes = ", ".join(operation.shapes[:MOST_SHAPES])
        if len(operation.shapes) > MOST_SHAPES:
            shapes += f" and {len(operation.shapes) - MOST_SHAPES} more"
        described = (operation.name, operation.category, operation.source, shapes)
        yield place, event.start, ns, wait, run.meeting, described
