"""Terminal output: tables, counters, and stored text without control characters."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from rich import progress
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from bench.present import columns
from bench.records import numbers
from bench.records.statuses import CHANGE_STYLES

_LINES = 10
"""Lines that a counter prints where the display cannot be updated in place."""


def live(console: Console) -> bool:
    """Return whether the console's display can be updated in place.

    FORCE_COLOR makes rich treat a pipe as a terminal, which is right for colours but not for this.
    """
    return console.is_terminal and not console.is_dumb_terminal and console.file.isatty()


def plain(text: str, style: str = "") -> Text:
    """Return stored text with spaces for all unprintable characters but `numbers.NARROW`."""
    kept = (c if c.isprintable() or c == numbers.NARROW else " " for c in text)
    return Text("".join(kept), style)


def table(
    *headings: str | Column,
    rows: Iterable[Sequence[str | Text]] = (),
    gap: int = 2,
    header: bool = True,
) -> Table:
    """Return a table without lines; `table.add_row` adds rows.

    A heading is one of rich's columns, or a name: `name` for text, which is folded if there is no
    room, `>name` for numbers, which are right-aligned and never folded. `gap` is the number of
    spaces between columns.
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


def show(console: Console, content: columns.Table, *, changes: bool = False) -> None:
    """Print a table with its facts and remarks; repeated row names are left out.

    In a table of `changes`, each figure's qualifier follows it in brackets, and verdicts have the
    colours of CHANGE_STYLES.
    """
    headings = (
        Column(
            each.title, justify="left" if each.left else "right", overflow="fold", min_width=6,
            no_wrap=changes and not each.left,
        )
        for each in content.shown("text")
    )  # fmt: skip
    shown = table(*headings, gap=1)
    last = ""
    for first, *others in content.body:
        name = f"{first.main}, {first.note}" if first.note else first.main
        cells = [plain("" if name == last else name)]
        for figure in others:
            noted = f"{figure.main} ({figure.note})" if changes and figure.note else figure.main
            style = CHANGE_STYLES.get(noted.partition(" ")[0], "") if changes else ""
            cells.append(plain(noted, style))
        shown.add_row(*cells)
        last = name
    console.print(Text(f"\n{content.title}", style="bold"), shown)
    for sentence in (*content.facts, *content.remarks):
        console.print(plain(sentence, "dim"))


@contextmanager
def activity(console: Console, text: str) -> Iterator[None]:
    """Show an activity and its duration: a live line on a terminal, a plain line elsewhere."""
    if not live(console):
        console.print(text, markup=False, soft_wrap=True)
        yield
        return
    cut = Column(no_wrap=True, overflow="ellipsis", ratio=1)
    described = progress.TextColumn("{task.description}", markup=False, table_column=cut)
    parts = progress.SpinnerColumn(), described, progress.TimeElapsedColumn()
    with progress.Progress(*parts, console=console, transient=True, expand=True) as shown:
        shown.add_task(text, total=None)
        yield


@contextmanager
def counter(console: Console, doing: str, done: str) -> Iterator[Callable[[int, int], None]]:
    """Show progress: a bar and the time left on a terminal, a few lines elsewhere.

    `doing` names the activity, such as `compiling steps`; `done` is the text of a line, with two
    placeholders: `compiled {} of {} steps`. Yields a function to call with the number of items done
    and the total.
    """
    if not live(console):

        def tell(count: int, of: int) -> None:
            if count * _LINES // of > (count - 1) * _LINES // of:
                console.print(done.format(count, of))

        yield tell
        return
    parts = (
        *(progress.TextColumn(doing), progress.BarColumn(), progress.MofNCompleteColumn()),
        *(progress.TimeElapsedColumn(), progress.TextColumn("left:")),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*parts, console=console, transient=True) as shown:
        task = shown.add_task("", total=None, visible=False)
        yield lambda count, of: shown.update(task, completed=count, total=of, visible=True)
