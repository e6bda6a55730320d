"""Chains of equal layers: each in the program on its own, or all in one loop over stacked layers.

A loop (jax.lax.scan) has the program of one layer, so that neither tracing nor compiling takes
longer the more layers there are. Its parameters are those of all layers, stacked as (layers, ...);
in logical axis names, that dimension is `layers`. Nothing shards it: each turn uses one layer.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec as P

from bench.contract import Batch, LossFn, Params, Problem
from bench.contract.rematerialization import POLICIES, rematerialized

_as_used: ContextVar[Callable[[Params], Params]] = ContextVar("as_used", default=lambda own: own)


def make_layers(make: Callable[[], nnx.Module], count: int, *, stacked: bool) -> Any:
    """Return a list of layers, or one layer whose parameters are those of all, (count, ...)."""
    layers = [make() for _ in range(count)]
    if not stacked:
        return nnx.List(layers)
    definition, _ = nnx.split(layers[0])
    states = (nnx.state(layer) for layer in layers)
    return nnx.merge(definition, jax.tree.map(lambda *leaves: jnp.stack(leaves), *states))


def run_layers(
    layers: Any, call: Callable[[Any, jax.Array], tuple[jax.Array, Any]], x: jax.Array, remat: str
) -> tuple[jax.Array, Any]:
    """Apply what `make_layers` returned to the first layer's input.

    Args:
      layers: a list, or a layer with stacked parameters.
      call: from a layer and its input to the next one's input and something else, such as None.
      x: the first layer's input.
      remat: a policy's name, or empty.

    Returns:
      The last layer's output, and what else the layers returned, stacked as (layers, ...).
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

    if remat:  # in a loop, nothing can be shared with the forward pass by mistake
        turn = jax.checkpoint(turn, policy=POLICIES[remat], prevent_cse=False)
    return jax.lax.scan(turn, x, nnx.to_pure_dict(params))


def reference_loss(plain: Problem, problem: Problem) -> LossFn:
    """Return the plain problem's loss for parameters of another, whose layers may be stacked."""
    loss_fn, name = plain.loss_function(), problem.stacked

    def of_stacked(params: Params, batch: Batch) -> jax.Array:
        layers = range(len(jax.tree.leaves(params[name])[0]))
        by_number = {i: jax.tree.map(lambda leaf, i=i: leaf[i], params[name]) for i in layers}
        return loss_fn({**params, name: by_number}, batch)

    return of_stacked if name else loss_fn


def loss_of_shards(
    problem: Problem, loss_fn: LossFn, whole: Callable[[Any, P], Any], specs: Params
) -> LossFn:
    """Return the loss of sharded parameters, which `whole(shard, spec)` gathers for their use.

    Each turn of a loop over stacked layers gathers its own, with the rest of their specs.
    """
    stack = problem.stacked
    of_layer = jax.tree.map(lambda spec: P(*[*spec][1:]), specs[stack]) if stack else {}

    def of_shards(shards: Params, batch: Batch) -> jax.Array:
        ends = {name: own for name, own in shards.items() if name != stack}
        params = jax.tree.map(whole, ends, {name: specs[name] for name in ends})
        token = _as_used.set(lambda own: jax.tree.map(whole, own, of_layer))
        try:
            return loss_fn({**shards, **params}, batch)
        finally:
            _as_used.reset(token)

    return of_shards
