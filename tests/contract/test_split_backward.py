"""The parts of a backward pass give the gradients of the whole, each with its own products."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bench.contract.split_backward import over_run, split_backward


def block(params, x):
    """A residual MLP with a parameter that is cast."""
    up = jnp.tanh(x @ params["up"].astype(x.dtype))
    return x + up @ params["down"] * params["scale"]


CHECKPOINTED = jax.checkpoint(block, policy=jax.checkpoint_policies.nothing_saveable)


def example(length=None):
    keys = jax.random.split(jax.random.key(0), 4)
    shape = () if length is None else (length,)
    params = {
        "up": jax.random.normal(keys[0], (*shape, 4, 16)),
        "down": jax.random.normal(keys[1], (*shape, 16, 4)) / 4,
        "scale": jax.random.normal(keys[2], (*shape, 4)),
    }
    return params, jax.random.normal(keys[3], (8, 4)), jnp.ones((8, 4))


def products(function, *arguments):
    """Matrix products in a program."""
    traced = jax.make_jaxpr(function)(*arguments)
    return sum(equation.primitive.name == "dot_general" for equation in traced.jaxpr.eqns)


def assert_same(one, other):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), one, other)


@pytest.mark.parametrize(
    ("function", "counts", "saved"),
    [
        (block, (2, 2, 2), {(8, 4), (8, 16)}),
        # Each product is recomputed once, where it is needed first: one of them for `scale` alone.
        (CHECKPOINTED, (2, 3, 3), {(8, 4)}),
    ],
)
def test_each_part_has_its_own_products(function, counts, saved):
    params, x, cotangent = example()
    passes = split_backward(function, params, x)
    y, residuals = passes.forward(params, x)
    d_x, more = passes.backward_input(params, residuals, cotangent)
    whole, transposed = jax.vjp(function, params, x)
    assert_same(
        (y, (passes.backward_weights(params, residuals, more), d_x)), (whole, transposed(cotangent))
    )
    assert {array.shape for array in residuals} == saved, "and no parameter"
    assert not {array.shape for array in more} & {leaf.shape for leaf in jax.tree.leaves(params)}
    assert counts == (
        products(passes.forward, params, x),
        products(passes.backward_input, params, residuals, cotangent),
        products(passes.backward_weights, params, residuals, more),
    )


def test_a_run_of_blocks_is_split_block_by_block():
    params, x, cotangent = example(3)
    run = over_run(split_backward(block, jax.tree.map(lambda leaf: leaf[0], params), x))
    y, residuals = run.forward(params, x)
    d_x, more = run.backward_input(params, residuals, cotangent)

    def whole(params, x):
        return jax.lax.scan(lambda x, own: (block(own, x), None), x, params)[0]

    expected, transposed = jax.vjp(whole, params, x)
    assert_same(
        (y, (run.backward_weights(params, residuals, more), d_x)), (expected, transposed(cotangent))
    )
