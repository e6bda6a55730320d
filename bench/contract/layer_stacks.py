"""Chains of equal layers: unrolled in the program, or one loop over stacked layers.

A loop (jax.lax.scan) contains one layer's program, so tracing and compile time do not grow with the
number of layers. Its parameters are stacked as (layers, ...); the leading dimension has the logical
axis name `layers`. It is never sharded, because each iteration uses one layer.
"""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec as P

from bench.contract import Batch, LossFn, Params, Problem
from bench.contract.logical_axes import traced_with
from bench.contract.rematerialization import POLICIES, rematerialized

_as_used: ContextVar[Callable[[Params], Params]] = ContextVar("as_used", default=lambda own: own)


def make_layers(make: Callable[[], nnx.Module], count: int, *, stacked: bool) -> Any:
    """Return a list of layers, or one layer whose parameters are stacked as (count, ...)."""
    layers = [make() for _ in range(count)]
    if not stacked:
        return nnx.List(layers)
    definition, _ = nnx.split(layers[0])
    states = (nnx.state(layer) for layer in layers)
    return nnx.merge(definition, jax.tree.map(lambda *leaves: jnp.stack(leaves), *states))


def run_layers(
    layers: Any, call: Callable[[Any, jax.Array], tuple[jax.Array, Any]], x: jax.Array, remat: str
) -> tuple[jax.Array, Any]:
    """Apply the layers of `make_layers` in order, under the rematerialization policy `remat`.

    `call` maps a layer and its input to the next layer's input and an auxiliary output, or None.
    The result is the last layer's output, and the auxiliary outputs, stacked as (layers, ...).
    """
    if isinstance(layers, nnx.List):
        call, others = rematerialized(call, remat), []
        for layer in layers:
            x, other = call(layer, x)
            others.append(other)
        return x, jax.tree.map(lambda *leaves: jnp.stack(leaves), *others)
    definition, params = nnx.split(layers)
    as_used = _as_used.get()

    def turn(x: jax.Array, own: Params) -> tuple[jax.Array, Any]:
        return call(nnx.merge(definition, as_used(own)), x)

    if remat:  # inside a loop, CSE cannot undo the recomputation
        turn = jax.checkpoint(turn, policy=POLICIES[remat], prevent_cse=False)
    return jax.lax.scan(turn, x, nnx.to_pure_dict(params))


def reference_loss(plain: Problem, problem: Problem) -> LossFn:
    """Return `plain`'s loss, without stacked layers, as a function of `problem`'s parameters."""
    loss_fn, name = plain.loss_function(), problem.stacked

    def of_stacked(params: Params, batch: Batch) -> jax.Array:
        layers = range(len(jax.tree.leaves(params[name])[0]))
        by_number = {i: jax.tree.map(lambda leaf, i=i: leaf[i], params[name]) for i in layers}
        return loss_fn({**params, name: by_number}, batch)

    return of_stacked if name else loss_fn


def loss_of_shards(
    problem: Problem, loss_fn: Callable[..., Any], gather: Callable[[Any, P], Any], specs: Params
) -> Callable[..., Any]:
    """Return the loss as a function of sharded parameters; `gather(shard, spec)` makes one whole.

    An iteration over stacked layers gathers its own layer, by specs without the leading dimension.
    """
    stack = problem.stacked
    of_layer = jax.tree.map(lambda spec: P(*[*spec][1:]), specs[stack]) if stack else {}

    def of_shards(shards: Params, *others: Any) -> Any:
        ends = {name: own for name, own in shards.items() if name != stack}
        params = jax.tree.map(gather, ends, {name: specs[name] for name in ends})
        with traced_with(_as_used, lambda own: jax.tree.map(gather, own, of_layer)):
            return loss_fn({**shards, **params}, *others)

    return of_shards
