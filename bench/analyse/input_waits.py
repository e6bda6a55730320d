"""How long steps waited for their input, from samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

COLUMNS = ("input_wait_ns", "input_starved_ns", "input_latency_wait_ns")
"""Of a run's samples."""


@dataclass(frozen=True)
class Waits:
    """How long a step waited for its input: medians over turns, in seconds."""

    wait_s: float
    """From when the host asked for the batch until it could launch the step. Where steps follow
    without a pause, devices may be busy with earlier ones meanwhile."""
    starved_s: float
    """Of it, at most what devices had nothing to do for want of input."""
    latency_wait_s: float
    """Where the devices are done with a step before the host asks for the next batch."""


def measure(timed: pd.DataFrame, places: NDArray[np.intp]) -> dict[str, Waits]:
    """Of each arm that takes its input, what its steps waited."""
    columns = ["arm", "steps", "latency_steps", *COLUMNS]
    told = timed[columns].iloc[places].dropna()
    found = {}
    for arm, rows in told.groupby("arm"):
        spans = rows["steps"], rows["steps"], rows["latency_steps"]
        each = (
            float((rows[column].astype(float) / steps).median()) / 1e9
            for column, steps in zip(COLUMNS, spans, strict=True)
        )
        found[str(arm)] = Waits(*each)
    return found
