"""What is shown while blocks are measured: a live bar on a terminal, a line a block elsewhere."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as RichProgress
from rich.table import Column
from rich.text import Text

from bench.cells import STATUSES, Block
from bench.estimate import clock
from bench.protocol import PhaseEvent

STYLES = {
    "ok": "green",
    "wrong": "bold red",
    "unsupported": "yellow",
    "oom": "red",
    "timeout": "red",
    "crashed": "red",
}
"""Colours of the statuses."""


class Progress:
    """Counts launches, and says which block, phase and arm runs and about how long is left."""

    def __init__(self, console: Console, launches: int, seconds: float) -> None:
        self._console = console
        self._left = seconds
        """Estimated seconds of the launches that have not begun."""
        self._to_do, self._done = launches, 0
        self._began = 0.0
        self._seconds = 0.0
        self._bar = RichProgress(
            TextColumn(
                "{task.description}",
                markup=False,
                table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1),
            ),
            BarColumn(bar_width=12),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}", table_column=Column(no_wrap=True)),
            console=console,
            expand=True,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("starting", total=launches, left="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def begin(self, block: Block, launch: int, seconds: float) -> None:
        """A launch begins that is expected to take this long."""
        self._left = max(self._left - seconds, 0.0)
        self._began, self._seconds = time.monotonic(), seconds
        self._show(_name(block, launch))

    def phase(self, block: Block, event: PhaseEvent) -> None:
        """The worker has begun a phase."""
        of = f" {event['done']}/{event['of']}" if event["of"] else ""
        self._show(f"{block.name}: {event['phase']} {event['arm']}{of}")

    def end(
        self, block: Block, launch: int, statuses: Iterable[str], decided: int, compared: int
    ) -> None:
        """The launch has ended, its cells with these statuses; so many comparisons are decided."""
        counts = Counter(statuses)
        line = Text(_name(block, launch))
        line.append("  ")
        for number, status in enumerate(status for status in STATUSES if counts[status]):
            line.append(", " if number else "")
            line.append(f"{counts[status]} {status}", style=STYLES[status])
        if compared:
            line.append(f", {decided} of {compared} decided")
        line.append(f"  {clock(time.monotonic() - self._began)}", style="dim")
        self._console.print(line, soft_wrap=True)
        self._seconds = 0.0
        self._done += 1
        # Those that a budget adds were not counted before.
        self._bar.update(self._task, completed=self._done, total=max(self._done, self._to_do))

    def _show(self, description: str) -> None:
        spent = time.monotonic() - self._began
        left = self._left + max(self._seconds - spent, 0.0)
        self._bar.update(self._task, description=description, left=f"about {clock(left)} left")


def _name(block: Block, launch: int) -> str:
    """The block, and which launch of it, counted from 1 as people do; the first goes unsaid."""
    return f"{block.name} launch {launch + 1}" if launch else block.name
