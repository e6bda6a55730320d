"""Owner computes: each device updates whole arrays of some layers; reduce-scatter and all-gather.

An optimizer such as Muon orthogonalizes whole matrices. If every device does so, they all repeat
the same work; if arrays are split as in zero1, no device has a whole matrix. Here, arrays of equal
layers are stacked as (layers, ...), and the stack is divided over `data`, padded with zeros to a
multiple of its size. A reduce-scatter (psum_scatter) gives each device the summed gradients of the
layers it owns. The owner keeps these layers' optimizer state and computes their updates, for which
nothing else is communicated. Finally, the new parameters are all-gathered. Each collective is half
of an all-reduce (4 bytes per parameter of the padded stacks). All other arrays, such as embeddings,
are all-reduced and updated by every device. With more devices than layers, some devices own only
padding.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bench.contract import Batch, Params, Problem, TrainStep
from bench.contract.logical_axes import shapes_of_params
from bench.contract.placement import (
    create_data_parallel_sharding,
    create_sharded_state,
    own_shard,
    place_batch_on_shards,
    scatter_gradient,
    unknown_axes,
)

LAYERS = "blocks"
"""The key of the parameter subtree with all layers, by number or stacked."""


def why_unsupported(problem: Problem, mesh: Mesh) -> str | None:
    if reason := unknown_axes(mesh, "data"):
        return reason
    if problem.elementwise:
        return "no update needs whole arrays, and zero1 divides the work evenly"
    owned = LAYERS in shapes_of_params(problem)
    return None if owned else "the model has no equal layers that devices could own"


def build(problem: Problem, mesh: Mesh) -> TrainStep:
    loss_fn, shards = problem.loss_function(), mesh.shape["data"]
    batch_sharding = create_data_parallel_sharding(mesh, "data")
    replicated = NamedSharding(mesh, P())
    shapes = shapes_of_params(problem)
    arrange = partial(stack_layers, shards=shards, stacked=bool(problem.stacked))
    restore = partial(unstack_layers, like=shapes[LAYERS])
    specs = jax.tree.map(lambda _: P(), jax.eval_shape(arrange, shapes))
    specs[LAYERS] = jax.tree.map(lambda _: P("data"), specs[LAYERS])
    state = create_sharded_state(problem, mesh, specs, arrange)
    opt_specs = jax.tree.map(lambda x: x.sharding.spec, state[1])

    def share_of_loss(params: Params, batch: Batch) -> jax.Array:
        return loss_fn(params, batch) / shards

    arguments, results = (P(), opt_specs, P("data")), (specs, opt_specs, P())

    @partial(jax.shard_map, mesh=mesh, in_specs=arguments, out_specs=results)
    def update_own(params: Params, opt_state: Any, batch: Batch) -> tuple[Any, Any, jax.Array]:
        own_params = jax.lax.pcast(params, "data", to="varying")
        value_and_grad = problem.over_microbatches(jax.value_and_grad(share_of_loss))
        loss, grads = value_and_grad(own_params, batch)
        grads = jax.tree.map(partial(scatter_gradient, "data"), arrange(grads), specs)
        owned = jax.tree.map(partial(own_shard, "data"), arrange(params), specs)
        updates, opt_state = problem.optimizer.update(grads, opt_state, owned)
        return optax.apply_updates(owned, updates), opt_state, jax.lax.psum(loss, "data")

    @partial(jax.jit, donate_argnums=0)
    def step(state: tuple[Any, Any], batch: Batch) -> tuple[Any, jax.Array]:
        owned, opt_state, loss = update_own(*state, batch)
        # The constraint makes the partitioner all-gather the stacks before they are taken apart.
        whole = jax.lax.with_sharding_constraint(owned, replicated)
        return (restore(whole), opt_state), loss

    return TrainStep(
        state=(jax.jit(restore, out_shardings=replicated)(state[0]), state[1]),
        place=lambda batch: place_batch_on_shards(batch, batch_sharding),
        step=step,
        params=lambda state: state[0],
    )


def stack_layers(params: Params, shards: int, *, stacked: bool) -> Params:
    """Stack the layers' arrays as (layers, ...), padded with zeros to a multiple of the shards."""

    def stack(*layers: Any) -> jax.Array:
        leaf = layers[0] if stacked else jnp.stack(layers)
        return jnp.pad(leaf, ((0, -len(leaf) % shards), *((0, 0),) * (leaf.ndim - 1)))

    layers = [params[LAYERS]] if stacked else [params[LAYERS][i] for i in sorted(params[LAYERS])]
    return {**params, LAYERS: jax.tree.map(stack, *layers)}


def unstack_layers(stacks: Params, like: Params) -> Params:
    """Restore parameters from the result of `stack_layers`, with layers in the layout of `like`."""
    if like.keys() == stacks[LAYERS].keys():  # the model runs a loop over stacked layers
        own = jax.tree.map(lambda x, own: x[: own.shape[0]], stacks[LAYERS], like)
    else:
        own = {i: jax.tree.map(lambda x, i=i: x[i], stacks[LAYERS]) for i in like}
    return {**stacks, LAYERS: own}
