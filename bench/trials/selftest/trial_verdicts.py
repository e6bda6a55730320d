"""Verdicts of Lockstep and its peers on planted programs, from the rows of a self-test."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

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


def judgements(
    outcomes: Mapping[tuple[str, int], Outcomes], peers: Iterable[PeerRow], seconds: float
) -> pd.DataFrame:
    """The verdicts of all tools, each by its own rule, under each load and ALL.

    Args:
      outcomes: Lockstep's.
      peers: the peers' rows. A trial that failed does not count; one without a verdict detects
        nothing.
      seconds: the measuring time of a pair in one process.

    Returns:
      One row a trial and load, with the columns `tool`, `pattern`, `seconds` (measuring time at
      most), `arm`, `different`, `slower`, `wrong` (a slower program was called faster, or the same
      although larger than the margin) and `used_s` (measuring time that was used).
    """
    own = [
        (LOCKSTEP, pattern, launches * seconds, arm, each.word in ("faster", "slower"),
         each.word == "slower",
         each.word == "faster" or (each.word == "same" and SLOWDOWNS.get(arm, 1) > 1 + MARGIN),
         each.rounds / ROUNDS * seconds)
        for (pattern, launches), by_arm in outcomes.items()
        for arm, found in by_arm.items()
        for each in found
    ]  # fmt: skip
    others = [
        (row["peer"], pattern, seconds, row["slowdown"], row["different"] is True,
         row["slower"] is True, row["slower"] is False, row["measured_s"])
        for row in peers
        if not row["error"]
        for pattern in (row["pattern"], ALL)
    ]  # fmt: skip
    columns = ["tool", "pattern", "seconds", "arm", "different", "slower", "wrong", "used_s"]
    return pd.DataFrame([*own, *others], columns=columns)
