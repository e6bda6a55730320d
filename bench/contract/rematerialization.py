"""Rematerialization: jax.checkpoint policies that choose what the backward pass recomputes.

A block of layers under a policy always saves its input. `full` saves nothing else: "full"
recomputation in Megatron and torchtitan, `full` in T5X and MaxText, `nothing_saveable` in JAX.
`dots` also saves the outputs of products with weights (`dots_with_no_batch_dims_saveable`, T5X's
and MaxText's `minimal`), so it recomputes only cheap operations and products of two activations,
such as attention's scores, whose size grows with the square of the sequence.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import jax
from flax import nnx

Call = TypeVar("Call", bound=Callable[..., Any])

POLICIES = {
    "full": jax.checkpoint_policies.nothing_saveable,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}


def rematerialized(call: Call, policy: str) -> Call:
    """Wrap `call(module, ...)` in jax.checkpoint with the named policy; "" leaves it as it is."""
    return cast("Call", nnx.remat(call, policy=POLICIES[policy])) if policy else call
