"""Tables and sentences of what checkpoints cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bench.present.columns import Figure
from bench.present.text_tables import Row, Table
from bench.records import numbers
from bench.records.arms import CHECKPOINT_MODES

if TYPE_CHECKING:
    from bench.analyse.checkpoint_costs import Operation, Spread

HEADINGS = (
    Figure("Implementation"),
    Figure("What"),
    Figure("Takes", "median, range"),
    Figure("Blocks training", "median, range"),
    Figure("Bandwidth", "of the state"),
    Figure("Files", "of a state of"),
    Figure("A step meanwhile", "median; before"),
    Figure("A device holds", "most of one array while restoring"),
)


def table(found: Sequence[Operation], place: str) -> Table | None:
    """The saves and restores of one block; None where none were asked for."""
    if not found:
        return None
    rows = [Row(one.implementation, _figures(one)) for one in found]
    kinds = sorted({one.file_system for one in found if one.file_system})
    on = f"Files lay on {' and '.join(kinds)}." if kinds else ""
    return Table(f"Checkpoints, {place}", list(HEADINGS), rows, [FACT, *filter(None, [on])])


FACT = (
    "Orbax saves and restores the state, each process the shards of its devices. What is restored "
    "was compared with what was saved bit by bit. Files are not forced to the disk while they are "
    "written, and are dropped from the system's cache before they are read, where it allows."
)


def _figures(one: Operation) -> list[Figure]:
    missing = Figure(numbers.MISSING)
    if one.reason:
        return [Figure(numbers.MISSING, one.reason), *[missing] * 6]
    meanwhile, held = missing, missing
    if one.step_during.median == one.step_during.median:
        before = numbers.si(one.step_before.median, "s")
        meanwhile = Figure(numbers.si(one.step_during.median, "s"), before)
    if one.device_bytes == one.device_bytes:
        held = Figure(numbers.bytes_(one.device_bytes), numbers.bytes_(one.seen_bytes))
    return [
        Figure(one.what),
        _spread(one.total),
        _spread(one.blocking),
        Figure(numbers.si(one.bandwidth, "B/s")),
        Figure(numbers.bytes_(one.stored_bytes), numbers.bytes_(one.state_bytes)),
        meanwhile,
        held,
    ]


def sentences(found: Sequence[Operation]) -> list[str]:
    """What it takes over all cells, in a sentence; and for how many there are no figures."""
    parts = []
    for mode in CHECKPOINT_MODES:
        saves = [one for one in found if one.what == f"save, {mode}"]
        if saves:
            blocking = _between([one.blocking.median for one in saves])
            parts.append(f"{mode} saves block training for {blocking}")
    restores = [one.total.median for one in found if one.what.startswith("restore")]
    if restores:
        parts.append(f"restores take {_between(restores)}")
    said = [f"Checkpoints: {', '.join(parts)}."] if parts else []
    failed = [one for one in found if one.reason]
    if failed:
        cells = numbers.count(len(failed), "cell")
        said.append(f"No checkpoint of {cells}: {failed[0].reason}")
    return said


def _between(seconds: Sequence[float]) -> str:
    ends = dict.fromkeys(numbers.si(end, "s") for end in (min(seconds), max(seconds)))
    return " to ".join(ends)


def _spread(seconds: Spread) -> Figure:
    """Median, and below it the range."""
    if math.isnan(seconds.median):
        return Figure(numbers.MISSING)
    span = numbers.range_si(seconds.least, seconds.most, "s")
    return Figure(numbers.si(seconds.median, "s"), span)
