"""Energy per step from counter readings over an arm's turns, with its error.

A counter that is updated every T seconds shows the energy at its last update, up to T seconds
before a reading, which blurs both ends of each of an arm's n turns of d seconds. The random part of
this error has a variance of n T^2/6 times the arm's power squared. There is also a bias towards the
arm's neighbours, since T/(2d) of a turn's energy is counted in the next turn. Every other arm is a
neighbour about equally often, so they are assumed to have the block's mean power.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pandas as pd

from bench.analyse.comparisons import Row
from bench.records.grouping import grouped
from bench.records.rows import BlockRow

MOST_ERROR = 0.5
"""Relative error above which a figure is not shown."""


@dataclass(frozen=True)
class Usage:
    """The energy that an arm used over all of its turns."""

    joules: float
    seconds: float
    turns: int
    steps: int
    """Steps of all turns with their wash-out steps: counters are read around whole turns."""
    period_s: float
    block_watts: float
    """Mean power over all arms of the block."""

    @property
    def watts(self) -> float:
        """Mean power."""
        return self.joules / self.seconds

    @property
    def per_step(self) -> float:
        """Joules per step."""
        return self.joules / self.steps

    @property
    def error(self) -> float:
        """Relative half-width of the 95 % interval; infinite if turns are not longer than T."""
        if self.joules <= 0:
            return math.inf
        booked = self.period_s * self.turns / (2 * self.seconds)
        if 2 * booked >= 1:
            return math.inf
        chance = 2 * math.sqrt(self.turns / 6) * self.period_s / self.seconds
        return chance + booked / (1 - booked) * abs(self.watts - self.block_watts) / self.watts


def measure(samples: pd.DataFrame, blocks: Iterable[BlockRow]) -> dict[tuple[str, str], Usage]:
    """Return the energy of every arm with counter readings, by block and arm."""
    counted = samples[samples["energy_seconds"].astype(float) > 0]
    if counted.empty:
        return {}
    metered = [row for row in blocks if "energy" in row]
    periods = grouped((row["block"], row["energy"]["period_s"]) for row in metered)
    steps = 1 + counted["steps"] + counted["latency_steps"]
    sums = (
        counted.assign(all_steps=steps, turns=1)
        .astype({"energy_joules": float, "energy_seconds": float})
        .groupby(["block", "arm"])[["energy_joules", "energy_seconds", "turns", "all_steps"]]
        .sum()
    )
    of_block = sums.groupby("block").sum()
    watts = (of_block["energy_joules"] / of_block["energy_seconds"]).to_dict()
    return {
        (block, arm): Usage(joules, seconds, turns, int(every), max(periods[block]), watts[block])
        for (block, arm), joules, seconds, turns, every in sums.itertuples(name=None)
    }


def figures(energy: Mapping[tuple[str, str], Usage], cell: Row, baseline: str) -> dict[str, float]:
    """Return a cell's energy columns of `Tables.cells`, if known and precise enough."""
    used = energy.get((cell["block"], cell["implementation"]))
    if cell["status"] != "ok" or used is None or used.error > MOST_ERROR:
        return {}
    units = cell["units_per_step"]
    own = {
        "joules_per_step": used.per_step,
        "joules_error": used.per_step * used.error,
        "joules_per_unit": used.per_step / units,
        "units_per_joule": units / used.per_step,
        "watts": used.watts,
    }
    other = energy.get((cell["block"], baseline))
    if other is None or other.error > MOST_ERROR or baseline == cell["implementation"]:
        return own
    ratio = used.per_step / other.per_step
    return own | {
        "energy_ratio": ratio, "energy_ratio_error": ratio * math.hypot(used.error, other.error)
    }  # fmt: skip
