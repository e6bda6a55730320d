"""What the backward pass computes again instead of keeping it: policies of jax.checkpoint.

The block of layers that a policy applies to always keeps its input. `full` keeps nothing else:
"full" recomputation in Megatron and torchtitan, `full` in T5X and MaxText, `nothing_saveable` in
JAX. `dots` keeps the outputs of products with weights as well (`dots_with_no_batch_dims_saveable`,
T5X's and MaxText's `minimal`), so that only cheap operations are repeated, and products of two
activations, such as attention's scores, whose size grows with the square of the sequence.
"""

from __future__ import annotations

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
    """Return `call(module, ...)` whose backward pass recomputes by a policy's name; "" for none."""
    return cast("Call", nnx.remat(call, policy=POLICIES[policy])) if policy else call
