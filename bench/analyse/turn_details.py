"""Figures of turns beside their times: waits for input, slow processes, throttling."""

from collections import Counter
from typing import NamedTuple

import numpy as np
import pandas as pd


def input_waits(samples: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Return the waits of each arm with input: seconds per step, medians over turns.

    `wait_s` is the time from the host's request for the batch until it could launch the step. Where
    steps follow without a pause, devices may still be busy with earlier ones; `starved_s` bounds
    the part in which they were idle for lack of input.
    """
    columns = {"input_wait_ns": "wait_s", "input_starved_ns": "starved_s"}
    rows = samples[["arm", "steps", *columns]].dropna()
    waits = rows[[*columns]].astype(float).div(rows["steps"], axis=0).rename(columns=columns)
    medians = waits.groupby(rows["arm"]).median() / 1e9
    return {str(arm): dict(own) for arm, own in medians.iterrows()}


def straggling(samples: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Compare the processes of each arm by the times of its throughput spans.

    `slowest` is the rank of the process that most often takes the longest, `often` the share of the
    spans in which it does, and `excess` the median of the longest time over the shortest, less 1.
    """
    found = {}
    rows = samples[["arm", "process_throughput_ns"]].dropna()
    for arm, own in rows.groupby("arm")["process_throughput_ns"]:
        times = np.array(own.tolist())
        counts = np.bincount(times.argmax(axis=1))
        found[str(arm)] = {
            "slowest": int(counts.argmax()),
            "often": float(counts.max() / len(times)),
            "excess": float(np.median(times.max(axis=1) / times.min(axis=1)) - 1),
        }
    return found


class Throttling(NamedTuple):
    """A run's turns at whose end a GPU's clock was held down; they count like others."""

    throttled: int
    turns: int
    """All turns whose limits are known."""
    reasons: dict[str, int]
    """Throttled turns by limit, such as `heat`; most frequent first. A turn may have several."""
    block: str
    """Where an arm has the most of them."""
    arm: str


def throttling(samples: pd.DataFrame) -> Throttling | None:
    """Count throttled turns; None if there are none.

    Samples mark them in the column `boards_throttled`: the limits in force, separated by `; `.
    """
    known = samples[samples["boards_throttled"].notna()]
    held = known[known["boards_throttled"] != ""]
    if held.empty:
        return None
    reasons = Counter(word for mark in held["boards_throttled"] for word in mark.split("; "))
    block, arm = held[["block", "arm"]].value_counts().index[0]
    return Throttling(len(held), len(known), dict(reasons.most_common()), block, arm)
