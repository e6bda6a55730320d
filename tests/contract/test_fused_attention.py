"""Fused attention: where a kernel applies, and that it computes what plain attention does."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import distributions

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bench.contract import divided_sequences
from bench.contract.divided_sequences import causal_attention
from bench.contract.logical_axes import shapes_of_params
from bench.contract.workloads import gpt2
from tests.slow import slow


def heads(dtype, tokens=64, width=8):
    rng = np.random.default_rng(0)
    return tuple(jnp.asarray(rng.normal(size=(2, tokens, 3, width)), dtype) for _ in range(3))


def gradients(attention, arguments):
    def loss(*qkv):
        return (attention(*qkv).astype(jnp.float32) ** 2).sum()

    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2)))(*arguments)


def far(ours, theirs):
    one, other = (
        np.concatenate([np.ravel(x).astype("d") for x in jax.tree.leaves(side)])
        for side in (ours, theirs)
    )
    return np.linalg.norm(one - other) / np.linalg.norm(other)


@pytest.mark.parametrize(("dtype", "allowed"), [("bfloat16", 2.0**-6), *slow(("float16", 2.0**-9))])
@pytest.mark.parametrize("branches", [False, True])
def test_fused_attention_is_plain_attention(dtype, allowed, branches, monkeypatch):
    kernel = jax.nn.dot_product_attention if branches else None  # lowering for CPU leaves it out
    monkeypatch.setattr(divided_sequences, "cudnn_attention", lambda _: kernel)
    arguments = heads(dtype, tokens=128)

    def attention(*qkv):  # a new function, so that no earlier trace is used
        return causal_attention(*qkv)

    wide = tuple(x.astype(jnp.float32) for x in arguments)
    plain = gradients(causal_attention, wide)
    assert 0 < far(gradients(attention, arguments), plain) < allowed
    text = str(jax.make_jaxpr(attention)(*arguments))
    assert ("platform_index" in text) == branches


@pytest.mark.parametrize(
    ("precision", "fused"), [("fp64", False), ("fp32", False), ("bf16", True), ("fp16", True)]
)
def test_the_proof_is_plain_and_the_timed_step_fused(precision, fused, monkeypatch):
    checked = "jax._src.cudnn.fused_attention_stablehlo.check_cudnn_version"
    monkeypatch.setattr(checked, lambda: 91_000)
    monkeypatch.setattr(divided_sequences, "cudnn_is_here", lambda: True)
    with jax.enable_x64(precision == "fp64"):
        config = replace(gpt2.SIZES["tiny"](), layers=2, context=128)
        problem = gpt2.problem(config, 2, precision)
        params, loss = shapes_of_params(problem), problem.loss_function()
        text = str(jax.make_jaxpr(loss)(params, problem.batch(0)))
    assert ("dot_product_attention_fwd" in text) == fused


@pytest.mark.parametrize(
    ("shape", "dtype", "fits"),
    [
        ((2, 128, 3, 64), "bfloat16", True),
        ((2, 128, 3, 12), "bfloat16", False),
        ((2, 128, 3, 136), "bfloat16", False),
        ((2, 100, 3, 64), "float16", True),
        ((2, 128, 3, 64), "float32", False),
    ],
)
def test_a_kernel_is_for_some_shapes_and_dtypes(shape, dtype, fits, monkeypatch):
    monkeypatch.setattr(divided_sequences, "cudnn_is_here", lambda: True)
    query = jax.ShapeDtypeStruct(shape, dtype)
    assert (divided_sequences.cudnn_attention(query) is not None) == fits


def test_a_device_that_holds_a_part_of_the_queries_attends_plainly(monkeypatch):
    monkeypatch.setattr(divided_sequences, "cudnn_is_here", lambda: pytest.fail("asked"))
    query, key, value = heads("bfloat16", tokens=128)
    part = causal_attention(query[:, 64:], key, value, first=64)
    whole = causal_attention(*(x.astype(jnp.float32) for x in (query, key, value)))
    assert far(part, whole[:, 64:]) < 2.0**-6


def test_without_cudnn_its_kernel_is_not_traced():
    if any(each.name.startswith("jax-cuda") for each in distributions()):
        pytest.skip("jax's CUDA plugin brings cuDNN")
    assert not divided_sequences.cudnn_is_here()
