"""Layers that a model may divide over devices. On one device they are what they always are."""

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
"""What nnx.Linear starts from."""


class RowLinear(nnx.Module):
    """A linear layer whose inputs are divided, and so the rows of its kernel.

    Each device multiplies its share of the inputs; the products are added up by one all-reduce, and
    the bias is added once, to the sum.
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
            dtype=dtypes.compute,
            param_dtype=dtypes.params,
            kernel_init=kernel_init,
            rngs=rngs,
        )
        self.bias = nnx.Param(jnp.zeros(outputs, dtypes.params))

    def __call__(self, x: jax.Array) -> jax.Array:
        """This device's share of the inputs (..., *inputs) to all outputs (..., outputs)."""
        total = self.model_axis.total(self.product(x))
        y = total + self.bias[...].astype(total.dtype)
        return constrain(y, ("batch", *(None,) * (y.ndim - 2), "embed"))


def lookup(table: nnx.Embed, rows: jax.Array) -> jax.Array:
    """Embeddings (..., width) of rows (...).

    With explicit axes JAX wants to be told how a lookup's result is divided: as the rows are.
    """
    if AxisType.Explicit not in jax.sharding.get_abstract_mesh().axis_types:
        return table(rows)
    values = table.embedding[...].astype(table.dtype)
    return values.at[rows].get(out_sharding=P(*jax.typeof(rows).sharding.spec, None))


class Vocabulary(nnx.Module):
    """Token embedding and output layer with one table, whose rows may be divided.

    Args:
      size: tokens there are. Where the axis does not divide them evenly they are not divided.
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
            dtype=dtypes.compute,
            param_dtype=dtypes.params,
            rngs=rngs,
        )

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Embeddings (..., width) of tokens (...): a device looks up its rows, one all-reduce."""
        if self.model_axis is WHOLE:
            return lookup(self.table, tokens)
        row, own = self._own(tokens)
        return self.model_axis.total(jnp.where(own[..., None], self.table(row), 0))

    def cross_entropy(self, x: jax.Array, labels: jax.Array) -> jax.Array:
        """Cross-entropy (...) of labels (...) under the logits of activations (..., width).

        A device has its share of the logits, float32 at least; three all-reduces of a number a
        label put the softmax together.
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
        """Rows of this device's share of the table, and whether they are the tokens'."""
        rows = self.model_axis.part(self.size)
        row = tokens - self.model_axis.first(self.size)
        return jnp.clip(row, 0, rows - 1), (row >= 0) & (row < rows)
