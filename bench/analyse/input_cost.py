"""What input costs: arms that take a batch in every step, against the same on a resident one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from bench.analyse.input_waits import Waits
from bench.records.arms import INPUT_WAYS, input_arm

if TYPE_CHECKING:
    from bench.analyse.cell_table import Comparison
    from bench.analyse.verdicts import Claim


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
        for way in [way for way in INPUT_WAYS if asked.get(way) is not None]:
            arm = input_arm(cell["implementation"], way)
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
