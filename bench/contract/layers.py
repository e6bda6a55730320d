"""Layers that can be sharded over a mesh axis; on one device they are ordinary layers."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from bench.contract import WHOLE, ModelAxis, Precision
from bench.contract.logical_axes import constrain

LECUN_NORMAL = nnx.initializers.lecun_normal()
"""The default initializer of nnx.Linear."""


class RowLinear(nnx.Module):
    """A linear layer whose inputs, and so the rows of its kernel, are sharded.

    Each device multiplies its shard of the inputs, one all-reduce sums the products, and the bias
    is added to the sum.
    """

    def __init__(
        self,
        inputs: Sequence[int],
        outputs: int,
        *,
        dtypes: Precision,
        rngs: nnx.Rngs,
        axis: ModelAxis = WHOLE,
        kernel_init: nnx.Initializer = LECUN_NORMAL,
    ) -> None:
        self.model_axis = axis
        self.product = nnx.LinearGeneral(
            inputs,
            outputs,
            axis=tuple(range(-len(inputs), 0)),
            use_bias=False,
            kernel_init=kernel_init,
            **dtypes.of_layer(rngs),
        )
        self.bias = nnx.Param(jnp.zeros(outputs, dtypes.params))

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map this device's shard of the inputs (..., *inputs) to all outputs (..., outputs)."""
        total = self.model_axis.total(self.product(x))
        y = total + self.bias[...].astype(total.dtype)
        return constrain(y, ("batch", *(None,) * (y.ndim - 2), "embed"))


def lookup(table: nnx.Embed, rows: jax.Array) -> jax.Array:
    """Return embeddings (..., width) of rows (...).

    With explicit axes, JAX needs the sharding of a lookup's result: that of the rows.
    """
    if AxisType.Explicit not in jax.sharding.get_abstract_mesh().axis_types:
        return table(rows)
    values = table.embedding[...].astype(table.dtype)
    return values.at[rows].get(out_sharding=P(*jax.typeof(rows).sharding.spec, None))


class Vocabulary(nnx.Module):
    """Token embedding and output layer that share one table, whose rows may be sharded.

    Args:
      size: number of tokens. Rows that the axis does not divide evenly are replicated.
      width: of a token's embedding.
    """

    def __init__(
        self,
        size: int,
        width: int,
        *,
        dtypes: Precision,
        rngs: nnx.Rngs,
        axis: ModelAxis,
        embedding_init: nnx.Initializer,
    ) -> None:
        self.model_axis = axis.if_divides(size)
        self.size = size
        self.table = nnx.Embed(
            self.model_axis.part(size),
            width,
            embedding_init=embedding_init,
            **dtypes.of_layer(rngs),
        )

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Return embeddings (..., width) of tokens (...); one all-reduce adds the shards."""
        if self.model_axis is WHOLE:
            return lookup(self.table, tokens)
        row, own = self._own(tokens)
        return self.model_axis.total(jnp.where(own[..., None], self.table(row), 0))

    def cross_entropy(self, x: jax.Array, labels: jax.Array) -> jax.Array:
        """Return the cross-entropy (...) of labels (...) for activations (..., width).

        Each device computes its shard of the logits in float32 or better; three all-reduces of one
        number per label combine the softmax.
        """
        logits = self.table.attend(x)
        logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
        if self.model_axis is WHOLE:
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        total = self.model_axis.total
        logits -= self.model_axis.largest(logits.max(-1))[..., None]
        row, own = self._own(labels)
        of_label = jnp.take_along_axis(logits, row[..., None], axis=-1)[..., 0]
        return jnp.log(total(jnp.exp(logits).sum(-1))) - total(jnp.where(own, of_label, 0))

    def _own(self, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return row numbers in this device's shard of the table, and which tokens lie in it."""
        rows = self.model_axis.part(self.size)
        row = tokens - self.model_axis.first(self.size)
        return jnp.clip(row, 0, rows - 1), (row >= 0) & (row < rows)
