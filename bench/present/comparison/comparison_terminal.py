"""A comparison of two runs on the terminal, in 80 columns. Imports no jax."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from bench.present.comparison import comparison_sentences, comparison_tables
from bench.present.run_environment import started
from bench.present.terminal import plain
from bench.records import numbers
from bench.records.statuses import CHANGE_STYLES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.console import Console, RenderableType

    from bench.analyse.ratio_intervals import Ratio
    from bench.analyse.run_changes import Change, Compared


WIDTH = 80
"""Columns of the terminal that are used."""

SHOWN = 8
"""Blocks that are listed of those in which the same is missing, or ended in the same way."""


def show(console: Console, found: Compared) -> None:
    """Print what differs between the runs, then what changed."""
    for name, run in (("A", found.a), ("B", found.b)):
        console.print(plain(f"{name}  {run['run']}, started {started(run)}"))
    console.print(plain(comparison_sentences.setting(found)), style="bold")
    for difference in found.differences:
        console.print(plain(f"  {difference.name}: {difference.a} -> {difference.b}"))
    console.print(plain(comparison_sentences.APART), style="dim")
    if found.changes:
        for part in _tables(found):
            console.print(part)
    for ending in comparison_tables.endings(found):
        console.print(Text("\nended differently", style="yellow"))
        console.print(plain(f"  A {ending.a}"))
        console.print(plain(f"  B {ending.b}"))
        _list(console, ending.cells)
    for group in comparison_tables.missing(found):
        console.print(Text(f"\nonly in {group.run}  ", style="yellow").append(plain(group.absence)))
        _list(console, group.cells)
    for caveat in comparison_sentences.caveats(found):
        console.print(Text(f"\n{caveat.title}. ", style="bold").append(plain(caveat.text)))
    console.print(Text(f"\n{comparison_sentences.tally(found)}", style="bold"))
    console.print(comparison_sentences.basis(found))


def _list(console: Console, lines: Sequence[str]) -> None:
    for line in lines[:SHOWN]:
        console.print(plain(f"  {line}"))
    if len(lines) > SHOWN:
        console.print(f"  and in {len(lines) - SHOWN} blocks more")


def _tables(found: Compared) -> Iterator[RenderableType]:
    """The changes block by block, in columns that stand below one another."""
    columns = {"step time": 16, "to baseline": 19, "verdict": 11}
    columns |= {"compile": 7} if any(change.compile for change in found.changes) else {}
    columns |= {"memory": 6} if any(change.memory for change in found.changes) else {}
    names = WIDTH - sum(columns.values()) - len(columns)
    yield Text("\nB over A (95 %)", style="bold")
    header = True
    for one, _ in found.blocks:
        changes = [change for change in found.changes if change.block == one.name]
        if not changes:
            continue
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), show_header=header)
        table.add_column("", width=names, overflow="fold")
        for name, width in columns.items():
            left = name == "verdict"
            table.add_column(
                name, width=width, overflow="fold", justify="left" if left else "right"
            )
        for change in changes:
            table.add_row(*_row(change, columns))
        title = plain(one.name)
        title.stylize("bold")
        yield title
        yield table
        header = False
    if any(change.source == "step time" for change in found.changes):
        yield Text("* on step times, which are not paired", style="dim")
    if "compile" in columns:
        yield Text("compile: one first call in each run, so no verdict", style="dim")


def _row(change: Change, columns: Iterable[str]) -> list[Text]:
    word = change.verdict.word
    mark = " *" if change.source == "step time" else ""
    against = change.against_baseline
    cells = {
        "step time": Text(_ratio(change.step, 2)),
        "to baseline": Text("-" if against is None else _ratio(against, 3)),
        "verdict": Text(f"{word}{mark}", style=CHANGE_STYLES[word]),
        "compile": Text("" if change.compile is None else _number(change.compile, 2)),
        "memory": Text("" if change.memory is None else _number(change.memory, 2)),
    }
    return [plain(change.implementation), *(cells[name] for name in columns)]


def _ratio(ratio: Ratio, decimals: int) -> str:
    """`1.08 (0.91-1.29)`."""
    if ratio.low is None or ratio.high is None:
        return _number(ratio.value, decimals)
    low, high = (_number(end, decimals) for end in (ratio.low, ratio.high))
    return f"{_number(ratio.value, decimals)} ({low}-{high})"


def _number(value: float, decimals: int) -> str:
    return f"{value:.{decimals}f}" if value < 10 else numbers.significant(value)  # noqa: PLR2004
