"""Figures of turns beside their times: waits for input, slow processes, throttling, the host."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd


def input_waits(samples: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Return the waits of each arm with input: seconds per step, medians over turns.

    `wait_s` is the time from the host's request for the batch until it could launch the step. Where
    steps follow without a pause, devices may still be busy with earlier ones; `starved_s` bounds
    the part in which they were idle for lack of input.
    """
    names = {"wait_s": "input_wait_ns", "starved_s": "input_starved_ns"}
    rows = samples[["arm", "steps", *names.values()]].dropna()
    waits = {figure: rows[name].astype(float) / rows["steps"] for figure, name in names.items()}
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


@dataclass(frozen=True)
class ThrottledArm:
    """The turns of an arm in a block at whose end a GPU's clock was held down.

    They are marked, and count like others. Samples have the marks in the column `boards_throttled`:
    the limits in force, separated by `; `.
    """

    block: str
    arm: str
    turns: int
    """All turns whose limits are known."""
    throttled: int
    """Turns with at least one limit."""
    reasons: dict[str, int]
    """Turns by limit, such as `heat`; most frequent first. A turn may have several."""


def throttled_arms(samples: pd.DataFrame) -> list[ThrottledArm]:
    """Return the arms that have throttled turns, the most affected first."""
    known = samples[samples["boards_throttled"].notna()]
    arms = []
    for (block, arm), marks in known.groupby(["block", "arm"], sort=False)["boards_throttled"]:
        limited = [mark for mark in marks if mark]
        reasons = dict(Counter(word for mark in limited for word in mark.split("; ")).most_common())
        if limited:
            arms.append(ThrottledArm(str(block), str(arm), len(marks), len(limited), reasons))
    arms.sort(key=lambda one: (-one.throttled / one.turns, one.block, one.arm))
    return arms


def timeline(samples: pd.DataFrame, baselines: Mapping[str, str]) -> pd.DataFrame:
    """Return one row per round of a run's samples, in chronological order; `baselines` is by block.

    Columns: `minutes` since the first round, `launch`, the baseline's step time `relative` to its
    median over the block, the shares of all cores' time that other processes (`foreign`) and other
    guests (`steal`) had, and the cores' mean frequency, `mhz`; NaN where unknown. The system counts
    in ticks of 10 ms, so a short round's shares are rough, and `foreign` may come out below 0:
    average them.
    """
    key = ["block", "launch", "attempt", "round"]
    # If no system reports a frequency, the column is of objects, whose mean pandas takes slowly.
    samples = samples.astype({"host_mhz": float})
    host = samples.groupby(key, sort=False).agg(
        at=("at", "min"),
        available=("host_cores_s", "sum"),
        foreign=("host_foreign_s", "sum"),
        steal=("host_steal_s", "sum"),
        mhz=("host_mhz", "mean"),
    )
    available = host["available"].astype(float).where(host["available"] > 0)
    own = samples[samples["arm"] == samples["block"].map(baselines)]
    seconds = own["throughput_ns"] / own["steps"]
    relative = seconds / seconds.groupby(own["block"]).transform("median")
    table = host.assign(
        minutes=(host["at"] - host["at"].min()) / 60,
        relative=pd.Series(relative.to_numpy(), index=pd.MultiIndex.from_frame(own[key])),
        foreign=host["foreign"] / available,
        steal=host["steal"] / available,
    )
    columns = ["minutes", "launch", "relative", "foreign", "steal", "mhz"]
    return table.sort_values("at", kind="stable").reset_index()[columns]
