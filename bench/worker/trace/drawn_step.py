"""One traced step as a report draws it: when each operation ran on each device of the mesh."""

import heapq
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import jax

from bench.records.host import host_id
from bench.records.trace_rows import DrawnOps, DrawnRuns, DrawnStep
from bench.worker import process_exchange
from bench.worker.trace.step_parts import DeviceStep, share_clock

MOST_RUNS = 10_000
"""Limit on the runs of all devices together; about 100 KB as stored."""

MOST_SHAPES = 4
"""Results of an operation whose shapes are stored; a fused all-reduce may have hundreds."""


def drawn_step(
    number: int, began: int, devices: Sequence[DeviceStep], places: Sequence[int]
) -> DrawnStep:
    """Return a step on all processes' devices.

    `number` is its number among all traced steps; its trace's clock was 0 at `began`, in
    nanoseconds since 1970, UTC. `places` are the indices of `devices` in `mesh.devices.flat`.
    """
    rows = [row for at, device in zip(places, devices, strict=True) for row in _rows(at, device)]
    longest = heapq.nlargest(MOST_RUNS // jax.process_count(), rows, key=lambda row: row[2])
    everyones = process_exchange.gather((host_id(), began, devices[0].start, len(rows), longest))
    hosts, clocks, *_ = zip(*everyones, strict=True)
    one_clock = share_clock(hosts, clocks)
    numbers: dict[tuple[str, ...], int] = {}
    meetings: dict[tuple[int, str], int] = {}
    runs: list[tuple[int, ...]] = []
    for rank, (_, clock, own_start, _, own) in enumerate(everyones):
        zero = clocks[0] + everyones[0][2] - clock if one_clock else own_start
        for place, at, ns, wait, meeting, operation in own:
            op = numbers.setdefault(tuple(operation), len(numbers))
            key = (0 if one_clock else rank, meeting)
            met = meetings.setdefault(key, len(meetings)) if meeting else -1
            runs.append((place, op, at - zero, ns, wait, met))
    runs.sort(key=lambda run: (run[0], run[2], -run[3]))  # an operation before those inside it
    return DrawnStep(
        step=number,
        ns=round(devices[0].share["total"]),
        one_clock=one_clock,
        left_out=sum(count - len(own) for *_, count, own in everyones),
        ops=_columns(DrawnOps, numbers),
        runs=_columns(DrawnRuns, runs),
    )


def _columns(kind: Any, rows: Collection[Sequence[Any]]) -> Any:
    """Turn rows into columns, named by the fields of `kind` in the order of a row's values."""
    return {name: [row[at] for row in rows] for at, name in enumerate(kind.__annotations__)}


def _rows(place: int, device: DeviceStep) -> Iterator[tuple[Any, ...]]:
    """Yield place, start, length, wait, meeting and operation of a device's runs."""
    for start, end in device.launching:
        yield place, start, end - start, 0, "", ("", "dispatch", "", "")
    for event, operation, arrival, meeting in device.runs:
        ns = event.end - event.start
        wait = min(max(arrival - event.start, 0), ns)
        shapes = ", ".join(operation.shapes[:MOST_SHAPES])
        if len(operation.shapes) > MOST_SHAPES:
            shapes += f" and {len(operation.shapes) - MOST_SHAPES} more"
        described = (operation.name, operation.category, operation.source, shapes)
        yield place, event.start, ns, wait, meeting, described
