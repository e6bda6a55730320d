"""What a chain of layers keeps for its backward pass, and how long its program is."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bench.contract import PRECISIONS
from bench.contract.layer_stacks import make_layers, reference_loss, run_layers
from bench.contract.logical_axes import shapes_of_params
from bench.contract.workloads import gpt2, linear, moe
from bench.records.mesh import MeshShape
from bench.worker.file_loader import implementation_files, load
from bench.worker.problems import make_mesh
from bench.worker.prove.gate import Gate
from bench.worker.read.programs import product_flops
from tests.slow import slow

BATCH, CONTEXT, WIDTH, HEADS = 8, 64, 32, 2
TOKENS = BATCH * CONTEXT
SCORES = BATCH * HEADS * CONTEXT**2
POLICIES = ("", "dots", "full")


def problem_of(workload, layers, precision="fp32", **options):
    config = workload.Config(layers, heads=HEADS, width=WIDTH, context=CONTEXT, vocabulary=9)
    return workload.problem(config, BATCH, precision, **options)


def kept_per_layer(**options):
    """Values that a further layer of GPT-2 keeps for its backward pass, beside its parameters."""

    def kept(layers):
        problem = problem_of(gpt2, layers, **options)
        params, loss_fn = shapes_of_params(problem), problem.loss_function()
        of_batch = partial(loss_fn, batch=problem.batch(0))
        residuals = jax.tree.leaves(jax.eval_shape(lambda own: jax.vjp(of_batch, own)[1], params))
        own = {leaf.shape for leaf in jax.tree.leaves(params["blocks"])}
        return sum(leaf.size for leaf in residuals if leaf.shape not in own)

    return kept(3) - kept(2)


@pytest.mark.parametrize("scan_layers", [False, True])
def test_a_policy_keeps_what_it_names(scan_layers):
    """The block's input, and for `dots` three projections, one after attention, and the MLP's."""
    kept = partial(kept_per_layer, scan_layers=scan_layers)
    assert kept(remat="full") == TOKENS * WIDTH
    assert kept(remat="dots") == TOKENS * WIDTH * (1 + 3 + 1 + 4)
    assert kept() > TOKENS * WIDTH * (1 + 3 + 1 + 4) + 2 * SCORES


@pytest.mark.slow
@pytest.mark.parametrize("scan_layers", [False, True])
def test_compiled_programs_need_less_memory_the_more_is_recomputed(scan_layers):
    """Less, but where XLA shares the second computation with the first, as older ones do on CPU."""
    temporary = []
    for remat in POLICIES:
        problem = problem_of(gpt2, 3, remat=remat, scan_layers=scan_layers)
        params, loss_fn = problem.functional()
        step = jax.jit(jax.value_and_grad(loss_fn)).lower(params, problem.batch(0)).compile()
        temporary.append(step.memory_analysis().temp_size_in_bytes)
    assert temporary == sorted(temporary, reverse=True)
    if scan_layers:  # a loop's second computation is apart from the first
        assert temporary[0] - temporary[1] > 4 * 2 * SCORES
        assert temporary[1] - temporary[2] > 4 * 7 * TOKENS * WIDTH


@pytest.mark.parametrize(
    ("workload", "remat"),
    slow(*itertools.product((gpt2, moe), POLICIES)),
)
def test_a_loop_over_stacked_layers_computes_what_the_layers_do(workload, remat):
    """As do blocks whose activations are computed again, to the rounding of float64."""
    with jax.enable_x64(True):
        plain = problem_of(workload, 3, "fp64")
        found = problem_of(workload, 3, "fp64", remat=remat, scan_layers=True)
        params, batch = found.draw(), plain.batch(0)
        losses = found.loss_function(), reference_loss(plain, found)
        ours, theirs = (jax.jit(jax.value_and_grad(loss))(params, batch) for loss in losses)
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-14), ours, theirs)


def test_stacked_layers_start_as_the_layers_do():
    plain, found = (problem_of(moe, 3, scan_layers=scan).draw() for scan in (False, True))
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *plain.pop("blocks").values())
    jax.tree.map(np.testing.assert_array_equal, found.pop("blocks"), stacked)
    jax.tree.map(np.testing.assert_array_equal, found, plain)


class Chain(nnx.Module):
    """Three equal layers: (batch, 4) to the same."""

    def __init__(self, dtypes, scan_layers, remat):
        rngs, self.remat = nnx.Rngs(0), remat
        self.blocks = make_layers(
            lambda: nnx.Linear(4, 4, **dtypes.of_layer(rngs)), 3, stacked=scan_layers
        )

    def __call__(self, x):
        return run_layers(self.blocks, lambda one, x: (jnp.tanh(one(x)), None), x, self.remat)[0]


def chain(precision, *, scan_layers=False, remat=""):
    small = linear.problem(linear.Config(4, 4), 8, precision)
    return replace(
        small,
        make_model=lambda: Chain(PRECISIONS[precision], scan_layers, remat),
        make_part=None,
        axis_names={},
        stacked="blocks" if scan_layers else "",
    )


@pytest.mark.parametrize(
    "name", ["fsdp_shard_map", *slow("shard_map_pmean", "jit_spmd", "fsdp_spmd")]
)
def test_the_gate_proves_loops_and_policies_against_neither(programs, name):
    """A chain of layers that is small enough for every run of the tests."""
    implementation = load(implementation_files([])[name])
    mesh = make_mesh(MeshShape.parse("data=2"))
    for remat in POLICIES:
        with jax.enable_x64(True):
            exact, plain = chain("fp64", scan_layers=True, remat=remat), chain("fp64")
        gate = Gate(
            chain("fp32", scan_layers=True, remat=remat), exact, mesh, 2, "fp32", programs, plain
        )
        assert len(gate.prove_exact(implementation)) == 2


def operations(workload, layers, *, scan_layers):
    """Operations of the lowered loss and gradients: what there is to compile."""
    problem = problem_of(workload, layers, scan_layers=scan_layers)
    step = jax.jit(jax.value_and_grad(problem.loss_function()))
    return step.lower(shapes_of_params(problem), problem.batch(0)).as_text().count(" = ")


@pytest.mark.parametrize("workload", [gpt2, *slow(moe)])
def test_a_loops_program_does_not_grow_with_its_layers(workload):
    looped = [operations(workload, layers, scan_layers=True) for layers in (2, 8)]
    assert looped[0] == looped[1]
    few, more = (operations(workload, layers, scan_layers=False) for layers in (2, 4))
    assert looped[0] < more
    assert more - few > 0.5 * looped[0]


def test_products_in_a_loop_count_as_often_as_it_runs():
    """Also where XLA has copied the loop's computations to the end of the module."""
    found = []
    for scan_layers in (False, True):
        problem = problem_of(gpt2, 3, scan_layers=scan_layers)
        step = jax.jit(jax.value_and_grad(problem.loss_function()))
        compiled = step.lower(shapes_of_params(problem), problem.batch(0)).compile()
        found.append(product_flops([compiled.runtime_executable()]))
    assert found[0] == found[1]


@pytest.mark.slow
def test_hand_written_fsdp_gathers_a_layer_a_turn():
    """The largest array that is gathered is one layer's, whatever the number of layers."""
    implementation = load(implementation_files([])["fsdp_shard_map"])
    mesh = make_mesh(MeshShape.parse("data=2"))
    problem = problem_of(gpt2, 5, scan_layers=True)
    step = implementation.build(problem, mesh)
    text = step.step.lower(step.state, step.place(problem.batch(0))).as_text()
    gathers = [line for line in text.splitlines() if "all_gather" in line]
    assert any("-> tensor<32x" in line for line in gathers)
    assert not any("-> tensor<5x" in line for line in gathers)
