"""How many steps are compiled: live on a terminal, a line a tenth elsewhere. Imports no jax."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.present.terminal import live

_LINES = 10
"""Of all steps that are compiled at a time."""


@contextmanager
def compiling(console: Console) -> Iterator[Callable[[int, int], None]]:
    """Shows what it is told: how many steps are compiled, and of how many."""
    if not live(console):

        def told(done: int, of: int) -> None:
            if done * _LINES // of > (done - 1) * _LINES // of:
                console.print(f"compiled {done} of {of} steps")

        yield told
        return
    columns = (
        TextColumn("compiling steps"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console, transient=True) as shown:
        task = shown.add_task("", total=None, visible=False)
        yield lambda done, of: shown.update(task, completed=done, total=of, visible=True)
