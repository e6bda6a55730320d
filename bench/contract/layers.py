"""Layers that can be sharded over a mesh axis; on one device they are ordinary layers."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from bench.contract import WHOLE, ModelAxis, Precision
from bench.contract.divided_sequences import HALF_BYTES
from bench.contract.logical_axes import constrain
from bench.contract.varying import vary_alike

LECUN_NORMAL = nnx.initializers.lecun_normal()
"""The default initializer of nnx.Linear."""

ROWS_MULTIPLE = 128
"""Pads GPT-2's 50,257 tokens to 50,304 rows, as nanoGPT and llm.c do: tensor cores multiply them
faster, and every mesh axis whose size is a power of two up to 128 divides them."""

PARTS_OF_TOKENS = 8
"""Number of parts into which tokens are divided, to compute the logits of one part at a time."""
WIDE = 1 << 13
"""Fewest rows of a table whose logits are computed in parts; those of smaller tables take less
memory than the blocks' activations."""


class RowLinear(nnx.Module):
    """A linear layer whose inputs are sharded, and with them the rows of its kernel.

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


class SampleDropout(nnx.Module):
    """Dropout (Srivastava et al. 2014) whose masks do not depend on how a batch is sharded.

    Its model state is a key and a count of calls. Each sample's mask is drawn from the key, the
    count and the sample's number in the data, so every step draws new masks, and a sample gets the
    same one on any mesh. Masks are drawn in float32 at every precision, so that a proof in float64
    sees the same ones. `nnx.Dropout` has neither property.
    """

    def __init__(self, rate: float, rngs: nnx.Rngs) -> None:
        self.rate = rate
        self.stream = rngs.dropout.fork()

    def __call__(self, x: jax.Array, numbers: jax.Array) -> jax.Array:
        """Drop elements of samples x (batch, ...), by their int32 `numbers` (batch,)."""
        keys = jax.vmap(jax.random.fold_in, (None, 0))(self.stream(), numbers)

        def keep(key: jax.Array) -> jax.Array:
            return jax.random.uniform(key, x.shape[1:], jnp.float32) >= self.rate

        return jnp.where(jax.vmap(keep)(keys), x / (1 - self.rate), 0)


def lookup(table: nnx.Embed, rows: jax.Array) -> jax.Array:
    """Return embeddings (..., width) of rows (...) in the table's compute dtype.

    They are converted after the lookup, so that gradients are summed in the parameters' dtype. In
    bfloat16, that sum would lose digits for frequent tokens, and on an H200 it took half of the
    time of GPT-2's step. With explicit axes, JAX needs the result's sharding: that of `rows`.
    """
    values = table.embedding[...]
    if AxisType.Explicit in jax.sharding.get_abstract_mesh().axis_types:
        found = values.at[rows].get(out_sharding=P(*jax.typeof(rows).sharding.spec, None))
    else:
        found = jnp.take(values, rows, axis=0)
    return found.astype(table.dtype)


class Vocabulary(nnx.Module):
    """Token embedding and output layer that share one table, whose rows may be sharded.

    The table is padded to `padded_rows(size)` rows for `size` tokens. It is replicated if the axis
    does not divide these rows evenly.
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
        self.rows = padded_rows(size)
        self.model_axis = axis if self.rows % axis.size == 0 else WHOLE
        self.size = size
        self.table = nnx.Embed(
            self.model_axis.part(self.rows),
            width,
            embedding_init=embedding_init,
            **dtypes.of_layer(rngs),
        )

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Return embeddings (..., width) of tokens (...); one all-reduce adds up the shards."""
        if self.model_axis is WHOLE:
            return lookup(self.table, tokens)
        rows = self.model_axis.part(self.rows)
        row = tokens - self.model_axis.first(self.rows)
        own = (row >= 0) & (row < rows)
        found = lookup(self.table, jnp.clip(row, 0, rows - 1))
        return self.model_axis.total(jnp.where(own[..., None], found, 0))

    def cross_entropy(self, x: jax.Array, labels: jax.Array) -> jax.Array:
        """Return the mean cross-entropy of labels (batch, tokens) for x (batch, tokens, width).

        In 16 bits, a wide vocabulary's logits are computed for one part of the tokens at a time.
        Logits are widened to float32 or better. Each device computes the logits of its shard, and
        three all-reduces of one number per label combine the softmax.
        """
        wide = x.dtype.itemsize == HALF_BYTES and self.rows >= WIDE
        if wide and x.shape[1] % PARTS_OF_TOKENS == 0:
            x, labels = (
                jnp.moveaxis(y.reshape(len(y), PARTS_OF_TOKENS, -1, *y.shape[2:]), 1, 0)
                for y in (x, labels)
            )
        x, table = vary_alike(x, self.table.embedding[...])
        loss = jax.custom_vjp(lambda *own: self._loss_and_residuals(*own)[0])
        loss.defvjp(self._loss_and_residuals, _gradients)
        return loss(x, table, labels)

    def _loss_and_residuals(
        self, x: jax.Array, table: jax.Array, labels: jax.Array
    ) -> tuple[jax.Array, Any]:
        """Return the mean loss, and x, the table and the logits' gradients for the backward pass.

        A part's gradients, in the logits' dtype, replace its logits, as in llm.c, so that only they
        are kept. `labels` are (batch, tokens), or (parts, batch, tokens); `x` has one more
        dimension, the width. `table` has this device's shard of the rows; the last are padding.
        """
        axis = self.model_axis
        narrow = table.astype(x.dtype)  # once: compilers do not move it out of the loop over parts

        def of_part(own: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            x, part_labels = own
            logits = _logits(x, narrow)
            rows = axis.first(self.rows) + jnp.arange(logits.shape[-1])
            wide = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
            if self.size != self.rows:
                wide = jnp.where(rows < self.size, wide, -jnp.inf)
            is_label = part_labels[..., None] == rows
            largest = axis.largest(wide.max(-1))
            log_total = largest + jnp.log(axis.total(jnp.exp(wide - largest[..., None]).sum(-1)))
            # A masked sum, because the transpose of a lookup would scatter into a wide array.
            of_label = axis.total(jnp.where(is_label, wide, 0).sum(-1))
            of_logits = (jnp.exp(wide - log_total[..., None]) - is_label) / labels.size
            return log_total - of_label, of_logits.astype(logits.dtype)

        in_parts = labels.ndim > 2  # noqa: PLR2004 - batch and tokens
        run = partial(jax.lax.map, of_part) if in_parts else of_part
        losses, of_logits = run((x, labels))
        return losses.mean(), (x, table, of_logits)


def padded_rows(size: int) -> int:
    """Return the rows of a table for `size` tokens: the next multiple of ROWS_MULTIPLE."""
    return -(-size // ROWS_MULTIPLE) * ROWS_MULTIPLE


def _logits(x: jax.Array, table: jax.Array) -> jax.Array:
    return jnp.dot(x, table.astype(x.dtype).T)


def _gradients(saved: Any, cotangent: jax.Array) -> tuple[jax.Array, jax.Array, None]:
    x, table, of_logits = saved
    gradients = jax.vjp(_logits, x, table)[1](of_logits)
    of_x, of_table = ((leaf * cotangent).astype(leaf.dtype) for leaf in gradients)
    return of_x, of_table, None
