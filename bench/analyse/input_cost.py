"""Cost of input: arms that take a new batch in every step, against the same on a resident batch."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from bench.records.arms import INPUT_WAYS, arm_beside

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from bench.analyse.comparisons import Comparison


@dataclass(frozen=True)
class Waits:
    """Waiting times of a step for its input: medians over turns, in seconds."""

    wait_s: float
    """Time from the host's request for the batch until it could launch the step. Where steps follow
    without a pause, devices may still be busy with earlier ones."""
    starved_s: float
    """Upper bound on the part of `wait_s` in which devices were idle for lack of input."""
    latency_wait_s: float
    """Like `wait_s`, where devices finish each step before the host requests the next batch."""


def measure_waits(timed: pd.DataFrame, places: NDArray[np.intp]) -> dict[str, Waits]:
    """Return the waits of each arm with input, from the samples at these indices."""
    spans = {
        "input_wait_ns": "steps",
        "input_starved_ns": "steps",
        "input_latency_wait_ns": "latency_steps",
    }
    rows = timed[["arm", "steps", "latency_steps", *spans]].iloc[places].dropna()
    seconds = pd.DataFrame(
        {wait: rows[wait].astype(float) / rows[steps] for wait, steps in spans.items()}
    )
    # A throughput span of a single step is also the latency span; there is no separate one.
    single = rows["latency_steps"] == 0
    seconds.loc[single, "input_latency_wait_ns"] = seconds["input_wait_ns"]
    medians = seconds.groupby(rows["arm"]).median() / 1e9
    return {str(arm): Waits(*waits) for arm, *waits in medians.itertuples()}


def find(comparisons: Sequence[Comparison]) -> list[dict[str, Any]]:
    """Return a row for every implementation with a time, for each requested way of input.

    Columns: `cell`, `implementation`, `way`, the `reason` why there are no samples, if any; step
    times on a resident batch (`resident_step_s`) and with input (`step_s`), and the `ratio` of the
    latter to the former in the same rounds, with its 95 % interval (`ratio_low`, `ratio_high`) and
    `verdict`; the fields of `Waits`. NaN or None without samples.
    """
    return [
        _row(block, cell, way)
        for block in comparisons
        for cell in block.ranked
        for way in INPUT_WAYS
        if (cell["inputs"] or {}).get(way) is not None
    ]


def _row(block: Comparison, cell: dict[str, Any], way: str) -> dict[str, Any]:
    arm = arm_beside(cell["implementation"], way)
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
