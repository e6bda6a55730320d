"""What is shown while batches are searched: live on a terminal, a line a step elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Column

from bench.present.terminal import live
from bench.records.cells import Cell
from bench.records.mesh import MeshShape
from bench.records.numbers import count


class Display:
    """Shows how many cells are done, and what is compiled or run meanwhile.

    Args:
      console: of stderr, since results go to stdout.
      cells: of how many the largest batch is to be found.
    """

    def __init__(self, console: Console, cells: int) -> None:
        self._console = console
        self._live = live(console)
        self.done, self.of = 0, cells
        self._rounds = Counter[MeshShape]()

    @contextmanager
    def compiling(self, cells: Sequence[Cell]) -> Iterator[None]:
        """A round of the search: cells of one mesh, at least one."""
        mesh = cells[0].block.mesh
        self._rounds[mesh] += 1
        batches = ", ".join(map(str, sorted({cell.block.batch for cell in cells})))
        what = f"compiling {count(len(cells), 'cell')}, batch {batches}"
        with self._shown(f"{mesh}, round {self._rounds[mesh]}: {what}"):
            yield

    @contextmanager
    def proving(self, cell: Cell) -> Iterator[None]:
        """Some steps of it are run."""
        with self._shown(f"running {cell.name}"):
            yield

    @contextmanager
    def _shown(self, what: str) -> Iterator[None]:
        text = f"{self.done}/{self.of} {what}"
        if not self._live:
            self._console.print(text, markup=False, soft_wrap=True)
            yield
            return
        told = TextColumn(
            "{task.description}",
            markup=False,
            table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1),
        )
        with Progress(
            SpinnerColumn(), told, TimeElapsedColumn(),
            console=self._console, transient=True, expand=True,
        ) as progress:  # fmt: skip
            progress.add_task(text, total=None)
            yield
