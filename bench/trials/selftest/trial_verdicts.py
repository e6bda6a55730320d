"""Verdicts of Lockstep and its peers on planted programs, from the rows of a self-test."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from bench.analyse.ratio_intervals import PROCESS_SD, Ratio, estimate
from bench.analyse.verdicts import AlphaSpending, decide, look_rounds
from bench.records.arms import TWIN
from bench.records.statuses import MARGIN, VerdictWord
from bench.trials.selftest.selftest_settings import LAUNCHES
from bench.trials.selftest.trial_rows import ROUNDS, SLOWDOWNS, OwnRow, PeerRow

LOCKSTEP = "Lockstep"
ALL = "all loads"
VARIED = "processes differ"
"""The twin with a known difference between processes added, of the size that intervals allow for.
Processes of a model differ by their memory layout; the planted program uses no memory."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of one trial of Lockstep, as the engine would have measured it."""

    word: VerdictWord
    rounds: int
    """Rounds until the verdict."""
    reported: Ratio
    """The ratio from these rounds."""
    whole: Ratio
    """The ratio from all rounds, which no stopping rule affects."""


Outcomes = dict[str, list[Outcome]]
"""Outcomes by arm."""


@dataclass(frozen=True)
class Judgement:
    """What one tool said of one pair of programs."""

    tool: str
    pattern: str
    seconds: float
    """Measuring time of the pair, at most."""
    arm: str
    different: bool
    slower: bool
    wrong: bool
    """Whether a slower program was called faster, or the same in spite of a larger margin."""
    used_s: float
    """Measuring time that was used."""


def trial_outcomes(rows: Sequence[OwnRow]) -> dict[tuple[str, int], Outcomes]:
    """Non-empty outcomes by load, with ALL last, and number of launches."""
    patterns = list(dict.fromkeys(row["pattern"] for row in rows))
    outcomes = {
        (pattern, launches): trials([row for row in rows if row["pattern"] == pattern], launches)
        for pattern in patterns
        for launches in (1, LAUNCHES)
    }
    for launches in (1, LAUNCHES):
        outcomes[ALL, launches] = {
            arm: [each for pattern in patterns for each in outcomes[pattern, launches][arm]]
            for arm in (*SLOWDOWNS, VARIED)
        }
    return {key: found for key, found in outcomes.items() if found[TWIN]}


def trials(rows: Iterable[OwnRow], launches: int) -> Outcomes:
    """Outcomes under one load. With several launches, a trial has rounds from as many processes."""
    by_number: dict[int, list[OwnRow]] = {}
    for row in sorted(rows, key=lambda row: (row["number"], row["process"])):
        by_number.setdefault(row["number"], []).append(row)
    groups = [
        same[first : first + launches]
        for same in by_number.values()
        for first in range(0, len(same) - launches + 1, launches)
    ]
    outcomes = {
        arm: [replay([np.array(row["log_ratios"][arm]) for row in group]) for group in groups]
        for arm in SLOWDOWNS
    }
    outcomes[VARIED] = [
        replay([np.array(row["log_ratios"][TWIN]) + _process_effect(row) for row in group])
        for group in groups
    ]
    return outcomes


def _process_effect(row: OwnRow) -> float:
    """A known difference of the row's process, the same for all its rounds."""
    seed = zlib.crc32(f"{row['pattern']}/{row['process']}/{row['number']}".encode())
    return float(PROCESS_SD * np.random.default_rng(seed).standard_normal())


def replay(launches: Sequence[np.ndarray]) -> Outcome:
    """The engine's verdict on a block of two arms with these log ratios, one array a launch."""
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
    return Outcome(word, sum(map(len, seen)), estimate(seen), estimate(launches))


def own_judgements(outcomes: dict[tuple[str, int], Outcomes], seconds: float) -> list[Judgement]:
    """Lockstep's verdicts under each load; `seconds` is the measuring time of one process."""
    return [
        Judgement(
            tool=LOCKSTEP,
            pattern=pattern,
            seconds=launches * seconds,
            arm=arm,
            different=each.word in ("faster", "slower"),
            slower=each.word == "slower",
            wrong=each.word == "faster"
            or (each.word == "same" and SLOWDOWNS.get(arm, 1) > 1 + MARGIN),
            used_s=each.rounds / ROUNDS * seconds,
        )
        for (pattern, launches), by_arm in outcomes.items()
        for arm, found in by_arm.items()
        for each in found
    ]


def peer_judgements(rows: Sequence[PeerRow], seconds: float) -> list[Judgement]:
    """The peers' verdicts by their own rules, under each load and all. No verdict finds nothing."""
    return [
        Judgement(
            tool=row["peer"],
            pattern=pattern,
            seconds=seconds,
            arm=row["slowdown"],
            different=row["different"] is True,
            slower=row["slower"] is True,
            wrong=row["slower"] is False,
            used_s=row["measured_s"],
        )
        for row in rows
        if not row["error"]
        for pattern in (row["pattern"], ALL)
    ]
