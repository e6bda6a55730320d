"""A comparison of two runs on a terminal of 80 columns."""

from collections.abc import Iterable
from dataclasses import replace

from rich.console import Console
from rich.text import Text

from bench.analyse.run_changes import Compared
from bench.present import terminal
from bench.present.comparison import comparison_sentences, comparison_tables
from bench.present.run_environment import started
from bench.present.terminal import plain
from bench.records import numbers
from bench.records.statuses import CHANGE_STYLES

SHOWN = 8
"""Blocks, or reasons, that a list shows; the page shows all."""


def show(console: Console, compared: Compared) -> None:
    """Print the differences between the runs, then the changes; briefly if nothing compares."""
    for name, run in (("A", compared.a), ("B", compared.b)):
        console.print(plain(f"{name}  {run['run']}, started {started(run)}"))
    console.print(plain(comparison_sentences.setting(compared)), style="bold")
    if compared.changes:
        for each in compared.differences:
            console.print(plain(f"  {each.name}: {each.a} -> {each.b}"))
        console.print(plain(comparison_sentences.APART), style="dim")
        console.print(Text("\nB over A (95 %)", style="bold"))
        for block in comparison_tables.blocks(compared):
            brief = replace(block, columns=comparison_tables.SHORT, facts=())
            terminal.show(console, brief, notes=True, styles=CHANGE_STYLES)
        if any(change.source == "step time" for change in compared.changes):
            console.print(Text("* on step times, which are not paired", style="dim"))
        if any(change.compile for change in compared.changes):
            console.print(Text("Compile: one first call in each run, so no verdict", style="dim"))
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
