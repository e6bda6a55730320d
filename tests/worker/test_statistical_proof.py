"""Approximate steps pass if they train as the reference does, and planted ones that do not fail."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

from bench.contract import TrainStep
from bench.contract.placement import (
    create_data_parallel_sharding,
    place_batch_on_shards,
    place_model_state_on_shards,
)
from bench.contract.workloads import linear, mlp
from bench.records.mesh import MeshShape
from bench.worker.file_loader import implementation_files, load
from bench.worker.problems import make_mesh
from bench.worker.prove import statistical_proof
from bench.worker.prove.carried_state import flat, on_host
from bench.worker.prove.failures import UnsupportedError, WrongStepError, approximation
from bench.worker.prove.gate import Gate
from bench.worker.prove.relative_errors import named_state
from bench.worker.prove.statistical_proof import (
    MARGIN,
    SEEDS,
    STEPS,
    StatisticalProof,
    with_rows,
)
from implementations import jit_spmd, local_steps, shard_map_pmean
from tests.slow import slow
from tests.worker import test_model_state
from tests.worker.conftest import on_the_host

APPROXIMATE = {
    name: module
    for name, path in implementation_files([]).items()
    if approximation(module := load(path))
}
ROWS = 32
"""Samples of each device. With fewer, optimizers of single devices see too much noise."""


def proof_of(workload, mesh, programs, change=lambda problem: problem):
    config, mesh = workload.SIZES["tiny"](), make_mesh(MeshShape.parse(mesh))
    batch = ROWS * mesh.shape["data"]
    timed = on_the_host(change(workload.problem(config, batch, "fp32")))
    with jax.enable_x64(True):
        exact = change(workload.problem(config, batch, "fp64"))
    return StatisticalProof(Gate(timed, exact, mesh, mesh.shape["data"], "fp32", programs)), mesh


@pytest.fixture(scope="module")
def proofs(programs):
    """A block's proof on the MLP, made once for all steps."""
    made = {}

    def proof(mesh="data=2"):
        if mesh not in made:
            made[mesh] = proof_of(mlp, mesh, programs)
        return made[mesh]

    return proof


def proved(proofs, build, mesh="data=2"):
    proof, mesh = proofs(mesh)
    return proof.prove(lambda problem: build(problem, mesh), lambda: None)


def with_updates(change):
    """shard_map_pmean with another optimizer's updates."""

    def build(problem, mesh):
        own = problem.optimizer

        def update(grads, state, params=None):
            updates, state = own.update(grads, state, params)
            return change(updates), state

        optimizer = optax.GradientTransformation(own.init, update)
        return shard_map_pmean.build(replace(problem, optimizer=optimizer), mesh)

    return build


def scaled(factor):
    return with_updates(lambda updates: jax.tree.map(lambda x: factor * x, updates))


def returning(change):
    """shard_map_pmean with other losses."""

    def build(problem, mesh):
        right = shard_map_pmean.build(problem, mesh)

        def step(state, batch):
            state, loss = right.step(state, batch)
            return state, change(loss)

        return replace(right, step=step)

    return build


def reduced_by(reduce):
    """Data parallelism whose gradients are reduced as told."""

    def build(problem, mesh):
        params, loss_fn = problem.functional()
        sharding = create_data_parallel_sharding(mesh)

        @jax.jit
        @partial(
            jax.shard_map, mesh=mesh, in_specs=(P(), P("data")), out_specs=P(), check_vma=False
        )
        def step(state, batch):
            params, opt_state = state
            loss, grads = jax.value_and_grad(loss_fn)(params, batch)
            updates, opt_state = problem.optimizer.update(reduce(grads), opt_state, params)
            return (optax.apply_updates(params, updates), opt_state), jax.lax.pmean(loss, "data")

        return TrainStep(
            state=place_model_state_on_shards((params, problem.optimizer.init(params)), mesh),
            place=partial(place_batch_on_shards, sharding=sharding),
            step=step,
            params=lambda state: state[0],
        )

    return build


def of_first_device(grads):
    own = jax.lax.axis_index("data") == 0
    return jax.lax.psum(jax.tree.map(lambda x: jnp.where(own, x, 0), grads), "data")


def never_averaged(problem, mesh):
    """Local steps whose parameters are averaged when they are read, outside the step."""
    right = local_steps.build(problem, mesh)
    mean = jax.jit(lambda tree: jax.tree.map(lambda x: x.mean(0), tree))
    return replace(right, params=lambda state: mean(state[2][0]), period=1)


def nan_elsewhere(problem, mesh):
    """shard_map_pmean with a copy of its parameters that is NaN on all devices but the first."""
    right = shard_map_pmean.build(problem, mesh)

    @jax.jit
    @partial(jax.shard_map, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)
    def spoiled(params):
        is_first = jax.lax.axis_index("data") == 0
        return jax.tree.map(lambda x: jnp.where(is_first, x, jnp.nan), params)

    def step(state, batch):
        state, loss = right.step(state[0], batch)
        return (state, spoiled(right.params(state))), loss

    start = right.state, spoiled(right.params(right.state))
    return replace(right, state=start, step=step, params=lambda state: state[1])


@pytest.mark.parametrize(
    ("name", "mesh"),
    [
        *slow(*((name, f"data={count}") for name in APPROXIMATE for count in (1, 2, 4))),
    ],
)
def test_approximate_files_train_as_the_reference_does(proofs, name, mesh):
    check = proved(proofs, APPROXIMATE[name].build, mesh)
    assert (check["name"], check["seeds"], check["steps"]) == ("statistical", SEEDS, STEPS)
    assert -MARGIN <= check["low"] < check["high"] <= MARGIN
    assert check["loss_error"] == max(check["high"], -check["low"])
    proof, devices = proofs(mesh)
    train_step = APPROXIMATE[name].build(proof._problem(0), devices)
    alone, state = proof.prove_timed(train_step)
    assert (alone["name"], alone["seeds"]) == ("as timed", 1)
    assert np.isfinite(jax.tree.leaves(train_step.params(state))[0]).all()


def test_a_step_that_is_exact_after_all_passes(proofs):
    check = proved(proofs, shard_map_pmean.build)
    assert check["loss_error"] < 1e-3


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (scaled(0.0), f"the parameters do not change in {STEPS} steps"),
        (scaled(-1.0), "does not train as well: in 48 steps, its loss falls by"),
        (scaled(0.5), "does not train as well: in 48 steps, its loss falls by"),
        (scaled(2.0), "it trains better than an approximation of the step can"),
        (scaled(float("nan")), "the loss or a parameter is not finite"),
        (returning(lambda loss: 0.9 * loss), "the losses that it returns are not those of its"),
        (returning(jnp.zeros_like), "the losses that it returns are not those of its parameters"),
        (reduced_by(lambda grads: grads), "replicas drift"),
        (nan_elsewhere, "replicas drift"),
        (
            reduced_by(of_first_device),
            "the labels of the last 16 rows of the batch have no influence",
        ),
        (never_averaged, "`params` computes the parameters"),
        (
            lambda problem, mesh: replace(shard_map_pmean.build(problem, mesh), period=12),
            "the parameters change in 48 of 48 steps, more often than once in a period of 12",
        ),
        (
            lambda problem, mesh: replace(local_steps.build(problem, mesh), period=100),
            "its period is 100; it must be from 1 to 12",
        ),
    ],
)
def test_planted_steps_are_refused(proofs, build, why):
    with pytest.raises(WrongStepError, match=re.escape(why)):
        proved(proofs, build)


def test_the_step_that_is_timed_is_judged_too(proofs):
    """It may be another one than those before."""
    proof, mesh = proofs()
    with pytest.raises(WrongStepError, match=r"falls by .* the reference's does \(as timed"):
        proof.prove_timed(scaled(0.3)(proof._problem(0), mesh))


def test_a_workload_that_does_not_train_judges_nothing(programs):
    def still(problem):
        return replace(problem, optimizer=optax.sgd(0.0))

    proof, mesh = proof_of(linear, "data=2", programs, still)
    with pytest.raises(UnsupportedError, match="there is nothing to judge it by"):
        proof.prove(lambda problem: shard_map_pmean.build(problem, mesh), lambda: None)


def test_a_seed_keeps_the_distribution_of_the_parameters_and_has_batches_of_its_own(proofs):
    proof, _ = proofs()
    one, two = proof._problem(1), proof._problem(2)
    leaves = zip(*(jax.tree.leaves(p.start) for p in (proof._problem(0), one, two)), strict=True)
    for start, first, second in leaves:
        np.testing.assert_array_equal(np.sort(first, axis=None), np.sort(start, axis=None))
        if np.unique(start).size > 1:
            assert (first != second).any()
    assert (one.batch(0)[0] != two.batch(0)[0]).any()
    np.testing.assert_array_equal(one.batch(STEPS)[0], two.batch(0)[0])


def test_other_labels_replace_some_of_a_batch():
    batch, other = ((np.full((6, 2), value), np.full(6, value)) for value in (0, 1))
    inputs, labels = with_rows(batch, other, 1, slice(1, None, 3))
    assert labels.tolist() == [0, 1, 0, 0, 1, 0]
    assert not inputs.any()
    assert not batch[1].any()


@pytest.fixture(scope="module")
def halves(programs):
    """A proof with two microbatches."""

    def two_microbatches(problem):
        """Add an array that nothing depends on: the labels are the one before it."""

        def batch(number):
            return *problem.batch(number), np.full(problem.batch_size, number)

        def loss(model, batch):
            return problem.loss(model, batch[:2])

        return replace(problem, batch=batch, loss=loss, microbatches=2)

    return proof_of(mlp, "data=2", programs, two_microbatches)


@pytest.mark.parametrize(
    ("rows", "left_out"),
    [
        (slice(0, None, 2), "rows of microbatch 1"),
        (slice(ROWS // 2), "last 16 rows"),
        (slice(ROWS // 2, None), "first 16 rows"),
    ],
)
def test_gradients_of_all_rows_of_a_shard_have_to_count(halves, rows, left_out):
    def of_some(problem, mesh):
        def loss(forward, batch):
            some = problem.loss(forward, jax.tree.map(lambda x: x[rows], batch))
            return some + jax.lax.stop_gradient(problem.loss(forward, batch) - some)

        return shard_map_pmean.build(replace(problem, loss=loss, microbatches=1), mesh)

    proof, mesh = halves
    with pytest.raises(WrongStepError, match=f"labels of the {left_out} of the batch"):
        proof._check_influence(lambda problem: of_some(problem, mesh), lambda: None)


def test_gradients_of_all_rows_count_in_a_right_step(halves):
    proof, mesh = halves
    proof._check_influence(lambda problem: shard_map_pmean.build(problem, mesh), lambda: None)


def test_model_state_that_is_not_updated_is_refused(programs):
    def problem(_config, _batch, precision):
        return test_model_state.problem(precision)

    net = SimpleNamespace(SIZES={"tiny": dict}, problem=problem)
    proof, mesh = proof_of(net, "data=1", programs)
    right = jit_spmd.build(proof._problem(0), mesh)
    first = on_host(right.model_state(right.state))
    frozen = replace(right, model_state=lambda _: first)
    batch = proof._problem(0).batch(0)
    with pytest.raises(WrongStepError, match="every step draws the same random numbers"):
        proof._judged_step(frozen, jit_spmd.build(proof._problem(0), mesh).state, batch)
    judged, _, loss = proof._judged_step(right, right.state, batch)
    assert float(loss) == pytest.approx(judged, rel=1e-5)


def test_model_state_may_differ_by_what_rounding_makes_of_it():
    start, right, found = (flat({"mean": np.full(4, value)}) for value in (0.0, 1.0, 1.0 + 1e-5))
    assert "by up to 1.0e-05 of its change" in named_state(found, right, start, 1e-6)
    for size, holds in ((1e-6, True), (1e-7, False)):
        other = {"mean": np.full(4, 1.0 - size)}
        assert (not named_state(found, right, start, 1e-6, lambda o=other: o)) == holds


@pytest.mark.parametrize("value", [3, None, "", "  ", ["rounded"], print])
def test_anything_but_a_reason_is_a_fault(value):
    class File:
        approximate = value

    with pytest.raises(WrongStepError, match=r"approximate is .*; it must say, as text, how"):
        approximation(File)


def test_a_reason_makes_a_step_approximate():
    assert approximation(shard_map_pmean) == ""
    assert "4 steps" in approximation(local_steps)
    assert sorted(APPROXIMATE) == ["compressed_bf16", "compressed_int8", "local_steps", "top_k"]


def test_the_quantile_is_that_of_the_seeds():
    from scipy import stats  # noqa: PLC0415 - only of this test

    assert pytest.approx(stats.t.ppf(0.95, SEEDS - 1), abs=1e-3) == statistical_proof.QUANTILE
