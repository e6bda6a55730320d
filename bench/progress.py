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
    """Counts cells, and says which block, phase and arm runs and about how long is left."""

    def __init__(self, console: Console, cells: int, seconds: float) -> None:
        self._console = console
        self._left = seconds
        """Estimated seconds of the blocks that have not begun."""
        self._block_began = 0.0
        self._block_seconds = 0.0
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
        self._task = self._bar.add_task("starting", total=cells, left="")

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

    def begin(self, block: Block, seconds: float) -> None:
        """A block begins that is expected to take this long."""
        self._left = max(self._left - seconds, 0.0)
        self._block_began, self._block_seconds = time.monotonic(), seconds
        self._show(block.name)

    def phase(self, block: Block, event: PhaseEvent) -> None:
        """The block's worker has begun a phase."""
        of = f" {event['done']}/{event['of']}" if event["of"] else ""
        self._show(f"{block.name}: {event['phase']} {event['arm']}{of}")

    def end(self, block: Block, statuses: Iterable[str]) -> None:
        """The block has ended, its cells with these statuses."""
        counts = Counter(statuses)
        line = Text(block.name)
        line.append("  ")
        for number, status in enumerate(status for status in STATUSES if counts[status]):
            line.append(", " if number else "")
            line.append(f"{counts[status]} {status}", style=STYLES[status])
        line.append(f"  {clock(time.monotonic() - self._block_began)}", style="dim")
        self._console.print(line, soft_wrap=True)
        self._block_seconds = 0.0

    def cell_done(self) -> None:
        """One more cell has its result."""
        self._bar.advance(self._task)

    def _show(self, description: str) -> None:
        spent = time.monotonic() - self._block_began
        left = self._left + max(self._block_seconds - spent, 0.0)
        self._bar.update(self._task, description=description, left=f"about {clock(left)} left")
