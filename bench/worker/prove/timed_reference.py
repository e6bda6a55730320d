"""The reference step in the timed dtypes, on one device, and its rounding error.

The batch is computed in parts whose gradients are averaged, as on several devices. Parts of
contiguous rows and parts of strided rows give two orders of summation. Both are right, so their
distance from each other and from float64 measures rounding alone. Another right step is about as
far away; a step at lower precision is much farther.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from bench.contract import Batch, Params, Problem
from bench.worker.prove.trajectory import Trajectory, flatten, updated
from bench.worker.read.compilation import remembered_programs


class Stepped(NamedTuple):
    """The result of some steps of the reference."""

    losses: np.ndarray
    """(steps,) float64: every step's loss, before its update."""
    params: list[Params]
    """Parameters after each step."""
    opt_state: Any
    """Optimizer state after the last step."""


class TimedReference:
    """The reference step of a problem in its own dtypes.

    Args:
      problem: the timed problem.
      parts: number of parts that the mesh splits a batch into; 1 becomes 2 if the batch is even.
      programs: folder of the compilation cache.
    """

    def __init__(self, problem: Problem, parts: int, programs: Path) -> None:
        self.problem = problem
        rows = problem.batch_size
        self.parts = parts if parts > 1 else 2 - rows % 2
        self.programs = programs
        self.start, loss_fn = problem.functional()
        self._loss_and_gradients = jax.jit(jax.value_and_grad(loss_fn))
        self._mean = jax.jit(lambda parts: jax.tree.map(lambda *x: sum(x) / len(x), *parts))

    def gradients(
        self, params: Params, batch: Batch, *, apart: bool = False, only: Sequence[int] = ()
    ) -> tuple[jax.Array, Params]:
        """Return a batch's loss and gradients over all parts, or `only` some; see `run`."""
        parts = self.parts

        def part(index: int) -> Batch:
            if apart:
                return jax.tree.map(lambda x: x.reshape(-1, parts, *x.shape[1:])[:, index], batch)
            return jax.tree.map(lambda x: x.reshape(parts, -1, *x.shape[1:])[index], batch)

        order = only or (range(parts)[::-1] if apart else range(parts))
        found: tuple[jax.Array, Params] = self._mean(
            [self._loss_and_gradients(params, part(index)) for index in order]
        )
        return found

    def run(
        self,
        optimizer: optax.GradientTransformation,
        batches: Sequence[Batch],
        start: tuple[Params, Any] | None = None,
        *,
        apart: bool = False,
        only: Sequence[int] = (),
    ) -> Stepped:
        """Take steps from the given parameters and optimizer state, or from the initial ones.

        Args:
          optimizer: the optimizer.
          batches: one batch per step.
          start: parameters and optimizer state; the initial ones if None.
          apart: whether a part's rows are strided, which sums them in another order.
          only: parts of the batch to compute; all if empty.
        """
        with remembered_programs(self.programs):
            params, opt_state = start or (self.start, optimizer.init(self.start))
            losses, every = [], []
            for batch in batches:
                loss, grads = self.gradients(params, batch, apart=apart, only=only)
                params, opt_state = updated(optimizer, params, opt_state, grads)
                losses.append(loss)
                every.append(params)
            return Stepped(np.array([float(loss) for loss in losses]), every, opt_state)

    def trajectory(
        self, optimizer: optax.GradientTransformation, batches: Sequence[Batch], *, apart: bool
    ) -> Trajectory:
        """Take steps from the initial parameters; return them as a trajectory."""
        done = self.run(optimizer, batches, apart=apart)
        first, last = flatten(done.params[0]), flatten(done.params[-1])
        return Trajectory(done.losses, flatten(self.start), first, last)
