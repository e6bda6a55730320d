"""The vocabulary's loss is the textbook's, without padded rows and without wide logits."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P

from bench.contract import PRECISIONS, WHOLE, ModelAxis, layers
from bench.contract.layers import Vocabulary, padded_rows
from bench.contract.workloads import gpt2
from bench.records.mesh import MeshShape
from bench.records.row_parts import AS_TIMED, TIMED_SGD
from bench.worker.problems import make_mesh
from bench.worker.prove.exact_arithmetic import rounding
from bench.worker.prove.gate import Gate
from bench.worker.read.programs import communication
from implementations import (
    context_ring,
    fsdp_shard_map,
    jit_spmd,
    pipeline_zero_bubble,
    tensor_parallel_shard_map,
    tensor_parallel_spmd,
)
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


def test_a_frequent_tokens_gradient_adds_up_beyond_the_digits_of_bfloat16():
    """A sum of ones in bfloat16 stays at 256."""
    layer, times = vocabulary("bf16"), 1024

    def total(layer):
        return layer(jnp.full((1, times), 3)).astype(jnp.float32).sum()

    assert layer(jnp.zeros((1, 1), jnp.int32)).dtype == jnp.bfloat16
    gradient = nnx.grad(total)(layer)["table"]["embedding"][...]
    assert gradient.dtype == jnp.float32
    assert np.all(gradient[3] == times)


def loss(layer, x, labels):
    return 3.0 * layer.cross_entropy(x, labels)


def textbooks(table, x, labels):
    """Only from the logits of tokens, all in one dtype."""
    logits = x @ table[:SIZE].astype(x.dtype).T
    wide = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    return 3.0 * optax.softmax_cross_entropy_with_integer_labels(wide, labels).mean()


@pytest.fixture(params=["whole", "in parts"])
def parts(request, monkeypatch):
    """The parts of the tokens, in 16 bits."""
    if request.param == "whole":
        return 1
    monkeypatch.setattr(layers, "WIDE", 0)
    return layers.PARTS_OF_TOKENS


@pytest.mark.usefixtures("parts")
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


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize(("precision", "near"), [("fp32", 1e-4), ("bf16", 2e-2)])
def test_devices_share_padded_rows(precision, near):
    mesh = make_mesh(MeshShape.parse("model=8"))
    x, labels = inputs(precision)
    structure, state = nnx.split(vocabulary(precision))
    of_device, _ = nnx.split(vocabulary(precision, ModelAxis("model", 8)))

    def on_parts(state, x):
        return loss(nnx.merge(of_device, state), x, labels)

    specs = jax.tree.map(lambda _: P("model"), state)
    sharded = jax.shard_map(on_parts, mesh=mesh, in_specs=(specs, P()), out_specs=P())
    ours = jax.jit(jax.value_and_grad(sharded, argnums=(0, 1)))(state, x)

    def on_one(state, x):
        return loss(nnx.merge(structure, state), x, labels)

    whole = jax.jit(jax.value_and_grad(on_one, argnums=(0, 1)))(state, x)
    for one, other in zip(*map(jax.tree.leaves, (ours, whole)), strict=True):
        a, b = (np.asarray(side, "d") for side in (one, other))
        assert np.linalg.norm(a - b) <= near * np.linalg.norm(b)


def test_one_array_of_the_logits_size_is_kept_in_the_activations_dtype(parts):
    """It holds their gradients. No wide array outlives the loss."""
    layer, (x, labels) = vocabulary("bf16"), inputs("bf16")
    structure, state = nnx.split(layer)
    _, pullback = jax.vjp(lambda s, x: nnx.merge(structure, s).cross_entropy(x, labels), state, x)
    kept = [leaf for leaf in jax.tree.leaves(pullback) if leaf.size >= 2 * TOKENS * SIZE]
    shape = (2, TOKENS, 256) if parts == 1 else (parts, 2, TOKENS // parts, 256)
    assert [(leaf.shape, leaf.dtype) for leaf in kept] == [(shape, jnp.bfloat16)]


def test_no_float32_array_has_the_size_of_all_logits(monkeypatch):
    """At the shapes of gpt2-124m, with one block."""
    batch, config = 2, replace(gpt2.SIZES["124m"](), layers=1)
    logits = batch * config.context * padded_rows(config.vocabulary)

    def lowered():
        problem = gpt2.problem(config, batch, "bf16")
        tokens = jax.ShapeDtypeStruct((batch, config.context + 1), jnp.int32)
        step = jax.jit(jax.value_and_grad(problem.loss_function()))
        return step.lower(jax.eval_shape(problem.draw), tokens)

    def largest(program):
        # Before XLA, which on some CPUs computes products of bfloat16 in float32.
        shapes = re.findall(r"tensor<([\dx]+)xf32>", program.as_text())
        return max(math.prod(map(int, shape.split("x"))) for shape in shapes)

    in_parts = lowered()
    monkeypatch.setattr(layers, "WIDE", math.inf)
    whole = lowered()
    assert largest(in_parts) < logits <= largest(whole)
    plans = (one.compile().memory_analysis() for one in (in_parts, whole))
    used, before = (plan.temp_size_in_bytes for plan in plans)
    # XLA:CPU of jaxlib 0.10 keeps the gradients of all logits in float32.
    saved = 3 * logits if jax.__version_info__ >= (0, 12) else 0
    assert used < before - saved, "bytes"


@pytest.mark.parametrize(
    ("module", "axes"),
    [
        *slow(
            (jit_spmd, "data=2"),
            (tensor_parallel_shard_map, "data=1,model=2"),
            (context_ring, "data=1,context=2"),
            (fsdp_shard_map, "data=2"),
            (tensor_parallel_spmd, "data=1,model=2"),
            (pipeline_zero_bubble, "data=1,pipe=2"),
        ),
    ],
)
def test_steps_whose_logits_are_computed_in_parts_are_right(monkeypatch, programs, module, axes):
    monkeypatch.setattr(layers, "WIDE", 0)
    mesh = make_mesh(MeshShape.parse(axes))
    config = replace(gpt2.SIZES["tiny"](), layers=mesh.shape.get("pipe", 1), vocabulary=250)

    def of(precision):
        return replace(gpt2.problem(config, 4, precision), microbatches=2)

    with jax.enable_x64(True):
        exact = of("fp64")
    gate = Gate(of("bf16"), exact, mesh, mesh.shape["data"], "bf16", programs)
    assert gate.prove_rounding(module)["name"] == TIMED_SGD
    build = partial(module.build, of("bf16"), mesh)
    assert gate.prove_timed(build(), build)[0]["name"] == AS_TIMED


def test_gpt2_has_the_rows_that_others_give_it():
    assert [padded_rows(size) for size in (256, 257, 50_257)] == [256, 384, 50_304]
    assert gpt2.SIZES["124m"]().vocabulary == 50_257


@pytest.mark.parametrize(
    ("module", "axes"), [(jit_spmd, "data=2"), *slow((tensor_parallel_spmd, "data=1,model=2"))]
)
def test_parts_add_no_communication(monkeypatch, module, axes):
    """The compiler reduces the table's gradient once, not once for each part."""
    mesh = make_mesh(MeshShape.parse(axes))
    problem = gpt2.problem(gpt2.SIZES["tiny"](), 4, "bf16")
    problem = replace(problem, optimizer=optax.sgd(1e-2))  # its update compiles sooner

    def sent():
        built = module.build(problem, mesh)
        compiled = built.step.lower(built.state, built.place(problem.batch(0))).compile()
        rows = communication([compiled.runtime_executable()], mesh)
        return sum(row["wire_bytes"] for row in rows)

    whole = sent()
    monkeypatch.setattr(layers, "WIDE", 0)
    assert sent() == whole
