"""The closing lines of a run on the terminal: the answer, what failed, and what to do next."""

import math
from collections.abc import Iterator, Sequence

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.text import Text

from bench.analyse import cell_table, loss_curves
from bench.analyse.cell_table import Tables
from bench.analyse.comparisons import Comparison
from bench.analyse.verdicts import Claim
from bench.present import phase_tables, run_tables, sentences
from bench.present.bounds import bound_of, percentage, within
from bench.present.caveats import busy
from bench.present.cell_columns import Row
from bench.present.command_lines import resuming
from bench.present.sentences import Summary
from bench.present.terminal import plain, table
from bench.records import numbers
from bench.records.grouping import grouped
from bench.records.messages import repeated_s
from bench.records.paths import as_typed
from bench.records.printable import shortened
from bench.records.rows import is_resumable
from bench.records.statuses import STATUSES
from bench.records.store import Run

FEW_BLOCKS = 2
"""Runs with at most this many blocks get a line for each block below the answer."""

MOST = 12
"""Limit on the subjects (workloads with options), and on the reasons, that are shown."""

INDENT = "  "

LONGEST_S = 6 * 3600.0
"""Longest expected duration of a command that is suggested."""


def print_answers(console: Console, run: Run) -> None:
    """Print only the answer for each workload."""
    for part in _answers(sentences.summaries(cell_table.build(run))):
        console.print(part)


def print_summary(console: Console, run: Run, found: Tables) -> None:
    """Print the answers, the failures and the counts; no line is wider than the console."""
    ended = sentences.counted((cell["status"] for cell in found.rows), STATUSES)
    parted = phase_tables.parted_losses(loss_curves.find(found))
    for part in (
        *_answers(sentences.summaries(found)),
        *([plain(parted)] if parted else []),
        *_failures(found.rows),
        Text(f"{numbers.count(len(found.rows), 'cell')}: {ended or 'none'}"),
    ):
        console.print(part)
    for line in next_steps(found, run):
        command = line.startswith(INDENT)
        console.print(line if command else plain(line), soft_wrap=command, markup=False)


def _answers(every: Sequence[Summary]) -> Iterator[RenderableType]:
    """Yield the answer for each subject; if there are few blocks, the statements about each."""
    subjects = sentences.by_subject(every)
    for subject, own in subjects[:MOST]:
        first, *others = {each.comparison.block.batch for each in own}
        yield Text(subject if others else f"{subject}, batch {first}", "bold")
        for sentence in sentences.advice(own) if len(own) > 1 else ():
            yield Padding.indent(plain(sentence), 2)
        if len(own) == 1 or len(every) <= FEW_BLOCKS:
            rows = [(each.among(own), each.step, each.text()) for each in own]
            yield Padding.indent(table("place", "step", "sure", rows=rows, header=False), 2)
    if len(subjects) > MOST:
        left = len(subjects) - MOST
        yield Text(f"and {left} more workloads or options in the report", "dim")


def _failures(cells: Sequence[Row]) -> Iterator[RenderableType]:
    """Yield every reason once, with the cells that failed for it."""
    endings = run_tables.endings(cells)
    failed = [row for row in endings.rows if STATUSES[row["status"]].failure]
    for row in failed[:MOST]:
        first, *others = row["cells"]
        line = Text("\n").append(row["status"], STATUSES[row["status"]].style).append(f"  {first}")
        if others:
            line.append(f" and {numbers.count(len(others), 'more cell')}")
        yield line
        yield Padding.indent(plain(shortened(row["reason"]), "dim"), 2)
    if (left := len(failed) - MOST) > 0:
        yield Text(f"\nand {numbers.count(left, 'more reason')} in the report", style="dim")


def next_steps(found: Tables, run: Run) -> Iterator[str]:
    """Yield what is undecided and why, and commands to decide it; nothing if all is decided.

    Commands are on indented lines of their own, which must not be wrapped.
    """
    if not is_resumable(run.manifest):
        return
    left = [
        (block, claims)
        for block in found.comparisons
        if (claims := [one for one in block.claims.values() if not one.verdict.decided])
    ]
    resume = f"{INDENT}{as_typed('run')} {resuming(run.directory.name, run.manifest)}"
    bounds = [bound_of(one.verdict.low, one.verdict.high) for _, claims in left for one in claims]
    if not bounds:
        ranked = [(b.standings.largest_ratio, b.margin) for b in found.comparisons if b.claims]
        if (far := max((ratio for ratio, margin in ranked if ratio > 1 + margin), default=0)) > 0:
            how = "have no bound yet" if math.isinf(far) else f"may differ by {percentage(far)}"
            yield f"The leaders of a block {how}. To measure for one more minute:"
            yield f"{resume} --budget 60"
        return
    bound, unbounded = max(bounds), sum(map(math.isinf, bounds))
    sure = f"but {within(bound)}" if not unbounded else f"{unbounded} without any bound"
    count = numbers.count(len(bounds), "comparison is", "comparisons are")
    few = "there are too few rounds" if unbounded == len(bounds) else ""
    small = "the differences are small for so few rounds"
    why = few or "; ".join(busy([block for block, _ in left])) or small
    yield f"{count} undecided, {sure}: {why}."
    seconds = _needed(left, run)
    if seconds <= LONGEST_S:
        yield f"To decide more, in about {numbers.clock(seconds)}:"
        yield f"{resume} --budget {seconds:.0f}"
    else:
        yield "More rounds are unlikely to decide. To measure for one more minute anyway:"
        yield f"{resume} --budget 60"
    if 1 < bound < 2:  # noqa: PLR2004 - a margin of 100 % says nothing
        percent = math.ceil(round(1000 * (bound - 1), 6)) / 10
        yield f"To decide now, treating differences below {percent:g} % as equal:"
        yield f"{resume} --margin {percent:g}"


def _needed(left: list[tuple[Comparison, list[Claim]]], run: Run) -> float:
    """Return the seconds of measuring that would probably decide all claims with an interval."""
    rows = (((row["block"], row["launch"]), repeated_s(row["seconds"])) for row in run.block_rows)
    launches, total = grouped(rows), 0.0
    for block, claims in left:
        took = [sum(own) for (name, _), own in launches.items() if name == block.name]
        more = (len(took) * (one.to_decide - 1) for one in claims if math.isfinite(one.to_decide))
        # Rounds are added by whole launches, at least one, each like the last.
        total += max([1.0, *more]) * took[-1]
    return max(60.0, math.ceil(total / 10) * 10)
