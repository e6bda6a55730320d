"""What input costs: arms that take a batch in every step, against the same on a resident one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from bench.analyse.input_waits import Waits
from bench.present.columns import Figure
from bench.present.text_tables import Row, Table
from bench.records import numbers
from bench.records.input_arms import WAYS, fed

if TYPE_CHECKING:
    from bench.analyse.cell_table import Comparison
    from bench.analyse.verdicts import Claim, Word

WORDS: tuple[Word, ...] = ("faster", "same", "slower", "undecided")


@dataclass(frozen=True)
class Fed:
    """One implementation of a block, with its input taken in one way."""

    block: Comparison
    cell: dict[str, Any]
    """As a row of bench.analyse.cell_table.Tables.cells."""
    way: str
    reason: str
    """Why there are no samples of it; empty if there are."""
    step_s: float
    """Median of its own step times; NaN without samples, as what follows."""
    claim: Claim | None
    """Its step time over that on a resident batch, in the same rounds."""
    waits: Waits | None


def find(comparisons: Sequence[Comparison]) -> list[Fed]:
    """Every implementation and way that was asked for, where the implementation has a time."""
    return [one for block in comparisons for one in _of_block(block)]


def _of_block(block: Comparison) -> Iterator[Fed]:
    for cell in block.ranked:
        asked = cell["inputs"] if isinstance(cell["inputs"], dict) else {}
        for way in [way for way in WAYS if asked.get(way) is not None]:
            arm = fed(cell["implementation"], way)
            seconds = float("nan")
            if arm in block.rounds.arms:
                seconds = float(np.nanmedian(block.rounds.seconds(arm, "throughput")))
            claim, waited = block.input_claims.get(arm), block.waits.get(arm)
            yield Fed(block, cell, way, asked[way], seconds, claim, waited)


def frame(found: Sequence[Fed]) -> pd.DataFrame:
    """A row each, for inputs.csv: seconds, and step time over that on a resident batch."""
    return pd.DataFrame([_row(one) for one in found])


def _row(one: Fed) -> dict[str, Any]:
    ratio = one.claim.ratio if one.claim else None
    low, high = (ratio and ratio.interval()) or (float("nan"), float("nan"))
    waited = one.waits or Waits(*[float("nan")] * 3)
    return {
        "cell": one.cell["cell"],
        "implementation": one.cell["implementation"],
        "way": one.way,
        "reason": one.reason,
        "resident_step_s": one.cell["step_s"],
        "step_s": one.step_s,
        "ratio": ratio.value if ratio else float("nan"),
        "ratio_low": low,
        "ratio_high": high,
        "verdict": one.claim.verdict.word if one.claim else None,
        "wait_s": waited.wait_s,
        "starved_s": waited.starved_s,
        "latency_wait_s": waited.latency_wait_s,
    }


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
    return [f"{way.capitalize()}: {WAYS[way]}." for way in ways]


def _figures(one: Fed) -> list[Figure]:
    if one.claim is None or one.waits is None:
        missing = [Figure(numbers.MISSING)] * 5
        return [Figure(one.way), Figure(numbers.MISSING, one.reason or "no samples"), *missing]
    ratio = one.claim.ratio
    resident = numbers.si(one.cell["step_s"], "s")
    return [
        Figure(one.way),
        Figure(numbers.si(one.step_s, "s"), resident),
        Figure(numbers.ratio(ratio.value), numbers.interval(ratio)),
        Figure(one.claim.verdict.word),
        Figure(numbers.si(one.waits.wait_s, "s")),
        Figure(numbers.si(one.waits.starved_s, "s")),
        Figure(numbers.si(one.waits.latency_wait_s, "s")),
    ]


def sentences(found: Sequence[Fed]) -> list[str]:
    """What input costs over all cells, a sentence for each way."""
    said = []
    for way in WAYS:
        own = [(one.claim, one.waits) for one in found if one.way == way]
        known = [(claim, waited) for claim, waited in own if claim and waited]
        if not known:
            continue
        ratios = [claim.ratio.value for claim, _ in known]
        counts = Counter(claim.verdict.word for claim, _ in known)
        verdicts = ", ".join(f"{counts[word]} {word}" for word in WORDS if counts[word])
        span = " to ".join(dict.fromkeys(map(numbers.ratio, (min(ratios), max(ratios)))))
        wait = numbers.si(float(np.median([waited.wait_s for _, waited in known])), "s")
        said.append(
            f"Input {way}: {span} of the step time on a resident batch ({verdicts}); a step "
            f"waits {wait} for it at the median of {numbers.count(len(known), 'cell')}."
        )
    return said
