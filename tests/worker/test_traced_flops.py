"""FLOPs of a traced step, against products counted by hand."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.sharding import PartitionSpec as P

from bench.contract.workloads import gpt2
from bench.records.mesh import MeshShape
from bench.records.paths import ROOT
from bench.worker.answer.abstract_step import abstract_step
from bench.worker.file_loader import implementation_files, load
from bench.worker.problems import make_mesh
from bench.worker.read.programs import flops_if_traceable, flops_of
from tests.slow import slow

X, W = jnp.ones((8, 16)), jnp.ones((16, 16))
PRODUCT = 2 * 8 * 16 * 16


def test_a_product_and_its_gradients():
    assert flops_if_traceable(jnp.dot, X, W) == PRODUCT
    assert flops_if_traceable(jax.grad(lambda w: (X @ w).sum()), W) == 2 * PRODUCT
    batched = flops_if_traceable(jax.vmap(jnp.dot), jnp.ones((3, 8, 16)), jnp.ones((3, 16, 16)))
    assert batched == 3 * PRODUCT


@pytest.mark.parametrize("argument", [0, 1])
def test_products_of_groups_and_their_gradients(argument):
    """Each row is multiplied by the matrix of its group alone."""
    groups, sizes = jnp.ones((2, 16, 16)), jnp.array([3, 5])
    product = lambda x, w: jax.lax.ragged_dot(x, w, sizes)  # noqa: E731
    assert flops_if_traceable(product, X, groups) == PRODUCT
    gradient = jax.grad(lambda *both: (product(*both) ** 2).sum(), argument)
    assert flops_if_traceable(gradient, X, groups) == 2 * PRODUCT


def test_loops_count_as_often_as_they_run():
    def step(x):
        inner = lambda x, _: (jnp.tanh(x @ W), None)  # noqa: E731
        outer = lambda x, _: (jax.lax.scan(inner, x, None, length=3)[0], None)  # noqa: E731
        return jax.jit(lambda x: jax.lax.scan(outer, x, None, length=5)[0])(x)

    assert flops_if_traceable(step, X) == 15 * PRODUCT


def test_a_block_is_recomputed_without_its_last_product():
    def traced(remat):
        problem = gpt2.problem(gpt2.SIZES["nano"](), 4, "fp32", remat)
        params, loss_fn = problem.functional()
        return flops_if_traceable(jax.value_and_grad(loss_fn), params, problem.batch(0))

    more = traced("full") / traced("") - 1
    page = (ROOT / "docs/compile-time-and-memory.md").read_text()
    assert f"{more:.0%} more *Traced FLOPs*".replace("%", " %") in page


def test_rematerialization_is_work():
    def loss(w, remat):
        layer = lambda w: jnp.tanh(jnp.tanh(X @ w) @ w).sum()  # noqa: E731
        return (jax.checkpoint(layer) if remat else layer)(w)

    plain, again = (
        flops_if_traceable(jax.grad(lambda w, r=r: loss(w, r)), W) for r in (False, True)
    )
    assert (plain, again) == (5 * PRODUCT, 7 * PRODUCT)


def test_the_largest_branch_counts():
    def step(x):
        return jax.lax.cond(x[0, 0] > 0, lambda x: x @ W @ W, lambda x: x @ W, x)

    assert flops_if_traceable(step, X) == 2 * PRODUCT
    assert flops_if_traceable(lambda x: step(step(x)), X, share=0.25) == PRODUCT


@pytest.mark.parametrize(
    ("name", "slots"),
    [
        ("pipeline_zero_bubble", 3 * 4 + 3),
        # In the second, backward passes compute the forward pass again.
        *slow(("pipeline_gpipe", 3 * (4 + 3)), ("pipeline_1f1b", (3 + 1) * (4 + 3))),
    ],
)
def test_a_pipelines_blocks_take_as_many_passes_as_its_schedule_is_long(name, slots):
    """Four stages and microbatches; a slot is a forward pass, or half of a backward pass."""
    mesh = make_mesh(MeshShape.parse("data=1,pipe=4"))
    implementation, flops, model_flops = load(implementation_files([])[name]), [], []
    for layers in (4, 8):
        config = replace(gpt2.SIZES["tiny"](), layers=layers)
        problem = replace(gpt2.problem(config, 4, "fp32"), microbatches=4)
        traced, _, share = abstract_step(implementation, problem, mesh, problem.batch(0))
        flops.append(flops_of(traced.jaxpr, share))
        model_flops.append(problem.model_flops)
    blocks, model = (large - small for small, large in (flops, model_flops))
    assert blocks / model == pytest.approx(slots / (3 * 4))


def test_every_device_counts_with_what_it_computes():
    mesh = make_mesh(MeshShape.parse("data=2,model=2"))
    divided = jax.shard_map(jnp.dot, mesh=mesh, in_specs=(P("data"), P()), out_specs=P("data"))
    # Over model both devices compute the same.
    assert flops_if_traceable(divided, X, W) == 2 * PRODUCT


def test_a_convolution():
    image, kernel = jnp.ones((2, 8, 8, 3)), jnp.ones((3, 3, 3, 5))
    convolve = lambda x, k: jax.lax.conv_general_dilated(  # noqa: E731
        x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    assert flops_if_traceable(convolve, image, kernel) == 2 * (2 * 8 * 8 * 5) * (3 * 3 * 3)


@pytest.mark.parametrize("argument", [0, 1])
def test_the_gradients_of_a_strided_convolution_do_as_much_as_the_convolution(argument):
    """That of the image inserts zeros between the output's elements, which are no work."""
    image, kernel = jnp.ones((2, 8, 8, 4)), jnp.ones((3, 3, 4, 8))
    convolve = lambda x, k: jax.lax.conv_general_dilated(  # noqa: E731
        x, k, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    gradient = jax.grad(lambda *both: convolve(*both).sum(), argument)
    forward = 2 * (2 * 4 * 4 * 8) * (3 * 3 * 4)
    assert flops_if_traceable(convolve, image, kernel) == forward
    assert flops_if_traceable(gradient, image, kernel) == 2 * forward, "with the forward pass"


def test_a_pallas_kernel_counts_once_per_cell_of_its_grid():
    def kernel(x, w, out):
        out[...] = x[...] @ w[...]

    def product(x, w):
        return pl.pallas_call(
            kernel,
            out_shape=jax.ShapeDtypeStruct((8, 16), jnp.float32),
            grid=(4, 2),
            in_specs=[pl.BlockSpec((2, 16), lambda i, _: (i, 0)),
                      pl.BlockSpec((16, 8), lambda _, j: (0, j))],
            out_specs=pl.BlockSpec((2, 8), lambda i, j: (i, j)),
        )(x, w)  # fmt: skip

    assert flops_if_traceable(product, X, W) == PRODUCT


def test_what_is_no_jax_program_cannot_be_traced():
    assert flops_if_traceable(lambda x: x * float(x[0, 0]), X) is None
