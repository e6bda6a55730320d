"""flax.linen with its TrainState under jax.jit, for which the compiler inserts collectives.

Most published Flax training code has this form: the model is a stateless description, its
parameters are a separate dict, and a TrainState holds them with the optimizer's state. The batch is
split over `data` and the TrainState is replicated, so XLA's partitioner inserts the all-reduce of
the gradients (4 bytes per parameter, plus the loss) for every microbatch.
"""

from functools import partial
from typing import Any

import jax
from flax import linen as nn
from flax.training.train_state import TrainState
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bench.contract import Batch, Problem, TrainStep
from bench.contract.placement import (
    create_data_parallel_sharding,
    place_batch_on_shards,
    place_model_state_on_shards,
    unknown_axes,
)
from bench.contract.rematerialization import POLICIES


def why_unsupported(problem: Problem, mesh: Mesh) -> str | None:
    if reason := unknown_axes(mesh, "data"):
        return reason
    if problem.outline.get("model") not in ("linear", "mlp"):
        return "its model is written for the workloads linear and mlp only"
    return None


class Hidden(nn.Module):
    """A layer and its ReLU: (batch, inputs) to (batch, width)."""

    width: int
    dtype: str

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return activations (batch, width)."""
        return nn.relu(nn.Dense(self.width, dtype=self.dtype)(x))


class MLP(nn.Module):
    """Layers with ReLU between them; a single one is a linear model."""

    widths: tuple[int, ...]
    """Widths of the layers' outputs."""
    dtype: str
    """Dtype of activations and products; parameters have their own."""
    remat: str = ""
    """A policy's name; empty for none."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return (batch, widths[-1])."""
        layer = nn.remat(Hidden, policy=POLICIES[self.remat]) if self.remat else Hidden
        *hidden, last = self.widths
        for number, width in enumerate(hidden):
            x = layer(width, self.dtype, name=f"Hidden_{number}")(x)
        return nn.Dense(last, dtype=self.dtype, name="Last")(x)


def build(problem: Problem, mesh: Mesh) -> TrainStep:
    # In the contract's tree and in linen's, a layer's bias precedes its kernel.
    leaves, structure = jax.tree.flatten(problem.draw())
    widths = tuple(bias.shape[0] for bias in leaves[::2])
    outline = problem.outline
    model = MLP(widths, outline["compute"], outline.get("remat", ""))
    shapes = jax.eval_shape(model.init, jax.random.key(0), leaves[1].T)
    params = jax.tree.unflatten(jax.tree.structure(shapes["params"]), leaves)
    batch_sharding = create_data_parallel_sharding(mesh, "data")
    state = TrainState.create(apply_fn=model.apply, params=params, tx=problem.optimizer)

    @partial(jax.jit, donate_argnums=0, out_shardings=NamedSharding(mesh, P()))
    def step(state: TrainState, batch: Batch) -> tuple[TrainState, jax.Array]:
        def loss_fn(params: Any, batch: Batch) -> jax.Array:
            return problem.loss(lambda inputs: state.apply_fn({"params": params}, inputs), batch)

        gradients = problem.over_microbatches(jax.value_and_grad(loss_fn))
        loss, grads = gradients(state.params, batch)
        return state.apply_gradients(grads=grads), loss

    return TrainStep(
        state=place_model_state_on_shards(state, mesh),
        place=lambda batch: place_batch_on_shards(batch, batch_sharding),
        step=step,
        params=lambda state: jax.tree.unflatten(structure, jax.tree.leaves(state.params)),
    )
