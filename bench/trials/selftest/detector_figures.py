"""From the stored rows of a self-test to its figures, each with an interval."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from statistics import median

import pandas as pd
from scipy.stats import binomtest

from bench.analyse.ratio_intervals import Ratio
from bench.records import numbers
from bench.records.arms import TWIN
from bench.trials.selftest.selftest_settings import LAUNCHES
from bench.trials.selftest.trial_rows import SLOWDOWNS, OverheadRow, OwnRow, ReportRow, Row
from bench.trials.selftest.trial_verdicts import (
    ALL,
    LOCKSTEP,
    VARIED,
    Outcomes,
    judgements,
    trial_outcomes,
)

LARGE = 10_000
"""Cells of a run whose report has targets."""


@dataclass(frozen=True)
class Rate:
    """How often something happened."""

    count: int
    of: int

    @property
    def value(self) -> float:
        """The share; NaN without trials."""
        return self.count / self.of if self.of else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval (J. of the American Statistical Association 22 (1927), 209)."""
        if not self.of:
            return math.nan, math.nan
        ends = binomtest(self.count, self.of).proportion_ci(0.95, method="wilson")
        return float(ends.low), float(ends.high)


@dataclass(frozen=True)
class Detector:
    """How well one tool did under one load with one measuring time."""

    tool: str
    pattern: str
    seconds: float
    """Measuring time of a pair, at most."""
    alarms: Rate
    """Identical programs that were called different."""
    found: dict[str, Rate]
    """Planted slowdowns, by name, that were called slower."""
    wrong: int
    """Planted slowdowns that were called faster, or the same although larger than the margin."""
    used_s: float
    """Median of the measuring time that was used."""


@dataclass(frozen=True)
class Coverage:
    """How often the 95 % interval of two identical programs held their true ratio, 1."""

    pattern: str
    launches: int
    reported: Rate
    """The reported interval, whose measurement stops at a verdict, where processes differ."""
    whole: Rate
    """The interval from all rounds, where processes differ."""
    alike: Rate
    """The reported interval of the planted program itself, whose processes do not differ."""
    width: float
    """Median half-width of the reported interval."""


@dataclass(frozen=True)
class Cost:
    """The cost of measuring."""

    inside: float
    """Median share of the rounds' wall time within timed or wash-out steps."""
    recorded_ns: float
    """Time recorded for a step in addition to the step itself: median."""
    untimed_ns: float
    """Time between the spans, a step: median."""


@dataclass(frozen=True)
class Target:
    """A promise of the project, and whether it was met."""

    promise: str
    measured: str
    met: bool


@dataclass(frozen=True)
class Figures:
    """All figures of a self-test."""

    detectors: list[Detector]
    coverages: list[Coverage]
    cost: Cost | None
    targets: list[Target]
    errors: dict[str, int]
    """Number of failed trials, by peer."""


def detectors(trials: pd.DataFrame) -> list[Detector]:
    """Figures of each tool under each load with each measuring time, in order of appearance."""
    kinds = {key: pd.CategoricalDtype(list(trials[key].unique())) for key in ("pattern", "tool")}
    groups = trials.astype(kinds).groupby(["pattern", "tool", "seconds"], observed=True)
    return [_detector(group) for _, group in groups]


def _detector(trials: pd.DataFrame) -> Detector:
    first = trials.iloc[0]
    by_arm = {arm: trials[trials["arm"] == arm] for arm in SLOWDOWNS}
    twins = by_arm.pop(TWIN)
    return Detector(
        tool=str(first["tool"]),
        pattern=str(first["pattern"]),
        seconds=float(first["seconds"]),
        alarms=Rate(int(twins["different"].sum()), len(twins)),
        found={arm: Rate(int(g["slower"].sum()), len(g)) for arm, g in by_arm.items() if len(g)},
        wrong=sum(int(group["wrong"].sum()) for group in by_arm.values()),
        used_s=float(trials["used_s"].median()),
    )


def coverage(pattern: str, launches: int, outcomes: Outcomes) -> Coverage:
    """How often 1 was within the intervals."""

    def holds(ratios: Iterable[Ratio]) -> Rate:
        intervals = [ratio.interval() for ratio in ratios]
        held = sum(ends is not None and ends[0] <= 1 <= ends[1] for ends in intervals)
        return Rate(held, len(intervals))

    varied = outcomes[VARIED]
    return Coverage(
        pattern=pattern,
        launches=launches,
        reported=holds(each.reported for each in varied),
        whole=holds(each.whole for each in varied),
        alike=holds(each.reported for each in outcomes[TWIN]),
        width=median(
            each.reported.half_width() for each in varied if each.reported.error is not None
        ),
    )


def cost(own: Sequence[OwnRow], overheads: Sequence[OverheadRow]) -> Cost | None:
    """The cost of measuring, from the trials and from steps that do nothing."""
    if not own or not overheads:
        return None
    # The least disturbed process shows the cost of the clock without the effect of the load.
    least = min(overheads, key=lambda row: row["throughput_ns"])
    return Cost(
        inside=median(row["inside_s"] / row["wall_s"] for row in own),
        recorded_ns=least["throughput_ns"] - least["call_ns"],
        untimed_ns=least["untimed_ns"],
    )


def compute(rows: Sequence[Row], seconds: float) -> Figures:
    """All figures; `seconds` is the measuring time of a pair in a trial of one process."""
    own = [row for row in rows if row["kind"] == "own"]
    peers = [row for row in rows if row["kind"] == "peer"]
    outcomes = trial_outcomes(own)
    failed = [row["peer"] for row in peers if row["error"]]
    figures = Figures(
        detectors=detectors(judgements(outcomes, peers, seconds)),
        coverages=[coverage(*key, found) for key, found in outcomes.items()],
        cost=cost(own, [row for row in rows if row["kind"] == "overhead"]),
        targets=[],
        errors={name: failed.count(name) for name in dict.fromkeys(failed)},
    )
    large = [row for row in rows if row["kind"] == "report"]
    return replace(figures, targets=list(targets(figures, large, seconds)))


def targets(figures: Figures, reports: Sequence[ReportRow], seconds: float) -> Iterator[Target]:
    """What the project promises, and what was measured under all loads together."""
    own = {d.seconds: d for d in figures.detectors if (d.tool, d.pattern) == (LOCKSTEP, ALL)}
    if seconds in own:
        # The longer trials are too few for an upper bound; the table shows their share.
        alarms = own[seconds].alarms
        yield Target(
            "Identical programs are called different in at most 1 % of trials (upper bound 2 %)",
            describe(alarms),
            alarms.value <= 0.01 and alarms.interval[1] <= 0.02,  # noqa: PLR2004
        )
    for planted, launches, least in (("5 % slower", 1, 0.95), ("2 % slower", LAUNCHES, 0.90)):
        if launches * seconds in own:
            share = own[launches * seconds].found[planted]
            yield Target(
                f"A program that is {planted} is detected in at least {100 * least:.0f} % of "
                f"trials of {launches * seconds:g} s",
                describe(share),
                share.value >= least,
            )
    if own:
        wrong = sum(detector.wrong for detector in own.values())
        yield Target(
            "No slower program is called faster, or the same despite exceeding the margin",
            str(wrong),
            wrong == 0,
        )
    for each in figures.coverages:
        if each.pattern == ALL:
            yield Target(
                "The 95 % interval holds the true ratio in 93 to 97 % of trials of "
                f"{numbers.count(each.launches, 'process', 'processes')}",
                describe(each.reported),
                0.93 <= each.reported.value <= 0.97,  # noqa: PLR2004
            )
    if figures.cost:
        inside, recorded, untimed = astuple(figures.cost)
        for promise, measured, met in (
            ("At least 85 % of the measuring time is spent in steps", f"{100 * inside:.1f} %",
             inside >= 0.85),  # noqa: PLR2004
            ("The clock adds at most 100 ns to a step", f"{recorded:.0f} ns",
             recorded <= 100),  # noqa: PLR2004
            ("At most 1000 ns a step pass untimed", f"{untimed:.0f} ns",
             untimed <= 1000),  # noqa: PLR2004
        ):  # fmt: skip
            yield Target(promise, measured, met)
    yield from _report_targets(row for row in reports if row["cells"] >= LARGE)


def _report_targets(reports: Iterable[ReportRow]) -> Iterator[Target]:
    for row in reports:
        size, painted = row["bytes"] / 1e6, row.get("first_paint_s")
        yield Target(
            f"The report of {LARGE:,} cells is rebuilt within 10 s and takes at most 20 MB",
            f"{row['cells']} cells: {row['seconds']:.1f} s, {size:.1f} MB",
            row["seconds"] <= 10 and size <= 20,  # noqa: PLR2004
        )
        if painted is not None:
            yield Target(
                f"A browser shows the report of {LARGE:,} cells within 2 s",
                f"{painted:.2f} s",
                painted <= 2,  # noqa: PLR2004
            )


def describe(share: Rate) -> str:
    """`3 of 288: 1.0 % (0.4 to 3.0 %)`."""
    if not share.of:
        return "no trials"
    low, high = share.interval
    return (
        f"{share.count} of {share.of}: {100 * share.value:.1f} % "
        f"({100 * low:.1f} to {100 * high:.1f} %)"
    )
