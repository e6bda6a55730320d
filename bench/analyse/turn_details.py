"""Figures of turns beside their times: waits for input, slow processes, throttling."""

from collections import Counter
from typing import NamedTuple

import numpy as np
import pandas as pd


def input_waits(samples: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Return the waits of each arm with input: seconds per step, medians over turns.

    `wait_s` is the time from the host's request for the batch until it could launch the step. Where
    steps follow without a pause, devices may still be busy with earlier ones; `starved_s` bounds
    the part in which they were idle for lack of input. `latency_wait_s` is like `wait_s`, where
    devices finish each step before the host requests the next batch.
    """
    names = ["input_wait_ns", "input_starved_ns", "input_latency_wait_ns"]
    rows = samples[["arm", "steps", "latency_steps", *names]].dropna()
    wait, starved, latency_wait = (rows[name].astype(float) for name in names)
    # A throughput span of a single step is also the latency span; there is no separate one.
    waits = {
        "wait_s": wait / rows["steps"],
        "starved_s": starved / rows["steps"],
        "latency_wait_s": (latency_wait / rows["latency_steps"]).where(
            rows["latency_steps"] > 0, wait / rows["steps"]
        ),
    }
    medians = pd.DataFrame(waits).groupby(rows["arm"]).median() / 1e9
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
