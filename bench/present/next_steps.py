"""Next steps for undecided comparisons: the reason, and the command that continues the run."""

import math
from collections.abc import Iterator

from bench.analyse.cell_table import Tables
from bench.analyse.comparisons import Comparison
from bench.analyse.verdicts import Claim
from bench.present.sentences import bound_of, within
from bench.records import numbers
from bench.records.paths import PROGRAM
from bench.records.store import Run

BUSY = 0.05
"""Share of the cores' time from which on other processes are named as the reason."""

INDENT = "  "
"""Indentation of a command."""

LONGEST_S = 6 * 3600.0
"""Longest expected duration of a command that is suggested."""


def lines(found: Tables, run: Run) -> Iterator[str]:
    """Yield the known bound, the reason, and commands; nothing if all comparisons are decided.

    Commands are on indented lines of their own, which must not be wrapped.
    """
    left = [
        (block, claims)
        for block in found.comparisons
        if (claims := [one for one in block.claims.values() if not one.verdict.decided])
    ]
    every = [claim for _, claims in left for claim in claims]
    if not every:
        return
    bound = max(bound_of(claim.verdict.low, claim.verdict.high) for claim in every)
    sure = "some without any bound" if math.isinf(bound) else f"all {within(bound)}"
    count = numbers.count(len(every), "comparison is", "comparisons are")
    yield f"{count} undecided, {sure}: {_why([block for block, _ in left])}."
    resume = f"{INDENT}{PROGRAM} run --resume {run.directory.name}"
    seconds = _needed(left, run)
    if seconds <= LONGEST_S:
        yield "To decide more, by an estimate of the time that it takes:"
        yield f"{resume} --budget {seconds:.0f}"
    else:
        yield "More rounds are unlikely to decide. To measure for one more minute anyway:"
        yield f"{resume} --budget 60"
    if 1 < bound < 2:  # noqa: PLR2004 - a margin of 100 % says nothing
        percent = math.ceil(round(1000 * (bound - 1), 6)) / 10
        yield f"To decide now, treating differences below {percent:g} % as equal:"
        yield f"{resume} --margin {percent:g}"


def _why(blocks: list[Comparison]) -> str:
    """Return why comparisons are undecided: the largest disturbance, or small differences."""
    known = [block.conditions for block in blocks if block.conditions]
    shares = {
        "other processes": max((one.foreign for one in known), default=0.0),
        "other guests of the host": max((one.steal for one in known), default=0.0),
    }
    worst = max(shares, key=lambda name: shares[name])
    if shares[worst] > BUSY:
        return f"{worst} took up to {numbers.percent(shares[worst])} of the cores' time"
    return "the differences are small for so few rounds"


def _needed(left: list[tuple[Comparison, list[Claim]]], run: Run) -> float:
    """Return the seconds that would probably decide all claims that have an interval."""
    seconds = {block.name: 0.0 for block, _ in left}
    for row in run.block_rows:
        if row["block"] in seconds:
            seconds[row["block"]] += sum(row["seconds"].values())
    total = sum(
        # Rounds are added by whole launches, at least one.
        max([1.0, *(one.to_decide - 1 for one in claims if math.isfinite(one.to_decide))])
        * seconds[block.name]
        for block, claims in left
    )
    return max(60.0, math.ceil(total / 10) * 10)
