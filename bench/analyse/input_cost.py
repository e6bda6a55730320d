"""What input costs: arms that take a batch in every step, against the same on a resident batch."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from bench.records.arms import INPUT_WAYS, input_arm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from bench.analyse.comparisons import Comparison


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
    # A throughput span of one step is a latency span as well, and then there is no other.
    single = rows["latency_steps"] == 0
    seconds.loc[single, "input_latency_wait_ns"] = seconds["input_wait_ns"]
    medians = seconds.groupby(rows["arm"]).median() / 1e9
    return {str(arm): Waits(*waits) for arm, *waits in medians.itertuples()}


def find(comparisons: Sequence[Comparison]) -> list[dict[str, Any]]:
    """Return a row for every implementation with a time, in each requested way of input.

    Columns: `cell`, `implementation`, `way`, the `reason` why there are no samples, if so; step
    times on a resident batch (`resident_step_s`) and with input (`step_s`), and the `ratio` of the
    latter to the former, in the same rounds, with its 95 % interval (`ratio_low`, `ratio_high`) and
    `verdict`; `Waits`. NaN or None without samples.
    """
    return [
        _row(block, cell, way)
        for block in comparisons
        for cell in block.ranked
        for way in INPUT_WAYS
        if (cell["inputs"] or {}).get(way) is not None
    ]


def _row(block: Comparison, cell: dict[str, Any], way: str) -> dict[str, Any]:
    arm = input_arm(cell["implementation"], way)
    claim = block.input_claims.get(arm)
    low, high = (claim and claim.ratio.interval()) or (math.nan, math.nan)
    waits = block.waits.get(arm, Waits(math.nan, math.nan, math.nan))
    seconds = block.rounds.seconds(arm, "throughput")
    return {
        "cell": cell["cell"],
        "implementation": cell["implementation"],
        "way": way,
        "reason": cell["inputs"][way],
        "resident_step_s": cell["step_s"],
        "step_s": float(np.nanmedian(seconds)) if arm in block.rounds.arms else math.nan,
        "ratio": claim.ratio.value if claim else math.nan,
        "ratio_low": low,
        "ratio_high": high,
        "verdict": claim.verdict.word if claim else None,
        **asdict(waits),
    }
