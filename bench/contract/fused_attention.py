"""Kernels that compute causal attention without storing the scores of all pairs of tokens.

They are cuDNN's on CUDA and splash attention on TPU. Both compute the softmax in float32.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType

Attention = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
"""Causal attention: maps queries, keys and values (batch, tokens, heads, head width) to outputs of
that shape."""

HALF_BYTES = 2
"""Bytes of a bfloat16 or float16."""
LANES = 128
"""The widest head of cuDNN's kernel on every GPU; on TPU, tokens are taken in multiples of it."""
TPU_BLOCK = 512
"""Queries and keys per block of splash attention, whose default of 128 suits short sequences."""


def kernels(query: jax.Array) -> dict[str, Attention]:
    """Return the kernels for queries (batch, tokens, heads, head width), by JAX platform name.

    Only bfloat16 and float16 have kernels.
    """
    tokens, width = query.shape[1], query.shape[-1]
    found: dict[str, Attention] = {}
    if query.dtype.itemsize != HALF_BYTES:
        return found
    if width % 8 == 0 and width <= LANES and cudnn_is_here():
        found["cuda"] = partial(
            jax.nn.dot_product_attention, is_causal=True, implementation="cudnn"
        )
    if tokens % LANES == 0 and tpu_kernel_applies():
        found["tpu"] = splash_attention
    return found


@cache
def cudnn_is_here() -> bool:
    """Whether JAX finds cuDNN; without it, tracing cuDNN's attention fails."""
    probe: Any = jax.eval_shape(lambda: jnp.zeros((1, 64, 1, 64), jnp.bfloat16))
    attention = partial(jax.nn.dot_product_attention, implementation="cudnn")
    try:
        jax.eval_shape(attention, probe, probe, probe)
    except RuntimeError:  # "cuDNN is not detected."
        return False
    return True


def tpu_kernel_applies() -> bool:
    """Whether the step runs on a single TPU chip, outside jax.shard_map.

    XLA cannot partition the kernel, and jax.shard_map with `check_vma` needs kernels that declare
    the axes over which their results vary; splash attention does not.
    """
    if jax.device_count() > 1 or jax.default_backend() != "tpu":
        return False
    return AxisType.Manual not in jax.sharding.get_abstract_mesh().axis_types


def splash_attention(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """Attend by JAX's TPU kernel; arrays are (batch, tokens, heads, head width)."""
    # Imported here because Pallas takes a second to import.
    import jax.experimental.pallas.ops.tpu.splash_attention as splash  # noqa: PLC0415

    tokens, heads, width = query.shape[1:]
    size = next(block for block in (TPU_BLOCK, TPU_BLOCK // 2, LANES) if tokens % block == 0)
    names = ("q", "kv", "kv_compute", "q_dkv", "kv_dkv", "kv_dkv_compute", "q_dq", "kv_dq")
    sizes: dict[str, Any] = {f"block_{name}": size for name in names}
    attend = splash.make_splash_mha(
        splash.MultiHeadMask([splash.CausalMask((tokens, tokens))] * heads),
        head_shards=1,
        q_seq_shards=1,
        block_sizes=splash.BlockSizes(**sizes),
    )
    by_head = [x.swapaxes(1, 2) for x in (query * width**-0.5, key, value)]
    attended: jax.Array = jax.vmap(attend)(*by_head).swapaxes(1, 2)
    return attended
