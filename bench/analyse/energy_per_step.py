"""Energy per step from counter readings over an arm's turns, with its error.

A counter that is updated every T seconds shows the energy at its last update, up to T seconds
before a reading, which blurs both ends of each of an arm's n turns of d seconds. The random part of
this error has a variance of n T^2/6 times the arm's power squared. There is also a bias towards the
arm's neighbours, since T/(2d) of a turn's energy is counted in the next turn. Every other arm is a
neighbour about equally often, so they are assumed to have the block's mean power.
"""

import math
from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd

from bench.analyse.comparisons import Row
from bench.records.grouping import grouped
from bench.records.rows import BlockRow

MOST_ERROR = 0.5
"""Relative error above which a figure is not shown."""

Usage = Mapping[str, float]
"""An arm's `joules` per step, mean power in `watts`, and their `error`: the relative half-width of
the 95 % interval."""


def measure(samples: pd.DataFrame, blocks: Iterable[BlockRow]) -> dict[tuple[str, str], Usage]:
    """Return the energy of every arm where it is precise enough, by block and arm."""
    counted = samples[samples["energy_seconds"].astype(float) > 0]
    if counted.empty:
        return {}
    periods = grouped((b["block"], b["energy"]["period_s"]) for b in blocks if "energy" in b)
    # Counters are read around whole turns, wash-out steps included.
    steps = 1 + counted["steps"] + counted["latency_steps"]
    columns = ["energy_joules", "energy_seconds"]
    every = counted.assign(turns=1, all_steps=steps).astype(dict.fromkeys(columns, float))
    sums = every.groupby(["block", "arm"])[[*columns, "turns", "all_steps"]].sum()
    joules, seconds, turns, steps = (sums[name] for name in sums)
    watts, of_block = joules / seconds, sums.groupby("block").transform("sum")
    block_watts = of_block["energy_joules"] / of_block["energy_seconds"]
    period = np.array([max(periods[block]) for block, _ in sums.index])
    booked = period * turns / (2 * seconds)
    error = 2 * np.sqrt(turns / 6) * period / seconds
    error += booked / (1 - booked) * abs(watts - block_watts) / watts
    found = pd.DataFrame({"joules": joules / steps, "watts": watts, "error": error})
    # Turns have to be longer than the period.
    sure = (joules > 0) & (2 * booked < 1) & (error <= MOST_ERROR)
    usage: dict[tuple[str, str], Usage] = found[sure].to_dict("index")
    return usage


def figures(energy: Mapping[tuple[str, str], Usage], cell: Row, baseline: str) -> dict[str, float]:
    """Return a cell's energy columns of `Tables.cells`, if known and precise enough."""
    used = energy.get((cell["block"], cell["implementation"]))
    if cell["status"] != "ok" or used is None:
        return {}
    joules = used["joules"]
    own = {
        "joules_per_step": joules,
        "joules_error": joules * used["error"],
        "joules_per_unit": joules / cell["units_per_step"],
        "watts": used["watts"],
    }
    other = energy.get((cell["block"], baseline))
    if other is None or other is used:
        return own
    ratio, error = joules / other["joules"], math.hypot(used["error"], other["error"])
    return own | {"energy_ratio": ratio, "energy_ratio_error": ratio * error}
