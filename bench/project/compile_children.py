"""Child processes that compile steps and report the work of one device in each.

Compiling for virtual devices takes one core and less than a gigabyte of memory, so as many children
run concurrently as cores and memory allow. See bench/worker/answer/compile_only.py.
"""

import json
import operator
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby

import psutil

from bench.measure.environment import compiling_environment, worker_environment
from bench.measure.processes.guarded import Child
from bench.records.cells import Cell
from bench.records.host import usable_cores
from bench.records.messages import CompiledAnswer

COMMAND = (sys.executable, "-m", "bench.worker.answer.compile_only")

ROOM = 2 << 30
"""Bytes of free host memory required for each child."""

_devices = operator.attrgetter("block.mesh.size")


@dataclass(frozen=True)
class Compilers:
    """Child processes that compile cells on request."""

    platform: str
    """Whose compiler is used. An accelerator's needs the accelerators, so only one child runs."""
    request: Callable[[Cell], str]
    """The line that requests a cell from a child."""
    timeout_s: float
    """Limit for one cell."""
    answered: Callable[[Cell, CompiledAnswer], None]
    """Called with each answer as it arrives, from other threads."""

    def ask(self, cells: Sequence[Cell]) -> None:
        """Return an answer for every cell, compiling those with the fewest devices first."""
        for _, group in groupby(sorted(cells, key=_devices), key=_devices):
            room = min(usable_cores(), psutil.virtual_memory().available // ROOM)
            self._ask([*group], max(1, room) if self.platform == "cpu" else 1)

    def _ask(self, cells: Sequence[Cell], at_once: int) -> None:
        """Request cells with equal numbers of devices.

        If a child ends early, the cell that it was compiling is blamed, and another child gets the
        rest. If other children ran beside it, they may have exhausted the host's memory, so that
        cell is retried alone.
        """
        again: list[Cell] = []
        parts = [deque(cells[first::at_once]) for first in range(min(at_once, len(cells)))]
        while parts:
            with ExitStack() as children:
                running = [(part, children.enter_context(self._child(part))) for part in parts]
                for part, child in running:
                    ended = child.answer(self.timeout_s)
                    if part and at_once > 1:
                        again.append(part.popleft())
                    elif part:
                        reason = f"the process that compiled it {ended.blame}"
                        failed = CompiledAnswer(row=None, reason=reason, lack="failed")
                        self.answered(part.popleft(), failed)
            parts = [part for part in parts if part]
        if again:
            self._ask(again, 1)

    def _child(self, part: deque[Cell]) -> Child:
        """Start a child for some cells, and remove each cell from them when it answers."""

        def receive(line: str) -> None:
            self.answered(part.popleft(), json.loads(line))

        lines = "\n".join(map(self.request, part))
        return Child(COMMAND, lines, environment(self.platform, _devices(part[0])), receive)


def environment(platform: str, devices: int) -> dict[str, str]:
    """Return the environment variables of a process that compiles."""
    if platform == "cpu":
        return compiling_environment(devices)
    return worker_environment(platform, devices)
