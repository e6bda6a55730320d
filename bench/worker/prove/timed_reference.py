"""The reference step in the timed dtypes, on one device, and its rounding error.

The batch is computed in parts whose gradients are averaged, as on several devices. Parts of
contiguous rows and parts of strided rows give two orders of summation. Both are right, so their
distance from each other and from float64 measures only rounding. Another right step is about as
far away; a step at lower precision is much farther.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
import optax

from bench.contract import Batch, Params
from bench.contract.model_state import ModelState
from bench.worker.prove.carried_state import part_of, strided_part, whole_batch_loss
from bench.worker.prove.divided_gradients import SHARE, DividedGradients, initial_params, mean_of
from bench.worker.prove.state_reader import HostState
from bench.worker.prove.trajectory import Trajectory, apply_update, whole_batch_steps
from bench.worker.read.compilation import remembered_programs

if TYPE_CHECKING:
    from bench.worker.prove.gate import Gate


class ReferenceSteps(NamedTuple):
    """The result of some steps of the reference."""

    loss: float
    """Loss of the last step, before its update."""
    end: HostState
    """State after the last step, on the devices."""


class TimedReference:
    """The reference step of a gate's timed problem, in its own dtypes.

    The batch is computed in as many parts as the mesh splits it into, or in 2 if that is 1 and the
    batch is even. Half of the `memory` bytes of each device are for the arms' states.
    """

    def __init__(self, gate: Gate, memory: float) -> None:
        problem = self.problem = gate.timed
        self.programs, self.eps = gate.programs, gate.timed_eps
        rows, shards, devices = problem.batch_size, gate.shards, gate.mesh.local_devices
        self.start_state = problem.draw_state()
        # A batch's statistics are not the sum of those of its parts.
        self.parts = 1 if self.start_state else shards if shards > 1 else 2 - rows % 2
        part = jax.tree.map(lambda x: x[: rows // self.parts], problem.batch(0))
        loss_fn = whole_batch_loss(problem, shards)
        with remembered_programs(self.programs):
            self._of_part = DividedGradients(problem, loss_fn, part, devices, memory, SHARE / 2)
        self.start = initial_params(problem)

    def gradients(
        self,
        params: Params,
        model_state: ModelState,
        batch: Batch,
        *,
        apart: bool = False,
    ) -> Any:
        """Return ((loss, new model state), gradients) of a batch.

        With `apart`, a part's rows are strided, which sums them in another order. With model state
        the batch is computed as a whole, and `apart` takes the gradients at parameters that are
        moved by a rounding instead.
        """
        parts, part = self.parts, strided_part if apart else part_of
        if apart and parts == 1 and self.start_state:
            params = jax.tree.map(self._moved, params)
        order = range(parts)[::-1] if apart else range(parts)
        return mean_of(self._of_part(params, model_state, part(batch, parts, at)) for at in order)

    def placed(self, held: HostState) -> HostState:
        """Place a state where the reference keeps its own, with a new optimizer state for None."""
        params, opt_state, model_state = held
        opt_state = self.problem.optimizer.init(params) if opt_state is None else opt_state
        placed = self._of_part.place(params), self._of_part.place_optimizer(opt_state)
        return HostState(*placed, model_state)

    def _moved(self, leaf: Any) -> np.ndarray:
        """Move numbers by half a rounding, each up or down."""
        signs = np.random.default_rng(0).choice([-0.5, 0.5], np.shape(leaf))
        return (np.asarray(leaf) * (1 + self.eps * signs)).astype(leaf.dtype)

    def run(
        self, batches: Sequence[Batch], start: HostState, *, apart: bool = False
    ) -> ReferenceSteps:
        """Take a step on each batch from a placed state; see `gradients` for `apart`."""
        with remembered_programs(self.programs):
            params, opt_state, model_state = start
            for batch in batches:
                (loss, model_state), grads = self.gradients(params, model_state, batch, apart=apart)
                params, opt_state = apply_update(self.problem.optimizer, params, opt_state, grads)
            return ReferenceSteps(float(loss), HostState(params, opt_state, model_state))

    def trajectory(
        self, optimizer: optax.GradientTransformation, batches: Sequence[Batch], *, apart: bool
    ) -> Trajectory:
        """Take steps from the initial state; return them as a trajectory."""
        gradients = partial(self.gradients, apart=apart)
        with remembered_programs(self.programs):
            params = self._of_part.place(self.start)
            opt_state = optimizer.init(params)
            if optimizer is self.problem.optimizer:
                # Placed like a later state, so that the update is compiled once for both.
                opt_state = self._of_part.place_optimizer(opt_state)
            return whole_batch_steps(
                params, self.start_state, gradients, optimizer, batches, opt_state
            )
