"""A step that records the compilation of its first call."""

from collections.abc import Callable
from typing import Any

import jax

from bench.records.rows import CompileTimes
from bench.worker.prove.trajectory import state_and_loss
from bench.worker.read.compilation import CompilationLog
from bench.worker.read.programs import live_programs, new_programs


class FirstCall:
    """A step that records what its first call compiles."""

    def __init__(self, step: Callable[[Any, Any], tuple[Any, jax.Array]]) -> None:
        self._step = step
        self._called = False
        self.compile: CompileTimes
        self.programs: list[Any]
        """Executables that the first call created."""

    def __call__(self, state: Any, batch: Any) -> tuple[Any, jax.Array]:
        """Run the step; the first time, record its compilation."""
        if self._called:
            return self._step(state, batch)
        self._called = True
        before = live_programs()
        with CompilationLog() as log:
            state, loss = state_and_loss(self._step(state, batch))
        self.compile = log.times()
        self.programs = new_programs(live_programs(), before)
        return state, loss
