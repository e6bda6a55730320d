"""The vocabulary's loss is the textbook's, without padded rows and without wide logits."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P

from bench.contract import PRECISIONS, WHOLE, ModelAxis
from bench.contract.layers import Vocabulary, padded_rows
from bench.contract.workloads import gpt2
from bench.records.mesh import MeshShape
from bench.worker.problems import make_mesh
from bench.worker.prove.exact_arithmetic import rounding
from tests.slow import slow

SIZE, WIDTH, TOKENS = 200, 16, 24


def vocabulary(precision, axis=WHOLE):
    init = nnx.initializers.normal(1.0)
    dtypes = PRECISIONS[precision]
    return Vocabulary(SIZE, WIDTH, dtypes=dtypes, rngs=nnx.Rngs(0), axis=axis, embedding_init=init)


def inputs(precision):
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(2, TOKENS, WIDTH)), PRECISIONS[precision].compute)
    return x, jnp.asarray(rng.integers(SIZE, size=(2, TOKENS)), jnp.int32)


def loss(layer, x, labels):
    return (layer.cross_entropy(x, labels) * jnp.arange(1.0, TOKENS + 1)).mean()


def textbooks(table, x, labels):
    """From the logits of tokens alone, all in one dtype."""
    logits = x @ table[:SIZE].astype(x.dtype).T
    wide = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    losses = optax.softmax_cross_entropy_with_integer_labels(wide, labels)
    return (losses * jnp.arange(1.0, TOKENS + 1)).mean()


@pytest.mark.parametrize("precision", ["bf16", "fp64", *slow("fp32", "fp16")])
def test_the_loss_and_its_gradients_are_the_textbooks(precision):
    with jax.enable_x64(precision == "fp64"):
        layer, (x, labels) = vocabulary(precision), inputs(precision)
        ours, ours_grads = nnx.jit(nnx.value_and_grad(loss, argnums=(0, 1)))(layer, x, labels)
        table = layer.table.embedding[...]
        theirs, grads = jax.jit(jax.value_and_grad(textbooks, argnums=(0, 1)))(table, x, labels)
        near = 8 * rounding(precision, "cpu")
        np.testing.assert_allclose(ours, theirs, rtol=near)
        of_table = ours_grads[0]["table"]["embedding"][...]
        for pair in ((of_table, grads[0]), (ours_grads[1], grads[1])):
            one, other = (np.asarray(side, "d") for side in pair)
            assert np.linalg.norm(one - other) <= near * np.linalg.norm(other)
        assert not np.asarray(of_table[SIZE:]).any(), "padded rows are out of the loss"
        assert np.asarray(of_table[:SIZE]).any(-1).all()


def test_devices_share_padded_rows():
    mesh = make_mesh(MeshShape.parse("model=8"))
    x, labels = inputs("fp32")
    structure, state = nnx.split(vocabulary("fp32"))
    parts, _ = nnx.split(vocabulary("fp32", ModelAxis("model", 8)))

    def on_parts(state, x):
        return loss(nnx.merge(parts, state), x, labels)

    specs = jax.tree.map(lambda _: P("model"), state)
    sharded = jax.shard_map(on_parts, mesh=mesh, in_specs=(specs, P()), out_specs=P())
    ours = jax.jit(jax.value_and_grad(sharded, argnums=(0, 1)))(state, x)

    def on_one(state, x):
        return loss(nnx.merge(structure, state), x, labels)

    whole = jax.jit(jax.value_and_grad(on_one, argnums=(0, 1)))(state, x)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), ours, whole)


def test_logits_are_kept_once_in_the_activations_dtype():
    """No array of float32 logits outlives the fusion that reads it: none is an input or output."""
    layer, (x, labels) = vocabulary("bf16"), inputs("bf16")
    structure, state = nnx.split(layer)
    _, pullback = jax.vjp(lambda s, x: nnx.merge(structure, s).cross_entropy(x, labels), state, x)
    kept = [leaf for leaf in jax.tree.leaves(pullback) if leaf.size >= 2 * TOKENS * SIZE]
    assert [(leaf.shape, leaf.dtype) for leaf in kept] == [((2, TOKENS, 256), jnp.bfloat16)]


def test_gpt2_has_the_rows_that_others_give_it():
    assert [padded_rows(size) for size in (256, 257, 50_257)] == [256, 384, 50_304]
    assert gpt2.SIZES["124m"]().vocabulary == 50_257
