"""Children that compile steps, and say what one device does in each. Imports no jax.

Compiling for virtual devices takes one core and less than a gigabyte of memory, so that there are
as many children at a time as there is room for. See bench/worker/answer/compile_only.py.
"""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby

import psutil

from bench.measure.environment import compiling_environment, worker_environment
from bench.measure.processes.ask import Answer, Child
from bench.records.cells import Cell
from bench.records.host import usable_cores
from bench.records.messages import CompiledAnswer
from bench.records.printable import readable

COMMAND = (sys.executable, "-m", "bench.worker.answer.compile_only")

ROOM = 2 << 30
"""Bytes of the host's memory that have to be left for each child."""


@dataclass(frozen=True)
class Compilers:
    """Children that are asked about cells."""

    platform: str
    """Whose compiler is asked. That of accelerators needs them, and is asked by one child."""
    request: Callable[[Cell], str]
    """The line by which a child is asked about a cell."""
    timeout_s: float
    """For one cell."""
    answered: Callable[[Cell, CompiledAnswer], None]
    """Called with each answer when it comes, in other threads."""

    def ask(self, cells: Sequence[Cell]) -> None:
        """Have all of these answered, those of the fewest devices first."""
        for _, group in groupby(sorted(cells, key=_devices), key=_devices):
            self._ask([*group], self._at_once())

    def _at_once(self) -> int:
        if self.platform != "cpu":
            return 1
        return max(1, min(usable_cores(), psutil.virtual_memory().available // ROOM))

    def _ask(self, cells: Sequence[Cell], at_once: int) -> None:
        """Ask about cells of as many devices.

        A child that ends before it has answered all is held against the cell that it was at, and
        another one is asked about the rest. If there were others beside it, they may have taken
        what it lacked: then that cell is asked about again, alone.
        """
        again: list[Cell] = []
        parts = [deque(cells[first::at_once]) for first in range(min(at_once, len(cells)))]
        while parts:
            with ExitStack() as children:
                asked = [(part, children.enter_context(self._child(part))) for part in parts]
                for part, child in asked:
                    ended = child.answer(self.timeout_s)
                    if part and at_once > 1:
                        again.append(part.popleft())
                    elif part:
                        self.answered(part.popleft(), _failed(ended))
            parts = [part for part in parts if part]
        if again:
            self._ask(again, 1)

    def _child(self, part: deque[Cell]) -> Child:
        """One that is asked about all of a part, out of which it takes what it answers."""

        def heard(line: str) -> None:
            self.answered(part.popleft(), json.loads(line))

        lines = "\n".join(map(self.request, part))
        return Child(COMMAND, lines, environment(self.platform, _devices(part[0])), heard)


def environment(platform: str, devices: int) -> dict[str, str]:
    """That of a process that compiles."""
    if platform == "cpu":
        return compiling_environment(devices)
    return worker_environment(platform, devices)


def _devices(cell: Cell) -> int:
    return cell.block.mesh.size


def _failed(ended: Answer) -> CompiledAnswer:
    last = "".join(f"; its last line: {line}" for line in ended.last_lines(1))
    reason = readable(f"the process that compiled it {ended.ending}{last}")
    return CompiledAnswer(row=None, reason=reason, lack="failed")
