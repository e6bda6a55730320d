"""Model state: what a model keeps beside its parameters from one step to the next.

These are the averages of BatchNorm, and the keys and counts of random numbers. A step returns new
model state with its loss; only parameters have gradients.
"""

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx

ModelState = Any
"""A pytree of a model's variables other than `nnx.Param`: nested dicts, keyed by the names of the
model's attributes. It may hold integers and PRNG keys; empty for most models."""

Statistics = Literal["synchronized", "local"]
"""The samples whose mean and variance BatchNorm normalizes with.

`synchronized`: over the global batch. A step on several devices equals the step on one.
`local`: over each shard of the batch by itself, as in PyTorch's DistributedDataParallel without
SyncBatchNorm. Running averages are averaged over all shards, so that replicas stay equal.
"""
SYNCHRONIZED: Statistics = "synchronized"
LOCAL: Statistics = "local"


def split_model(make: Callable[[], nnx.Module], axis: str = "") -> tuple[Any, ModelState]:
    """Return a model's graph definition, and the shapes of its model state, computing nothing.

    `axis` is a mesh axis over which `nnx.BatchNorm` averages its statistics; none if empty.
    """

    def made() -> nnx.Module:
        model = make()
        for _, module in nnx.iter_modules(model) if axis else ():
            if isinstance(module, nnx.BatchNorm):
                module.axis_name = axis
        return model

    definition, _, others = nnx.split(nnx.eval_shape(made), nnx.Param, ...)
    return definition, nnx.to_pure_dict(others)


def state_of(model: nnx.Module) -> ModelState:
    """Return a model's variables other than its parameters."""
    return nnx.to_pure_dict(nnx.state(model, nnx.Not(nnx.Param)))


def is_float(leaf: Any) -> bool:
    """Whether an array holds floats, rather than integers or PRNG keys."""
    return bool(jnp.issubdtype(leaf.dtype, jnp.floating))


def mean_of_floats(*leaves: Any) -> Any:
    """Average an array over all shards; of integers and keys, which are equal, return the first."""
    return sum(leaves) / len(leaves) if is_float(leaves[0]) else leaves[0]


def mean_over_axis(state: ModelState, axis: str) -> ModelState:
    """Average the floats of a model state over a mesh axis, by one pmean of all of them."""
    floats = jax.tree.map(lambda x: x if is_float(x) else None, state)
    means = jax.lax.pmean(floats, axis)  # type: ignore[no-untyped-call]
    return jax.tree.map(lambda x, mean: x if mean is None else mean, state, means)
