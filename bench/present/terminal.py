"""Terminal output: tables, counters, and stored text without control characters."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column, Table
from rich.text import Text

from bench.present import columns

_LINES = 10
"""Lines that a counter prints where nothing can be drawn over."""


def live(console: Console) -> bool:
    """Whether the console can be drawn over.

    FORCE_COLOR makes rich take a pipe for a terminal: good for colours, not for a display.
    """
    return console.is_terminal and not console.is_dumb_terminal and console.file.isatty()


def plain(text: str) -> Text:
    """Stored text with a space for every character that is not printable."""
    return Text("".join(c if c.isprintable() else " " for c in text))


def table(
    *headings: str | Column,
    rows: Iterable[Sequence[str | Text]] = (),
    gap: int = 2,
    header: bool = True,
) -> Table:
    """A table without lines; `table.add_row` takes further rows.

    Args:
      headings: names of columns: `name` for text, which is folded where there is no room,
        `>name` for numbers, which are aligned right and never folded; or rich's own columns.
      rows: a cell for each heading.
      gap: spaces between columns.
      header: whether to show the headings.
    """
    shown = Table(
        *map(_column, headings), box=None, pad_edge=False, padding=(0, gap, 0, 0),
        show_header=header,
    )  # fmt: skip
    for row in rows:
        shown.add_row(*(plain(cell) if isinstance(cell, str) else cell for cell in row))
    return shown


def _column(heading: str | Column) -> Column:
    if isinstance(heading, Column):
        return heading
    if heading.startswith(">"):
        return Column(heading[1:], justify="right", no_wrap=True)
    return Column(heading, overflow="fold")


def show(
    console: Console,
    content: columns.Table,
    *,
    notes: bool = False,
    styles: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Print a table with its facts and remarks; a name that repeats is left out.

    Args:
      console: where to print.
      content: the table.
      notes: whether figures have what qualifies them, in brackets behind them; they stay on a line.
      styles: styles of figures, by their first word.
    """
    headings = (
        Column(
            each.main, justify="left" if left else "right", overflow="fold", min_width=6,
            no_wrap=notes and not left,
        )
        for each, left in zip(content.headings, content.left, strict=True)
    )  # fmt: skip
    shown = table(*headings, gap=1)
    last = ""
    for line in content.body:
        name = f"{line.name}, {line.note}" if line.note else line.name
        cells = [plain("" if name == last else name)]
        for figure in line.figures:
            noted = f"{figure.main} ({figure.note})" if notes and figure.note else figure.main
            text = plain(noted)
            text.stylize(styles.get(noted.partition(" ")[0], ""))
            cells.append(text)
        shown.add_row(*cells)
        last = name
    console.print(Text(f"\n{content.title}", style="bold"))
    console.print(shown)
    for sentence in (*content.facts, *content.remarks):
        console.print(plain(sentence), style="dim")


@contextmanager
def activity(console: Console, text: str) -> Iterator[None]:
    """Show what goes on and for how long: a live line on a terminal, a plain line elsewhere."""
    if not live(console):
        console.print(text, markup=False, soft_wrap=True)
        yield
        return
    cut = Column(no_wrap=True, overflow="ellipsis", ratio=1)
    told = TextColumn("{task.description}", markup=False, table_column=cut)
    parts = SpinnerColumn(), told, TimeElapsedColumn()
    with Progress(*parts, console=console, transient=True, expand=True) as shown:
        shown.add_task(text, total=None)
        yield


@contextmanager
def counter(console: Console, doing: str, done: str) -> Iterator[Callable[[int, int], None]]:
    """Show how much of something is done: a bar and the time left, or some lines elsewhere.

    Args:
      console: where to show it.
      doing: what goes on: `compiling steps`.
      done: what a line says, with places for two numbers: `compiled {} of {} steps`.

    Yields:
      A function to call with how many are done, and of how many.
    """
    if not live(console):

        def tell(count: int, of: int) -> None:
            if count * _LINES // of > (count - 1) * _LINES // of:
                console.print(done.format(count, of))

        yield tell
        return
    parts = (
        TextColumn(doing), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("left:"), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*parts, console=console, transient=True) as shown:
        task = shown.add_task("", total=None, visible=False)
        yield lambda count, of: shown.update(task, completed=count, total=of, visible=True)
