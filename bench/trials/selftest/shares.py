"""How often a tool is right about programs with a known true ratio, as figures and as a table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
from scipy.stats import binomtest

from bench.analyse.ratio_intervals import student
from bench.present.columns import Column, Table
from bench.records import numbers
from bench.records.statuses import MARGIN
from bench.trials.selftest.selftest_settings import slowdown

VERDICTS = (
    "Shares with their 95 % interval, too narrow with fewer than four processes: trials overlap.",
    "Equal: blocks of equal arms in which any was called different.",
    "Slower: arms that were called slower.",
    "Slower, any wrong: blocks in which such an arm was called faster, or wrongly the same.",
)
INTERVALS = (
    "How often the 95 % interval of two equal arms holds their ratio, 1.",
    "It is that of the round in which the measurement stops.",
    "Half-widths are medians over intervals from all rounds.",
)

_PROCESSES = 4
"""The fewest whose spread is informative: Student's factor is 12.7 for two of them."""


@dataclass(frozen=True)
class Rate:
    """The frequency of an event."""

    count: int
    of: int
    margin: float = field(default=0.0, compare=False)
    """Half-width of the jackknife's 95 % interval; 0 where too few processes show their spread."""

    @property
    def value(self) -> float:
        """The share; NaN without trials."""
        return self.count / self.of if self.of else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval: the union of Wilson's, for independent trials, and the jackknife's.

        Wilson: J. of the American Statistical Association 22 (1927), 209.
        """
        if not self.of:
            return math.nan, math.nan
        ends = binomtest(self.count, self.of).proportion_ci(0.95, method="wilson")
        low, high = self.value - self.margin, self.value + self.margin
        return max(0.0, min(float(ends.low), low)), min(1.0, max(float(ends.high), high))

    def __str__(self) -> str:
        """Return the share with its interval, `1.0 % (0.4 to 3.0 %)`; a dash without trials."""
        if not self.of:
            return numbers.MISSING
        low, high = self.interval
        return f"{100 * self.value:.1f} % ({100 * low:.1f} to {100 * high:.1f} %)"

    @property
    def counted(self) -> str:
        """`3 of 288: 1.0 % (0.4 to 3.0 %)`."""
        return f"{self.count} of {self.of}: {self}" if self.of else "no trials"


@dataclass(frozen=True)
class Shares:
    """Accuracy of one tool's verdicts over some trials."""

    keys: dict[str, object]
    """Common properties of the trials, by column."""
    alarms: Rate
    """Blocks of equal arms in which any arm was called different."""
    found: dict[str, Rate]
    """Planted slowdowns, by name, that were called slower."""
    wrong: Rate
    """Blocks with planted slowdowns in which an arm was called faster, or the same although it is
    slower by more than the margin."""
    holds: Rate
    """95 % intervals of equal arms, as shown when the engine stops, that covered 1."""
    width: float
    """Median half-width of the 95 % interval from all rounds, as a log ratio."""
    verdict_width: float
    """The same for the interval behind the verdicts."""
    used_s: float
    """Median of the measuring time used by a pair, in seconds."""


def shares(trials: pd.DataFrame, by: list[str]) -> list[Shares]:
    """Evaluate trials, rows of `equal_arms.trials`, for each combination of columns `by`."""
    return [
        _shares(group[by].head(1).to_dict("records")[0], group.reset_index())
        for _, group in trials.groupby(by, sort=False)
    ]


def _shares(keys: dict[Any, object], trials: pd.DataFrame) -> Shares:
    equal, word = trials["truth"] == 1, trials["word"]
    missed = (word == "same") & (trials["truth"] > 1 + MARGIN)
    wrong = (word == "faster") | (equal & (word == "slower")) | (~equal & missed)
    processes = trials["processes"]
    blocks = pd.DataFrame({"equal": equal, "wrong": wrong}).groupby(trials["trial"])
    all_equal, any_wrong = blocks["equal"].all(), blocks["wrong"].any()
    of_block = processes.groupby(trials["trial"]).first()
    return Shares(
        keys=keys,
        alarms=_rate(any_wrong[all_equal], of_block),
        found={
            slowdown(float(str(truth))): _rate(group["word"] == "slower", processes)
            for truth, group in trials[~equal].groupby("truth")
        },
        wrong=_rate(any_wrong[~all_equal], of_block),
        holds=_rate(trials["holds"][equal].dropna(), processes),
        width=float(trials["width"].median()),
        verdict_width=float(trials["verdict_width"].median()),
        used_s=float(trials["used_s"].median()),
    )


def _rate(events: pd.Series[bool], processes: pd.Series[Any]) -> Rate:
    """Return how often an event occurred in trials; `processes` names those of each trial.

    Trials overlap and share what is peculiar to a process, so the jackknife leaves out one process
    at a time (Efron and Stein, Annals of Statistics 9 (1981), 586).
    """
    each = pd.DataFrame({"event": events.astype(float), "process": processes[events.index]})
    own = each.explode("process").groupby("process")["event"].agg(["sum", "size"])
    count, margin = len(own), 0.0
    if count >= _PROCESSES and (own["size"] < len(events)).all():
        without = (events.sum() - own["sum"]) / (len(events) - own["size"])
        error = math.sqrt((count - 1) * float(((without - events.mean()) ** 2).mean()))
        margin = student(count - 1, 0.05) * error
    return Rate(int(events.sum()), len(events), margin)


def verdicts(title: str, found: Sequence[Shares], keys: Mapping[str, str]) -> Table:
    """Return a table of right and wrong verdicts; `keys` are headings of its first columns."""
    slowdowns = dict.fromkeys(name for each in found for name in each.found)
    rows = [{**slowdowns, **vars(each), **each.found, **each.keys} for each in found]
    columns = [
        *(Column(key, name) for key, name in keys.items()),
        Column("alarms", "Equal, any wrong"),
        *(Column(name, name) for name in slowdowns),
        Column("wrong", "Slower, any wrong"),
        Column("used_s", "Seconds used", value=lambda row: f"{row['used_s']:.2f}"),
    ]
    return Table(title, columns, rows, VERDICTS)


def intervals(title: str, found: Sequence[Shares], keys: Mapping[str, str]) -> Table:
    """Return a table of the intervals of equal arms; `keys` as in `verdicts`."""
    rows = [{**vars(each), **each.keys} for each in found if each.holds.of]
    columns = [
        *(Column(key, name) for key, name in keys.items()),
        Column("holds", "Holds 1"),
        Column("width", "Half-width", format="percent"),
        Column("verdict_width", "Verdict's half-width", format="percent"),
    ]
    return Table(title, columns, rows, INTERVALS)
