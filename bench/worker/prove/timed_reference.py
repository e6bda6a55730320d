"""The right step in the dtypes that are timed, on one device, and what rounding does to it.

The batch is computed in parts whose gradients are averaged, as devices do. Parts of neighbouring
rows and parts of rows apart give two orders of summation. Both are right, so their distance, and
that of each from float64, is what rounding alone does to a step: another right step is about as far
away, and a step in fewer digits is much farther.
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
    """Some steps of the reference."""

    losses: np.ndarray
    """(steps,) float64: every step's loss, before its update."""
    params: list[Params]
    """After each step."""
    opt_state: Any
    """After the last."""


class TimedReference:
    """The right step of a problem in its own dtypes.

    Args:
      problem: as it is timed.
      parts: that the mesh splits a batch into; a single part is split in two where that works.
      programs: folder in which compiled programs are remembered.
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
        """The loss of a batch and its gradients, in one of two orders; of all parts or of some."""
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
        """Take steps from parameters and an optimizer's state, or from the start.

        Args:
          optimizer: whose updates are applied.
          batches: one for each step.
          start: parameters and the optimizer's state.
          apart: whether a part's rows are apart, which sums them in another order.
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
        """The same from the start, as an implementation's steps are compared."""
        done = self.run(optimizer, batches, apart=apart)
        first, last = flatten(done.params[0]), flatten(done.params[-1])
        return Trajectory(done.losses, flatten(self.start), first, last)
