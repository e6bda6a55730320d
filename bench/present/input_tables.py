"""Tables and sentences of what input costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from bench.present.columns import Figure
from bench.present.text_tables import Row, Table
from bench.records import numbers
from bench.records.arms import INPUT_WAYS
from bench.records.statuses import VERDICT_STYLES

if TYPE_CHECKING:
    from bench.analyse.input_cost import Fed


def table(found: Sequence[Fed]) -> Table | None:
    """What input costs in one block; None where it was not asked for."""
    if not found:
        return None
    headings = [
        Figure("Implementation"),
        Figure("Input"),
        Figure("Step time", "on a resident batch"),
        Figure("To a resident batch", "ratio, 95 % interval"),
        Figure("Verdict"),
        Figure("Waits for input", "a step"),
        Figure("Devices idle for it", "a step, at most"),
        Figure("Waits", "where each step is waited for"),
    ]
    rows = [Row(one.cell["implementation"], _figures(one)) for one in found]
    return Table(f"Input, {found[0].block.place}", headings, rows, [FACT, *_meanings(found)])


FACT = (
    "Each step takes the next batch, in turns with the same implementation on one resident batch. "
    "The host waits from asking for a batch until it can launch the step; where steps follow "
    "without a pause, devices may be busy with earlier ones meanwhile."
)


def _meanings(found: Sequence[Fed]) -> list[str]:
    ways = dict.fromkeys(one.way for one in found)
    return [f"{way.capitalize()}: {INPUT_WAYS[way]}." for way in ways]


def _figures(one: Fed) -> list[Figure]:
    if one.claim is None or one.waits is None:
        missing = [Figure(numbers.MISSING)] * 5
        return [Figure(one.way), Figure(numbers.MISSING, one.reason or "no samples"), *missing]
    ratio = one.claim.ratio
    resident = numbers.si(one.cell["step_s"], "s")
    return [
        Figure(one.way),
        Figure(numbers.si(one.step_s, "s"), resident),
        Figure(numbers.ratio(ratio.value), numbers.interval(ratio.low, ratio.high)),
        Figure(one.claim.verdict.word),
        Figure(numbers.si(one.waits.wait_s, "s")),
        Figure(numbers.si(one.waits.starved_s, "s")),
        Figure(numbers.si(one.waits.latency_wait_s, "s")),
    ]


def sentences(found: Sequence[Fed]) -> list[str]:
    """What input costs over all cells, a sentence for each way."""
    said = []
    for way in INPUT_WAYS:
        own = [(one.claim, one.waits) for one in found if one.way == way]
        known = [(claim, waited) for claim, waited in own if claim and waited]
        if not known:
            continue
        ratios = [claim.ratio.value for claim, _ in known]
        counts = Counter[str](claim.verdict.word for claim, _ in known)
        verdicts = ", ".join(f"{counts[word]} {word}" for word in VERDICT_STYLES if counts[word])
        span = " to ".join(dict.fromkeys(map(numbers.ratio, (min(ratios), max(ratios)))))
        wait = numbers.si(float(np.median([waited.wait_s for _, waited in known])), "s")
        said.append(
            f"Input {way}: {span} of the step time on a resident batch ({verdicts}); a step "
            f"waits {wait} for it at the median of {numbers.count(len(known), 'cell')}."
        )
    return said
