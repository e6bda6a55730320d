"""What input costs: arms that take a batch in every step, against the same on a resident batch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from bench.records.arms import INPUT_WAYS, input_arm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from bench.analyse.comparisons import Comparison
    from bench.analyse.verdicts import Claim


@dataclass(frozen=True)
class Waits:
    """How long a step waited for its input: medians over turns, in seconds."""

    wait_s: float
    """From when the host asked for the batch until it could launch the step. Where steps follow
    without a pause, devices may be busy with earlier ones meanwhile."""
    starved_s: float
    """The part of `wait_s` in which devices had, at most, nothing to do for want of input."""
    latency_wait_s: float
    """Where the devices are done with a step before the host asks for the next batch."""


def measure_waits(timed: pd.DataFrame, places: NDArray[np.intp]) -> dict[str, Waits]:
    """Return the waits of each arm that takes its input, from samples at these indices."""
    spans = {
        "input_wait_ns": "steps",
        "input_starved_ns": "steps",
        "input_latency_wait_ns": "latency_steps",
    }
    rows = timed[["arm", "steps", "latency_steps", *spans]].iloc[places].dropna()
    seconds = pd.DataFrame(
        {wait: rows[wait].astype(float) / rows[steps] for wait, steps in spans.items()}
    )
    medians = seconds.groupby(rows["arm"]).median() / 1e9
    return {str(arm): Waits(*waits) for arm, *waits in medians.itertuples()}


@dataclass(frozen=True)
class Fed:
    """One implementation of a block, with its input taken in one way."""

    block: Comparison
    cell: dict[str, Any]
    """A row of bench.analyse.cell_table.Tables.cells."""
    way: str
    reason: str
    """Why there are no samples; empty if there are."""
    step_s: float
    """Median of its own step times; NaN without samples."""
    claim: Claim | None
    """Its step time over that on a resident batch, in the same rounds; None without samples."""
    waits: Waits | None


def find(comparisons: Sequence[Comparison]) -> list[Fed]:
    """List every implementation with a time, in every way of input that was requested."""
    return [
        Fed(
            block=block,
            cell=cell,
            way=way,
            reason=cell["inputs"][way],
            step_s=float(np.nanmedian(block.rounds.seconds(arm, "throughput")))
            if arm in block.rounds.arms
            else math.nan,
            claim=block.input_claims.get(arm),
            waits=block.waits.get(arm),
        )
        for block in comparisons
        for cell in block.ranked
        for way in INPUT_WAYS
        if (cell["inputs"] or {}).get(way) is not None
        for arm in [input_arm(cell["implementation"], way)]
    ]


def frame(fed: Sequence[Fed]) -> pd.DataFrame:
    """Return a row each: seconds, and step time over that on a resident batch."""
    return pd.DataFrame([_row(one) for one in fed])


def _row(one: Fed) -> dict[str, Any]:
    ratio = one.claim.ratio if one.claim else None
    low, high = (ratio and ratio.interval()) or (math.nan, math.nan)
    waits = one.waits or Waits(math.nan, math.nan, math.nan)
    return {
        "cell": one.cell["cell"],
        "implementation": one.cell["implementation"],
        "way": one.way,
        "reason": one.reason,
        "resident_step_s": one.cell["step_s"],
        "step_s": one.step_s,
        "ratio": ratio.value if ratio else math.nan,
        "ratio_low": low,
        "ratio_high": high,
        "verdict": one.claim.verdict.word if one.claim else None,
        "wait_s": waits.wait_s,
        "starved_s": waits.starved_s,
        "latency_wait_s": waits.latency_wait_s,
    }
