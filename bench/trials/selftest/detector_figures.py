"""From the stored rows of a self-test to its figures, each with an interval. Imports no jax."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

import numpy as np
from scipy.stats import binomtest

from bench.analyse.ratio_intervals import PROCESS_SD, Ratio, estimate
from bench.analyse.verdicts import AlphaSpending, decide, look_rounds
from bench.records.arms import TWIN
from bench.records.statuses import MARGIN, VerdictWord
from bench.trials.selftest.selftest_session import (
    ROUNDS,
    SLOWDOWNS,
    OverheadRow,
    OwnRow,
    PeerRow,
    ReportRow,
    Row,
)
from bench.trials.selftest.selftest_settings import LAUNCHES

T = TypeVar("T")

LOCKSTEP = "Lockstep"
VARIED = "processes differ"
"""The twin, with a known difference between processes added, of the size that intervals allow for.
Models have one, by their memory's layout; the planted program keeps no memory, and has none."""

ALL = "all loads"


@dataclass(frozen=True)
class Rate:
    """How often something happened, with Wilson's 95 % interval."""

    count: int
    of: int

    @property
    def value(self) -> float:
        """The share; NaN of nothing."""
        return self.count / self.of if self.of else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's (Journal of the American Statistical Association 22 (1927), 209)."""
        if not self.of:
            return math.nan, math.nan
        found = binomtest(self.count, self.of).proportion_ci(0.95, method="wilson")
        return float(found.low), float(found.high)


@dataclass(frozen=True)
class Outcome:
    """What one trial of Lockstep came to, as the engine would have measured it."""

    word: VerdictWord
    rounds: int
    """When it stopped."""
    reported: Ratio
    """The ratio from the rounds until it stopped."""
    whole: Ratio
    """The ratio from all rounds: no stopping rule has a part in it."""


@dataclass(frozen=True)
class Detector:
    """How one tool did under one load with one measuring time."""

    tool: str
    pattern: str
    seconds: float
    """Of measuring for a pair, at most."""
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
    """How often the 95 % interval held the true ratio of two identical programs, 1."""

    pattern: str
    launches: int
    reported: Rate
    """Where processes differ (VARIED), as a run reports it, which stops when it is sure."""
    whole: Rate
    """The same, from all rounds."""
    alike: Rate
    """As `reported`, of the planted program as it is, whose processes do not differ."""
    width: float
    """Median half-width of the reported one."""


@dataclass(frozen=True)
class Cost:
    """What measuring costs."""

    inside: float
    """Median share of the rounds' wall time within timed or wash-out steps."""
    recorded_ns: float
    """Recorded of a step beside the step itself: median."""
    untimed_ns: float
    """Between the spans, a step: median."""


@dataclass(frozen=True)
class Target:
    """A figure that the project has promised."""

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
    """Trials of each peer that failed."""


def compute(rows: Sequence[Row], seconds: float) -> Figures:
    """All figures; `seconds` is the measuring time of a pair in a trial of one process."""
    own = [row for row in rows if row["kind"] == "own"]
    peers = [row for row in rows if row["kind"] == "peer"]
    overheads = [row for row in rows if row["kind"] == "overhead"]
    large = [row for row in rows if row["kind"] == "report" and row["cells"] >= LARGE]
    patterns = list(dict.fromkeys(row["pattern"] for row in own))
    outcomes = {
        (pattern, launches): trials([row for row in own if row["pattern"] == pattern], launches)
        for pattern in patterns
        for launches in (1, LAUNCHES)
    }
    for launches in (1, LAUNCHES):
        outcomes[ALL, launches] = merged(outcomes[pattern, launches] for pattern in patterns)
    detectors = [
        own_detector(pattern, launches, found, seconds)
        for (pattern, launches), found in outcomes.items()
        if found[TWIN]
    ]
    answered = [row for row in peers if not row["error"]]
    detectors += [
        peer_detector(tool, pattern, chosen, seconds)
        for tool in dict.fromkeys(row["peer"] for row in answered)
        for pattern in (*patterns, ALL)
        if (chosen := [r for r in answered if r["peer"] == tool and pattern in (r["pattern"], ALL)])
    ]
    coverages = [
        coverage(pattern, launches, found[VARIED], found[TWIN])
        for (pattern, launches), found in outcomes.items()
        if found[TWIN]
    ]
    cost = costs(own, overheads) if own and overheads else None
    failed = [row["peer"] for row in peers if row["error"]]
    return Figures(
        detectors=detectors,
        coverages=coverages,
        cost=cost,
        targets=[
            *targets(detectors, coverages, cost, seconds),
            *(t for row in large for t in report_targets(row)),
        ],
        errors={name: failed.count(name) for name in dict.fromkeys(failed)},
    )


def trials(rows: Iterable[OwnRow], launches: int) -> dict[str, list[Outcome]]:
    """Outcomes by arm. With several launches, a trial takes one set of rounds from each process."""
    by_number: dict[int, list[OwnRow]] = {}
    for row in sorted(rows, key=lambda row: (row["number"], row["process"])):
        by_number.setdefault(row["number"], []).append(row)
    groups = [
        group
        for same in by_number.values()
        for first in range(0, len(same) - launches + 1, launches)
        for group in [same[first : first + launches]]
    ]
    outcomes = {
        arm: [replay([np.array(row["log_ratios"][arm]) for row in group]) for group in groups]
        for arm in SLOWDOWNS
    }
    outcomes[VARIED] = [
        replay([np.array(row["log_ratios"][TWIN]) + process_effect(row) for row in group])
        for group in groups
    ]
    return outcomes


def process_effect(row: OwnRow) -> float:
    """A known difference of the row's process: the same for all of its rounds."""
    seed = zlib.crc32(f"{row['pattern']}/{row['process']}/{row['number']}".encode())
    return float(PROCESS_SD * np.random.default_rng(seed).standard_normal())


def merged(parts: Iterable[dict[str, list[Outcome]]]) -> dict[str, list[Outcome]]:
    """Outcomes of several loads together."""
    whole: dict[str, list[Outcome]] = {arm: [] for arm in (*SLOWDOWNS, VARIED)}
    for part in parts:
        for arm, outcomes in part.items():
            whole[arm] += outcomes
    return whole


def replay(launches: Sequence[np.ndarray]) -> Outcome:
    """What the engine would have said of a block of two arms that gave these log ratios."""
    spending = AlphaSpending(sum(map(len, launches)))
    seen: list[np.ndarray] = []
    word: VerdictWord = "undecided"
    for number, series in enumerate(launches):
        last = number == len(launches) - 1
        for rounds in (*look_rounds(len(series)), len(series)):
            now = [*seen, series[:rounds]]
            alpha = spending.look(sum(map(len, now)), last_planned=last and rounds == len(series))
            word = decide(estimate(now), alpha).word
            if word != "undecided":
                break
        seen = now
    return Outcome(
        word,
        sum(map(len, seen)),
        estimate(seen),
        estimate(launches),
    )


def own_detector(
    pattern: str, launches: int, found: dict[str, list[Outcome]], seconds: float
) -> Detector:
    """Lockstep's own figures."""
    used = [outcome.rounds for outcomes in found.values() for outcome in outcomes]
    planted = {arm: found[arm] for arm in SLOWDOWNS if arm != TWIN}
    return Detector(
        tool=LOCKSTEP,
        pattern=pattern,
        seconds=launches * seconds,
        alarms=rate(found[TWIN], lambda o: o.word in ("faster", "slower")),
        found={arm: rate(o, lambda o: o.word == "slower") for arm, o in planted.items()},
        wrong=sum(
            o.word == "faster" or (o.word == "same" and SLOWDOWNS[arm] > 1 + MARGIN)
            for arm, outcomes in planted.items()
            for o in outcomes
        ),
        used_s=median(used) / ROUNDS * seconds,
    )


def peer_detector(tool: str, pattern: str, rows: list[PeerRow], seconds: float) -> Detector:
    """A peer's figures, by its own rule. One that cannot say has found nothing."""
    planted = {
        arm: [row for row in rows if row["slowdown"] == arm] for arm in SLOWDOWNS if arm != TWIN
    }
    return Detector(
        tool=tool,
        pattern=pattern,
        seconds=seconds,
        alarms=rate(
            [row for row in rows if row["slowdown"] == TWIN], lambda r: r["different"] is True
        ),
        found={
            arm: rate(chosen, lambda r: r["slower"] is True)
            for arm, chosen in planted.items()
            if chosen
        },
        wrong=sum(row["slower"] is False for chosen in planted.values() for row in chosen),
        used_s=median(row["measured_s"] for row in rows),
    )


def rate(of: Sequence[T], happened: Callable[[T], bool]) -> Rate:
    """How often it happened."""
    return Rate(sum(map(happened, of)), len(of))


def coverage(
    pattern: str, launches: int, outcomes: Sequence[Outcome], alike: Sequence[Outcome]
) -> Coverage:
    """Whether 1 was within the intervals."""

    def holds(ratio: Ratio) -> bool:
        interval = ratio.interval()
        return interval is not None and interval[0] <= 1 <= interval[1]

    widths = [o.reported.half_width() for o in outcomes if o.reported.error is not None]
    return Coverage(
        pattern=pattern,
        launches=launches,
        reported=rate(outcomes, lambda o: holds(o.reported)),
        whole=rate(outcomes, lambda o: holds(o.whole)),
        alike=rate(alike, lambda o: holds(o.reported)),
        width=median(widths),
    )


def costs(own: Sequence[OwnRow], overheads: Sequence[OverheadRow]) -> Cost:
    """What measuring costs, from the trials and from steps that do nothing."""
    # The least disturbed process: what the clock costs, not what the load adds.
    least = min(overheads, key=lambda row: row["throughput_ns"])
    return Cost(
        inside=median(row["inside_s"] / row["wall_s"] for row in own),
        recorded_ns=least["throughput_ns"] - least["call_ns"],
        untimed_ns=least["untimed_ns"],
    )


def targets(
    detectors: Sequence[Detector],
    coverages: Sequence[Coverage],
    cost: Cost | None,
    seconds: float,
) -> list[Target]:
    """What is promised, and what was measured over all loads."""
    found = []
    own = {d.seconds: d for d in detectors if d.tool == LOCKSTEP and d.pattern == ALL}
    if seconds in own:
        # The longer trials are too few for a bound: their share stands in the table.
        alarms = own[seconds].alarms
        met = alarms.value <= 0.01 and alarms.interval[1] <= 0.02  # noqa: PLR2004
        promise = "identical programs called different in at most 1 % (upper bound 2 %)"
        found.append(Target(promise, shown(alarms), met))
    for planted, launches, least in (("5 % slower", 1, 0.95), ("2 % slower", LAUNCHES, 0.90)):
        if launches * seconds in own:
            share = own[launches * seconds].found[planted]
            time = f"{launches * seconds:g} s"
            promise = f"{planted}: found in at least {100 * least:.0f} % at {time}"
            found.append(Target(promise, shown(share), share.value >= least))
    if own:
        wrong = sum(detector.wrong for detector in own.values())
        promise = "no slower program called faster, nor the same if beyond the margin"
        found.append(Target(promise, str(wrong), wrong == 0))
    for one in coverages:
        if one.pattern == ALL:
            processes = "process" if one.launches == 1 else "processes"
            promise = f"95 % interval covers in 93 to 97 %, {one.launches} {processes}"
            inside = 0.93 <= one.reported.value <= 0.97  # noqa: PLR2004
            found.append(Target(promise, shown(one.reported), inside))
    if cost is not None:
        found += [
            Target("at least 85 % of measuring within steps", f"{100 * cost.inside:.1f} %",
                   cost.inside >= 0.85),  # noqa: PLR2004
            Target("at most 100 ns recorded of a step beside it", f"{cost.recorded_ns:.0f} ns",
                   cost.recorded_ns <= 100),  # noqa: PLR2004
            Target("at most 1000 ns untimed a step", f"{cost.untimed_ns:.0f} ns",
                   cost.untimed_ns <= 1000),  # noqa: PLR2004
        ]  # fmt: skip
    return found


LARGE = 10_000
"""Cells of a run for whose report something is promised."""


def report_targets(row: ReportRow) -> list[Target]:
    """What is promised of building a report again, and of opening it."""
    size, painted = row["bytes"] / 1e6, row.get("first_paint_s")
    rebuilt = Target(
        f"report of {LARGE:,} cells rebuilt in at most 10 s and 20 MB",
        f"{row['cells']} cells: {row['seconds']:.1f} s, {size:.1f} MB",
        row["seconds"] <= 10 and size <= 20,  # noqa: PLR2004
    )
    if painted is None:
        return [rebuilt]
    return [
        rebuilt,
        Target(f"its first paint within 2 s of opening it ({LARGE:,} cells)", f"{painted:.2f} s",
               painted <= 2),  # noqa: PLR2004
    ]  # fmt: skip


def shown(share: Rate) -> str:
    """`3 of 288: 1.0 % (0.4 to 3.0 %)`."""
    if not share.of:
        return "no trials"
    low, high = share.interval
    value, low, high = (100 * part for part in (share.value, low, high))
    return f"{share.count} of {share.of}: {value:.1f} % ({low:.1f} to {high:.1f} %)"
