"""equinox.filter_jit: Equinox layers and Optax, for which the compiler inserts collectives.

The model is a pytree of layers that map one sample, and jax.vmap maps them over the batch. The
batch is split over `data`, and the model and the optimizer state are replicated, so XLA's
partitioner inserts the all-reduce of the gradients (4 bytes per parameter, plus the loss) for every
microbatch. At every call, filter_jit partitions the model into arrays and static leaves in Python.
Weights are (outputs, inputs), as in PyTorch and transposed with respect to Flax.
"""

from typing import Any

import jax
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
    try:
        import equinox  # noqa: F401, PLC0415 - it need not be installed
    except ImportError:
        return "the package equinox is not installed (extra `equinox`)"
    return None


def build(problem: Problem, mesh: Mesh) -> TrainStep:
    import equinox as eqx  # noqa: PLC0415 - it need not be installed

    # In the contract's tree, a layer's bias precedes its kernel.
    params, structure = jax.tree.flatten(problem.draw())
    biases, kernels = params[::2], params[1::2]
    compute = problem.outline["compute"]
    replicated = NamedSharding(mesh, P())
    batch_sharding = create_data_parallel_sharding(mesh, "data")

    def make_layer(kernel: jax.Array, bias: jax.Array) -> Any:
        inputs, outputs = kernel.shape
        layer = eqx.nn.Linear(inputs, outputs, key=jax.random.key(0))
        return eqx.tree_at(lambda one: (one.weight, one.bias), layer, (kernel.T, bias))

    def hidden(layer: Any, x: jax.Array) -> jax.Array:
        return jax.nn.relu(layer(x))

    if policy := problem.outline.get("remat"):
        hidden = eqx.filter_checkpoint(hidden, policy=POLICIES[policy])

    def predict(model: Any, x: jax.Array) -> jax.Array:
        """Map one sample, with activations and products in the compute dtype."""
        *first, last = jax.tree.map(lambda array: array.astype(compute), model)
        x = x.astype(compute)
        for layer in first:
            x = hidden(layer, x)
        return last(x)

    def loss_fn(model: Any, batch: Batch) -> jax.Array:
        return problem.loss(jax.vmap(lambda x: predict(model, x)), batch)

    @eqx.filter_jit(donate="all-except-first")
    def train_step(batch: Batch, model: Any, opt_state: Any) -> tuple[Any, Any, jax.Array]:
        gradients = problem.over_microbatches(eqx.filter_value_and_grad(loss_fn))
        loss, grads = gradients(model, batch)
        updates, opt_state = problem.optimizer.update(grads, opt_state, model)
        model = eqx.apply_updates(model, updates)
        return *eqx.filter_shard((model, opt_state), replicated), loss

    def step(state: tuple[Any, Any], batch: Batch) -> tuple[Any, jax.Array]:
        model, opt_state, loss = train_step(batch, *state)
        return (model, opt_state), loss

    def params_of(state: tuple[Any, Any]) -> Any:
        leaves = [leaf for layer in state[0] for leaf in (layer.bias, layer.weight.T)]
        return jax.tree.unflatten(structure, leaves)

    model = tuple(map(make_layer, kernels, biases))
    return TrainStep(
        state=place_model_state_on_shards((model, problem.optimizer.init(model)), mesh),
        place=lambda batch: place_batch_on_shards(batch, batch_sharding),
        step=step,
        params=params_of,
        held=lambda state: eqx.filter(state[0], eqx.is_array),
    )
