"""A comparison of two runs on a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import Console, JustifyMethod, RenderableType
from rich.table import Column
from rich.text import Text

from bench.analyse.ratio_intervals import Ratio
from bench.analyse.run_changes import Change, Compared
from bench.present.comparison import comparison_sentences, comparison_tables
from bench.present.run_environment import started
from bench.present.terminal import plain, table
from bench.records import numbers
from bench.records.statuses import CHANGE_STYLES

WIDTH = 80
"""Columns of the terminal that are used."""

SHOWN = 8
"""Blocks, or reasons, that a list shows; the page has them all."""

_JUSTIFY: dict[str, JustifyMethod] = {"verdict": "left"}


def show(console: Console, compared: Compared) -> None:
    """Print what differs between the runs, then what changed; briefly if nothing compares."""
    for name, run in (("A", compared.a), ("B", compared.b)):
        console.print(plain(f"{name}  {run['run']}, started {started(run)}"))
    console.print(plain(comparison_sentences.setting(compared)), style="bold")
    if compared.changes:
        for each in compared.differences:
            console.print(plain(f"  {each.name}: {each.a} -> {each.b}"))
        console.print(plain(comparison_sentences.APART), style="dim")
        for part in _tables(compared):
            console.print(part)
    for group in comparison_tables.endings(compared):
        console.print(Text("\nended differently", style="yellow"))
        _list(console, (f"A {group.a}", f"B {group.b}"))
        _list(console, group.cells)
    missing = comparison_tables.missing(compared)
    if missing:
        console.print(Text("\nin one run only", style="yellow"))
        _list(console, [f"{g.a}: {numbers.count(g.number, 'cell')}; {g.b}" for g in missing])
    for caveat in comparison_sentences.caveats(compared):
        console.print(Text(f"\n{caveat.title}. ", style="bold").append(plain(caveat.text)))
    console.print(Text(f"\n{comparison_sentences.tally(compared)}", style="bold"))
    console.print(comparison_sentences.basis(compared))


def _list(console: Console, lines: Iterable[str]) -> None:
    first, more = [*lines][:SHOWN], [*lines][SHOWN:]
    for line in first:
        console.print(plain(f"  {line}"))
    if more:
        console.print(f"  and {len(more)} more")


def _tables(compared: Compared) -> Iterator[RenderableType]:
    """Yield the changes block by block, with aligned columns."""
    widths = {"step time": 16, "to baseline": 19, "verdict": 11}
    widths |= {"compile": 7} if any(change.compile for change in compared.changes) else {}
    widths |= {"memory": 6} if any(change.memory for change in compared.changes) else {}
    names = Column("", width=WIDTH - sum(widths.values()) - len(widths), overflow="fold")
    yield Text("\nB over A (95 %)", style="bold")
    header = True
    for one, _ in compared.blocks:
        changes = [change for change in compared.changes if change.block == one.name]
        if not changes:
            continue
        title = plain(one.name)
        title.stylize("bold")
        yield title
        columns = [
            Column(name, width=width, overflow="fold", justify=_JUSTIFY.get(name, "right"))
            for name, width in widths.items()
        ]
        shown = table(names, *columns, gap=1, header=header)
        for change in changes:
            shown.add_row(plain(change.implementation), *(_cell(change, name) for name in widths))
        yield shown
        header = False
    if any(change.source == "step time" for change in compared.changes):
        yield Text("* on step times, which are not paired", style="dim")
    if "compile" in widths:
        yield Text("compile: one first call in each run, so no verdict", style="dim")


def _cell(change: Change, column: str) -> Text:
    match column:
        case "verdict":
            word = change.verdict.word
            mark = " *" if change.source == "step time" else ""
            return Text(f"{word}{mark}", style=CHANGE_STYLES[word])
        case "step time":
            return Text(_ratio(change.step, 2))
        case "to baseline":
            against = change.against_baseline
            return Text("-" if against is None else _ratio(against, 3))
        case _:
            ratio = change.compile if column == "compile" else change.memory
            return Text("" if ratio is None else _number(ratio, 2))


def _ratio(ratio: Ratio, decimals: int) -> str:
    """`1.08 (0.91-1.29)`."""
    value, *ends = (
        "" if number is None else _number(number, decimals)
        for number in (ratio.value, ratio.low, ratio.high)
    )
    return f"{value} ({'-'.join(ends)})" if all(ends) else value


def _number(value: float, decimals: int) -> str:
    return f"{value:.{decimals}f}" if value < 10 else numbers.significant(value)  # noqa: PLR2004
