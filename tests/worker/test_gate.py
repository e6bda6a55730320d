"""The gate catches wrong steps, names what is wrong, and lets right ones through."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType, SimpleNamespace
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

from bench.contract import Problem, TrainStep
from bench.contract.placement import (
    create_data_parallel_sharding,
    place_batch_on_shards,
    place_model_state_on_shards,
)
from bench.contract.workloads import linear, mlp
from bench.contract.workloads.linear import squared_error
from bench.records.mesh import MeshShape
from bench.records.row_parts import AS_TIMED, OWN, SGD, TIMED_SGD
from bench.worker.problems import make_mesh
from bench.worker.prove import known_mistakes, trajectory_diagnosis
from bench.worker.prove.exact_arithmetic import rounding
from bench.worker.prove.failures import WrongStepError, failure, why_unsupported
from bench.worker.prove.gate import Gate
from bench.worker.prove.replica_drift import find_drifts
from bench.worker.prove.trajectory import build_step, state_and_loss
from implementations import python_loop
from tests.slow import slow
from tests.worker.conftest import on_the_host

DEVICES = 4


@pytest.fixture(scope="module")
def mesh():
    return make_mesh(MeshShape.parse(f"data={DEVICES}"))


@pytest.fixture(scope="module")
def gate(mesh, programs):
    """On the MLP, whose optimizer is AdamW: it hides a constant factor on the gradients."""
    return make_gate(mlp, mesh, programs)


def make_gate(workload, mesh, programs, precision="fp32", change=lambda problem: problem, rows=8):
    config = workload.SIZES["tiny"]()
    timed = on_the_host(change(workload.problem(config, rows, precision)))
    with jax.enable_x64(True):
        exact = change(workload.problem(config, rows, "fp64"))
    return Gate(timed, exact, mesh, mesh.shape["data"], precision, programs)


def proved_as_timed(gate, implementation, problem, mesh):
    """The check of the program that is timed, and the state that it leaves."""

    def build():
        return implementation.build(problem, mesh)

    return gate.prove_timed(build(), build)


def data_parallel(step_of, *, check_vma=True):
    """An implementation from `step_of(problem, loss_fn)`, run by shard_map over `data`."""

    def build(problem: Problem, mesh: Any) -> TrainStep:
        params, loss_fn = problem.functional()
        sharding = create_data_parallel_sharding(mesh)
        step = jax.shard_map(
            step_of(problem, loss_fn),
            mesh=mesh,
            in_specs=(P(), P("data")),
            out_specs=P(),
            check_vma=check_vma,
        )
        return TrainStep(
            state=place_model_state_on_shards((params, problem.optimizer.init(params)), mesh),
            place=partial(place_batch_on_shards, sharding=sharding),
            step=jax.jit(step),
            params=lambda state: state[0],
        )

    return Module(build)


@dataclass
class Module:
    build: Any

    def why_unsupported(self, problem, mesh):
        return None


def apply(problem, state, grads):
    params, opt_state = state[:2]
    updates, opt_state = problem.optimizer.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state


def reduced_by(reduce_loss, reduce_grads):
    """A step that differentiates locally and reduces as told."""

    def step_of(problem, loss_fn):
        def step(state, batch):
            loss, grads = jax.value_and_grad(loss_fn)(state[0], batch)
            return apply(problem, state, reduce_grads(grads)), reduce_loss(loss)

        return step

    return step_of


def mean(x):
    return jax.lax.pmean(x, "data")


def total(x):
    return jax.lax.psum(x, "data")


def own(x):
    return x


def shard_0(x):
    # Summing with zeros from the others gives every device the same value.
    index = jax.lax.axis_index("data")
    return total(jax.tree.map(lambda leaf: jnp.where(index == 0, leaf, 0), x))


def test_right_step_passes_all_three_trajectories(gate, mesh):
    right = data_parallel(reduced_by(mean, mean), check_vma=False)
    checks = gate.prove_exact(right)
    timed_problem = mlp.problem(mlp.SIZES["tiny"](), 8, "fp32")
    check, _ = proved_as_timed(gate, right, timed_problem, mesh)
    assert [c["name"] for c in [*checks, check]] == ["fp64 sgd", "fp64 optimizer", "as timed"]
    assert checks[0]["update_error"] < 1e-12
    assert checks[0]["update_tolerance"] == pytest.approx(2.0**-26)


@pytest.mark.parametrize(
    ("wrong", "diagnosis"),
    [
        (
            data_parallel(reduced_by(mean, total), check_vma=False),
            (
                f"the gradients are {DEVICES} times what they should be, as if they were summed "
                "over the shards and not divided"
            ),
        ),
        (
            # check_vma has already summed the gradients of the replicated parameters.
            data_parallel(reduced_by(mean, mean)),
            f"the gradients are {DEVICES} times what they should be",
        ),
        (
            data_parallel(reduced_by(mean, lambda g: total(total(g))), check_vma=False),
            (
                f"the gradients are {DEVICES**2} times what they should be, as if they were "
                "summed twice over the shards and not divided"
            ),
        ),
        (
            data_parallel(
                reduced_by(mean, lambda g: jax.tree.map(lambda x: x / DEVICES, mean(g))),
                check_vma=False,
            ),
            "the gradients are 0.25 times what they should be, as if they were divided twice",
        ),
        (
            data_parallel(reduced_by(shard_0, mean), check_vma=False),
            "the loss is that of shard 0 alone",
        ),
        (
            data_parallel(reduced_by(total, mean), check_vma=False),
            "the loss is summed over the shards, not averaged",
        ),
        (
            data_parallel(reduced_by(mean, shard_0), check_vma=False),
            "the gradients are those of shard 0 alone, as if they were not reduced over the shards",
        ),
        (
            data_parallel(reduced_by(mean, own), check_vma=False),
            "replicas drift",
        ),
        (
            data_parallel(reduced_by(own, mean), check_vma=False),
            "replicas drift: the loss is not the same on",
        ),
        (
            data_parallel(
                reduced_by(mean, lambda g: jax.tree.map(jnp.zeros_like, g)), check_vma=False
            ),
            "the parameters do not change",
        ),
    ],
)
def test_wrong_reduction_is_caught_and_named(gate, wrong, diagnosis):
    with pytest.raises(WrongStepError) as caught:
        gate.prove_exact(wrong)
    assert diagnosis in str(caught.value)
    assert "fp64 sgd" in str(caught.value)


def test_no_reduction_also_names_the_shard(gate):
    with pytest.raises(WrongStepError, match="the gradients are those of shard 0 alone"):
        gate.prove_exact(data_parallel(reduced_by(mean, own), check_vma=False))


@pytest.mark.slow
def test_adam_alone_would_nearly_hide_a_sum_without_divide(gate):
    """Why the gate runs with SGD too: the effect of Adam's eps alone is left, and misnamed."""
    wrong = data_parallel(reduced_by(mean, total), check_vma=False)
    sgd = gate.problems.pop(SGD)
    try:
        with pytest.raises(WrongStepError, match="the optimizer is not applied as given"):
            gate.prove_exact(wrong)
    finally:
        gate.problems = {SGD: sgd, OWN: gate.problems[OWN]}


def test_a_step_stays_wrong_if_its_diagnosis_fails(gate, monkeypatch):
    def fail(_):
        raise MemoryError

    monkeypatch.setattr(trajectory_diagnosis, "known_mistakes", fail)
    wrong = data_parallel(reduced_by(mean, total), check_vma=False)
    with pytest.raises(WrongStepError, match=r"first update is .* \(fp64 sgd: relative error"):
        gate.prove_exact(wrong)


def test_one_update_per_shard_is_named(gate):
    def build(problem, mesh):
        right = python_loop.build(problem, mesh)
        _, loss_fn = problem.functional()

        def step(state, shards):
            losses = []
            for shard in shards:
                loss, grads = jax.value_and_grad(loss_fn)(state[0], jax.device_get(shard))
                state = apply(problem, state, grads)
                losses.append(loss)
            return state, sum(losses) / len(losses)

        return TrainStep(state=right.state, place=right.place, step=step, params=right.params)

    with pytest.raises(
        WrongStepError, match=f"there are {DEVICES} updates per step: one for every shard"
    ):
        gate.prove_exact(Module(build))


@pytest.mark.slow
def test_wrong_optimizer_is_caught(gate):
    """Right under SGD, but every update of AdamW is 1 % too long."""

    def step_of(problem, loss_fn):
        def step(state, batch):
            loss, grads = mean(jax.value_and_grad(loss_fn)(state[0], batch))
            params, opt_state = state
            updates, opt_state = problem.optimizer.update(grads, opt_state, params)
            factor = 1.0 if isinstance(opt_state[0], optax.EmptyState) else 1.01
            updates = jax.tree.map(lambda u: factor * u, updates)
            return (optax.apply_updates(params, updates), opt_state), loss

        return step

    with pytest.raises(WrongStepError, match="the optimizer is not applied as given"):
        gate.prove_exact(data_parallel(step_of, check_vma=False))


def test_a_loss_with_the_digits_of_float32_is_right_in_float64_too(gate):
    """As with a loss scale, which is usually applied in float32."""
    single = reduced_by(lambda loss: mean(loss.astype(jnp.float32)).astype(loss.dtype), mean)
    checks = gate.prove_exact(data_parallel(single, check_vma=False))
    assert checks[0]["loss_tolerance"] == 2.0**-22
    assert max(check["loss_error"] for check in checks) > 1e-9


def test_a_wrong_loss_is_not_blamed_on_the_optimizer(gate):
    def step_of(problem, loss_fn):
        def step(state, batch):
            loss, grads = mean(jax.value_and_grad(loss_fn)(state[0], batch))
            wrong = 1.0 if isinstance(state[1][0], optax.EmptyState) else 1.001
            return apply(problem, state, grads), wrong * loss

        return step

    why = "^the losses are wrong, and the updates are right .*of the loss 1.0e-03, more than"
    with pytest.raises(WrongStepError, match=why):
        gate.prove_exact(data_parallel(step_of, check_vma=False))


@pytest.mark.parametrize("exempt", [1, *slow(2)])
def test_weight_decay_on_the_wrong_parameters_is_caught(gate, exempt):
    """It changes an update by less than 1e-4; biases are 0 at first."""
    decay = 1e-4 * 1e-3

    def step_of(problem, loss_fn):
        def step(state, batch):
            params, opt_state = state
            loss, grads = mean(jax.value_and_grad(loss_fn)(params, batch))
            updates, opt_state = problem.optimizer.update(grads, opt_state, params)
            if not isinstance(opt_state[0], optax.EmptyState):
                updates = jax.tree.map(
                    lambda u, p: u + decay * p if p.ndim == exempt else u, updates, params
                )
            return (optax.apply_updates(params, updates), opt_state), loss

        return step

    with pytest.raises(WrongStepError, match="the optimizer is not applied as given"):
        gate.prove_exact(data_parallel(step_of, check_vma=False))


def test_later_steps_are_compared_too(gate):
    """Momentum that is not carried over shows only from the second step on."""

    def step_of(problem, loss_fn):
        def step(state, batch):
            loss, grads = mean(jax.value_and_grad(loss_fn)(state[0], batch))
            params, _ = apply(problem, state, grads)
            return (params, state[1]), loss

        return step

    with pytest.raises(WrongStepError, match="fp64 optimizer"):
        gate.prove_exact(data_parallel(step_of, check_vma=False))


def test_wrong_only_as_timed_is_caught(gate, mesh):
    def step_of(problem, loss_fn):
        def step(state, batch):
            loss, grads = mean(jax.value_and_grad(loss_fn)(state[0], batch))
            if batch[0].dtype == jnp.float32:
                grads = jax.tree.map(lambda g: jnp.roll(g, 1), grads)
            return apply(problem, state, grads), loss

        return step

    wrong = data_parallel(step_of, check_vma=False)
    gate.prove_exact(wrong)
    timed_problem = mlp.problem(mlp.SIZES["tiny"](), 8, "fp32")
    with pytest.raises(
        WrongStepError, match="the step is right in float64, but not as it would be timed"
    ):
        proved_as_timed(gate, wrong, timed_problem, mesh)


def test_a_loss_must_be_a_scalar(gate):
    wrong = data_parallel(reduced_by(lambda loss: mean(loss)[None], mean), check_vma=False)
    with pytest.raises(WrongStepError, match=r"the loss has shape \(1,\)"):
        gate.prove_exact(wrong)


class Promise:
    """A loss that is computed when somebody looks: its time would be nobody's."""

    shape = ()

    def __init__(self, compute):
        self.compute = compute

    def __float__(self):
        return float(self.compute())

    def block_until_ready(self):
        return self


@pytest.mark.parametrize(
    ("disguise", "what"),
    [
        (lambda state, loss: (state, Promise(lambda: loss)), "the loss is a Promise"),
        (lambda state, loss: ((*state, Promise(lambda: loss)), loss), "holds a Promise at [2]"),
    ],
)
def test_outputs_that_cannot_be_waited_for_are_wrong(gate, disguise, what):
    right = data_parallel(reduced_by(mean, mean), check_vma=False)

    def build(problem, mesh):
        made = right.build(problem, mesh)

        def step(state, batch):
            return disguise(*made.step(state[:2], batch))

        return replace(made, step=step)

    with pytest.raises(WrongStepError, match=re.escape(what)):
        gate.prove_exact(Module(build))


def test_a_value_in_place_of_a_function_is_named(mesh):
    right = data_parallel(reduced_by(mean, mean), check_vma=False)

    def build(problem, mesh):
        made = right.build(problem, mesh)
        return replace(made, params=made.state[0])

    problem = linear.problem(linear.SIZES["tiny"](), 8, "fp32")
    with pytest.raises(WrongStepError, match="params of its TrainStep is a value, not a function"):
        build_step(Module(build), problem, mesh)


def test_a_workload_with_other_batches_at_every_call_is_refused(mesh, programs):
    """Its arms would train on other batches than the reference, and be wrong in the rounds."""
    numbers = np.random.default_rng(0)

    def unseeded(problem):
        rows = problem.batch(0)
        return replace(problem, batch=lambda _: jax.tree.map(lambda x: x + numbers.random(), rows))

    with pytest.raises(
        WrongStepError, match=r"the workload's batch\(0\) differs from call to call"
    ):
        make_gate(mlp, mesh, programs, change=unseeded)


def test_a_workload_with_another_number_of_rows_is_refused(mesh, programs):
    """Its throughput would be wrong, or its error that of a shape in XLA."""
    batch = np.zeros((8, 8)), np.zeros(4), 1.0
    why = r"must have 8 rows, its batch_size, and not the shape \(4,\), \(\)$"
    with pytest.raises(WrongStepError, match=why):
        make_gate(mlp, mesh, programs, change=lambda own: replace(own, batch=lambda _: batch))


def test_keys_in_a_batch_that_is_the_same_at_every_call_do_not_differ(mesh, programs):
    """NumPy compares no keys."""

    def keyed(problem):
        def batch(index):
            return *problem.batch(index), jax.random.split(jax.random.key(index), 8)

        def loss(model, batch):
            return squared_error(model, batch[:2])

        return replace(problem, batch=batch, loss=loss)

    make_gate(linear, mesh, programs, change=keyed)


def test_a_workload_whose_loss_is_a_sum_is_refused(mesh, programs):
    """It is not the mean of its shards' losses, so right steps on many devices would be wrong."""

    def summed(problem):
        def loss(model, batch):
            return len(batch[0]) * squared_error(model, batch)

        return replace(problem, loss=loss)

    with pytest.raises(WrongStepError, match="loss is a sum over its batch, and must be the mean"):
        make_gate(mlp, mesh, programs, change=summed).expected(AS_TIMED)


def test_a_workload_that_overflows_only_as_it_is_timed_is_refused(mesh, programs):
    """Its rounding would be infinite, and so would be what it allows."""

    def growing(problem):
        def updates(grads, state, params):
            return jax.tree.map(lambda p: 1e30 * jnp.ones_like(p) + 1e15 * p, params), state

        rule = optax.GradientTransformation(lambda _: optax.EmptyState(), updates)
        return replace(problem, optimizer=rule)

    with pytest.raises(WrongStepError, match=r"workload itself is not finite.*as timed"):
        make_gate(linear, mesh, programs, change=growing).expected(AS_TIMED)


def test_not_a_number_is_wrong(gate):
    wrong = data_parallel(reduced_by(lambda loss: mean(loss) * jnp.nan, mean), check_vma=False)
    with pytest.raises(WrongStepError, match="not finite"):
        gate.prove_exact(wrong)


def test_parameters_of_another_model_are_wrong(gate):
    right = data_parallel(reduced_by(mean, mean), check_vma=False)

    def build(problem, mesh):
        step = right.build(problem, mesh)
        return TrainStep(
            state=step.state,
            place=step.place,
            step=step.step,
            params=lambda state: {"renamed": state[0]},
        )

    with pytest.raises(WrongStepError, match="names or shapes"):
        gate.prove_exact(Module(build))


def test_sgd_workload_catches_a_factor_in_its_own_optimizer_as_well(mesh, programs):
    gate = make_gate(linear, mesh, programs)
    del gate.problems[SGD]
    wrong = data_parallel(reduced_by(mean, total), check_vma=False)
    with pytest.raises(WrongStepError, match="fp64 optimizer"):
        gate.prove_exact(wrong)


@pytest.mark.parametrize(("precision", "holds"), [*slow(("bf16", True)), ("fp16", False)])
def test_gradients_that_underflow_are_refused(mesh, programs, precision, holds):
    """Only in float16: bfloat16 reaches as far down as float32."""

    def faint(problem):
        return replace(problem, loss=lambda model, batch: 1e-7 * problem.loss(model, batch))

    gate = make_gate(mlp, mesh, programs, precision, faint)
    right = data_parallel(reduced_by(mean, mean), check_vma=False)
    gate.prove_exact(right)
    timed = faint(mlp.problem(mlp.SIZES["tiny"](), 8, precision))
    if holds:
        proved_as_timed(gate, right, timed, mesh)
    else:
        with pytest.raises(
            WrongStepError, match="the step is right in float64, but not as it would be timed"
        ):
            proved_as_timed(gate, right, timed, mesh)


def test_drift_is_found_bit_by_bit(mesh):
    sharding = jax.sharding.NamedSharding(mesh, P())
    same = np.float32(1.0)
    next_up = np.nextafter(same, np.float32(2.0))
    values = [same, same, next_up, same]
    shards = [jax.device_put(v, d) for v, d in zip(values, mesh.devices.flat, strict=True)]
    array = jax.make_array_from_single_device_arrays((), sharding, shards)
    assert "w is not the same on device 0 and device 2" in find_drifts({"w": array})["w"].where
    assert find_drifts({"w": jax.device_put(same, sharding)}) == {}


def test_gate_leaves_the_process_in_float32(gate):
    assert jnp.zeros(1).dtype == jnp.float32
    assert jax.config.read("jax_disable_most_optimizations") is False


@pytest.mark.parametrize(
    ("precision", "platform", "asked", "bits"),
    [
        ("fp64", "gpu", None, 52),
        ("bf16", "cpu", None, 7),
        ("fp16", "gpu", None, 10),
        ("fp32", "cpu", None, 23),
        ("fp32", "gpu", None, 10),
        ("fp32", "tpu", None, 7),
        ("fp32", "gpu", "highest", 23),
    ],
)
def test_rounding_follows_the_shortest_significand(precision, platform, asked, bits):
    with jax.default_matmul_precision(asked):
        assert rounding(precision, platform) == 2.0**-bits


def test_a_workload_that_is_not_finite_is_not_the_implementations_fault(mesh, programs):
    def infinite(problem: Problem) -> Problem:
        return replace(problem, loss=lambda model, batch: problem.loss(model, batch) / 0.0)

    with pytest.raises(WrongStepError, match=r"the workload itself .*\(fp64 sgd; losses: inf"):
        make_gate(linear, mesh, programs, change=infinite)


def test_the_first_loss_is_the_truths(gate):
    assert gate.first_loss == gate.truth[OWN].losses[0]


@pytest.mark.parametrize("returned", [None, TrainStep, {"state": 1}])
def test_what_is_built_must_be_a_step(mesh, returned):
    class Odd:
        @staticmethod
        def build(problem, mesh):
            return returned

    with pytest.raises(WrongStepError, match=f"build returns a {type(returned).__name__}, not"):
        build_step(Odd, linear.problem(linear.SIZES["tiny"](), 8, "fp32"), mesh)


def test_what_a_file_does_to_its_problem_changes_no_others(mesh):
    rule = MappingProxyType({"name": "adamw", "betas": [0.9, 0.999]})
    given = mlp.problem(mlp.SIZES["tiny"](), 8, "fp32")
    problem = replace(given, outline={"optimizer": rule}, start=given.draw())
    axis_names, names = {**problem.axis_names}, [*problem.start]

    class Clears:
        @staticmethod
        def why_unsupported(problem, mesh):
            problem.outline["optimizer"]["name"] = "sgd"
            problem.outline["optimizer"]["betas"].clear()
            problem.axis_names.clear()
            problem.start.clear()

        @staticmethod
        def build(problem, mesh):
            built = python_loop.build(problem, mesh)
            Clears.why_unsupported(problem, mesh)
            return built

    assert why_unsupported(Clears, problem, mesh) == ""
    build_step(Clears, problem, mesh)
    assert problem.outline["optimizer"] == {"name": "adamw", "betas": [0.9, 0.999]}
    assert problem.axis_names == axis_names
    assert [*problem.start] == names


def test_what_a_step_returns_must_be_a_pair():
    assert state_and_loss([1, 2]) == (1, 2)
    with pytest.raises(WrongStepError, match="3 values, not the pair"):
        state_and_loss((1, 2, 3))
    with pytest.raises(WrongStepError, match="an object of type float, not the pair"):
        state_and_loss(1.0)


def test_an_error_that_has_no_text_is_named_by_its_type():
    class OddError(Exception):
        def __str__(self):
            raise RuntimeError("no text")

    assert failure(OddError()) == ("crashed", "OddError")


@pytest.mark.parametrize("answer", [False, True, 5, "", "  "])
def test_an_answer_that_is_no_reason_is_refused(mesh, answer):
    problem = linear.problem(linear.SIZES["tiny"](), 8, "fp32")

    @dataclass
    class Answers:
        answer: Any

        def why_unsupported(self, problem, mesh):
            return self.answer

    assert why_unsupported(Answers(None), problem, mesh) == ""
    assert why_unsupported(Answers("too small"), problem, mesh) == "too small"
    message = f"why_unsupported returns {answer!r}; it must return None, or the reason as text"
    with pytest.raises(WrongStepError, match=re.escape(message)):
        why_unsupported(Answers(answer), problem, mesh)


def test_parameters_must_lie_on_devices(gate):
    right = data_parallel(reduced_by(mean, mean), check_vma=False)

    def build(problem, mesh):
        step = right.build(problem, mesh)
        return replace(step, params=lambda state: jax.tree.map(np.asarray, step.params(state)))

    with pytest.raises(WrongStepError, match=r"params returns a ndarray at \[.*not a jax\.Array"):
        gate.prove_exact(Module(build))


def test_placing_a_batch_cannot_change_the_next_implementations_batch(gate):
    right = data_parallel(reduced_by(mean, mean), check_vma=False)

    def build(problem, mesh):
        step = right.build(problem, mesh)

        def place(batch):
            placed = step.place(jax.tree.map(np.array, batch))
            for leaf in jax.tree.leaves(batch):
                leaf[:] = 0
            return placed

        return replace(step, place=place)

    gate.prove_exact(Module(build))
    gate.prove_exact(right)


def test_a_single_wrong_parameter_is_named(gate):
    """The first layer's bias takes a step of twice the length."""

    def step_of(problem, loss_fn):
        def step(state, batch):
            loss, grads = mean(jax.value_and_grad(loss_fn)(state[0], batch))
            (first, *_), _ = jax.tree.flatten(grads)
            grads = jax.tree.map(lambda leaf: 2 * leaf if leaf is first else leaf, grads)
            return apply(problem, state, grads), loss

        return step

    with pytest.raises(
        WrongStepError,
        match=r"first update of \['[^,]*'\] is 2 times what it should be, and that of the other 5",
    ):
        gate.prove_exact(data_parallel(step_of, check_vma=False))


def test_the_numbers_say_which_of_them_is_too_large(gate):
    wrong = data_parallel(reduced_by(total, mean), check_vma=False)
    with pytest.raises(
        WrongStepError,
        match=r"of the loss 3\.0e\+00, more than the allowed 1\.5e-08; "
        r"relative error of the update \S+, within the allowed 1\.5e-08",
    ):
        gate.prove_exact(wrong)


def test_microbatches_that_are_summed_are_not_taken_for_shards(mesh, programs):
    gate = make_gate(mlp, mesh, programs, change=lambda problem: replace(problem, microbatches=2))
    wrong = data_parallel(
        reduced_by(mean, lambda g: jax.tree.map(lambda x: 2 * x, mean(g))), check_vma=False
    )
    with pytest.raises(WrongStepError, match="they were summed over the microbatches and not"):
        gate.prove_exact(wrong)


def in_float32(change):
    """A step whose gradients are changed only where they are float32."""

    def reduce_grads(grads):
        def changed(leaf):
            return change(leaf).astype(leaf.dtype) if leaf.dtype == jnp.float32 else leaf

        return jax.tree.map(changed, mean(grads))

    return data_parallel(reduced_by(mean, reduce_grads), check_vma=False)


def test_what_may_be_meant_to_be_approximate_is_told_of_the_class(gate):
    """It is near the right step, and stays wrong; a step far off is not told, however it errs."""

    def coarse_everywhere(grads):
        return jax.tree.map(lambda x: mean(x.astype(jnp.bfloat16).astype(x.dtype)), grads)

    wrong = data_parallel(reduced_by(mean, coarse_everywhere), check_vma=False)
    with pytest.raises(WrongStepError, match="it can declare `approximate`"):
        gate.prove_exact(wrong)
    kept = data_parallel(reduced_by(mean, lambda g: half_of_them(mean(g))), check_vma=False)
    signs = data_parallel(reduced_by(mean, lambda grads: jax.tree.map(jnp.sign, grads)))
    for far in (kept, signs):
        with pytest.raises(WrongStepError, match="fp64 sgd") as caught:
            gate.prove_exact(far)
        assert "`approximate`" not in str(caught.value)


def half_of_them(grads):
    """Every second element is left out."""
    return jax.tree.map(lambda x: x * (jnp.arange(x.size) % 2).reshape(x.shape), grads)


@pytest.mark.parametrize(
    ("devices", "microbatches", "factor", "reasons"),
    [
        (2, 1, 4, ["summed twice over the shards"]),
        (4, 1, 4, ["summed twice over the shards", "summed over all devices of the mesh"]),
        (8, 1, 8, ["summed over all devices of the mesh"]),
        (2, 4, 4, ["summed twice over the shards", "summed over the microbatches"]),
        (2, 2, 4, ["summed twice over the shards", "summed over shards and microbatches"]),
    ],
)
def test_every_reason_for_a_factor_is_named(devices, microbatches, factor, reasons):
    problem = SimpleNamespace(microbatches=microbatches, batch_size=64, sequence=None)
    gate = SimpleNamespace(mesh=SimpleNamespace(size=devices))
    seen = SimpleNamespace(problem=problem, gate=gate, match=known_mistakes.MATCH)
    told = ", or ".join(f"{reason} and not divided" for reason in reasons)
    assert known_mistakes._reason_of(seen, factor, shards=2) == f", as if they were {told}"


def noise(leaf):
    return leaf * (1 + 1e-3 * jax.random.normal(jax.random.key(0), leaf.shape))


@pytest.mark.parametrize(
    ("change", "diagnosis"),
    [
        (lambda leaf: leaf.astype(jnp.bfloat16), "computed in bf16"),
        (noise, "right in float64, but not as it would be timed|computed in bf16"),
        (
            lambda leaf: leaf * DEVICES,
            "4 times what they should be, as if they were summed over the shards",
        ),
        (jnp.sign, "the step is right in float64, but not as it would be timed"),
    ],
)
def test_faults_of_float32_alone_are_caught_under_sgd(gate, change, diagnosis):
    wrong = in_float32(change)
    gate.prove_exact(wrong)
    with pytest.raises(WrongStepError, match=diagnosis):
        gate.prove_rounding(wrong)


def coarse(leaf):
    """Round float32 to bfloat16's digits."""
    return leaf.astype(jnp.bfloat16).astype(leaf.dtype) if leaf.dtype == jnp.float32 else leaf


def of_coarse_gradients(inner, grads, opt_state, params):
    return inner.update(jax.tree.map(coarse, grads), opt_state, params)


def with_coarse_moments(inner, grads, opt_state, params):
    updates, opt_state = inner.update(grads, jax.tree.map(coarse, opt_state), params)
    return updates, jax.tree.map(coarse, opt_state)


@pytest.mark.parametrize("update", [of_coarse_gradients, with_coarse_moments])
def test_rounding_within_the_optimizer_is_caught_as_timed(gate, mesh, update):
    """Under SGD the step is right: AdamW's moments are rounded, or made of coarse gradients."""

    def step_of(problem, loss_fn):
        inner = problem.optimizer
        stateless = isinstance(inner.init(jnp.zeros(1))[0], optax.EmptyState)
        used = inner.update if stateless else partial(update, inner)
        changed = replace(problem, optimizer=optax.GradientTransformation(inner.init, used))
        return reduced_by(mean, mean)(changed, loss_fn)

    wrong = data_parallel(step_of, check_vma=False)
    gate.prove_exact(wrong)
    gate.prove_rounding(wrong)
    with pytest.raises(WrongStepError, match="computed in bf16"):
        proved_as_timed(gate, wrong, mlp.problem(mlp.SIZES["tiny"](), 8, "fp32"), mesh)


def test_products_at_a_lower_precision_are_refused(gate):
    """jax.default_matmul_precision("bfloat16") within a step, as accelerators understand it.

    XLA:CPU multiplies float32 in full whatever that setting says, so the inputs are rounded here.
    """
    bind = jax.lax.dot_general_p.bind

    def rounded(left, right, **how):
        return bind(coarse(left), coarse(right), **how)

    def step_of(problem, loss_fn):
        def step(state, batch):
            with mock.patch.object(jax.lax.dot_general_p, "bind", rounded):
                loss, grads = jax.value_and_grad(loss_fn)(state[0], batch)
            return apply(problem, state, mean(grads)), mean(loss)

        return step

    wrong = data_parallel(step_of, check_vma=False)
    gate.prove_exact(wrong)
    with pytest.raises(WrongStepError, match="right in float64, but not as it would be timed"):
        gate.prove_rounding(wrong)


@pytest.mark.parametrize(("axes", "right"), [("data=1,model=2", True), ("data=2,model=1", False)])
def test_a_wrong_axis_is_right_where_the_right_one_has_size_1(programs, axes, right):
    mesh = make_mesh(MeshShape.parse(axes))
    gate = make_gate(mlp, mesh, programs)

    def over_model(x):
        return jax.lax.pmean(x, "model")

    step = data_parallel(reduced_by(over_model, over_model), check_vma=False)
    if right:
        gate.prove_exact(step)
        gate.prove_rounding(step)
        proved_as_timed(gate, step, gate.timed, mesh)
        return
    with pytest.raises(WrongStepError, match="replicas drift: "):
        gate.prove_exact(step)


def ring(x):
    """The mean by a ring, which adds in another order on every device."""
    neighbours = [(index, (index + 1) % DEVICES) for index in range(DEVICES)]
    total = part = x
    for _ in range(DEVICES - 1):
        part = jax.lax.ppermute(part, "data", neighbours)
        total = total + part
    return total / DEVICES


def test_replicas_may_differ_by_rounding(gate, mesh):
    right = data_parallel(
        reduced_by(ring, lambda grads: jax.tree.map(ring, grads)), check_vma=False
    )
    timed = mlp.problem(mlp.SIZES["tiny"](), 8, "fp32")
    gate.prove_exact(right)
    gate.prove_rounding(right)
    proved_as_timed(gate, right, timed, mesh)


@pytest.mark.parametrize(("precision", "right"), [("bf16", True), ("fp32", False)])
def test_a_loss_may_have_the_blocks_dtype(mesh, programs, precision, right):
    gate = make_gate(linear, mesh, programs, precision)
    coarse = data_parallel(
        reduced_by(lambda loss: mean(loss).astype(jnp.bfloat16), mean), check_vma=False
    )
    if right:
        gate.prove_exact(coarse)
        gate.prove_rounding(coarse)
    else:
        with pytest.raises(WrongStepError, match="the loss is bfloat16, whose rounding exceeds"):
            gate.prove_exact(coarse)


def test_a_step_that_one_batch_makes_unlucky_is_compared_on_others(gate, monkeypatch):
    right = data_parallel(reduced_by(mean, mean), check_vma=False)
    expected, unlucky_batches = gate._expected, {False}

    def unlucky(name, again):
        found = expected(name, again)
        is_unlucky = name == TIMED_SGD and again in unlucky_batches
        return found._replace(tolerance=(0.0, 0.0)) if is_unlucky else found

    monkeypatch.setattr(gate, "_expected", unlucky)
    assert gate.prove_rounding(right)["update_tolerance"] > 0
    unlucky_batches.add(True)
    with pytest.raises(WrongStepError, match="timed sgd"):
        gate.prove_rounding(right)


def accumulated(parts):
    """A step that sums the gradients of these of the problem's microbatches, divided by theirs."""

    def build(problem, mesh):
        params, loss_fn = problem.functional()

        @jax.jit
        def step(state, batch):
            rows = jax.tree.map(
                lambda x: jnp.swapaxes(x.reshape(-1, problem.microbatches, *x.shape[1:]), 0, 1),
                batch,
            )
            results = [
                jax.value_and_grad(loss_fn)(state[0], jax.tree.map(lambda x, i=i: x[i], rows))
                for i in parts
            ]
            loss, grads = jax.tree.map(lambda *each: sum(each) / len(each), *results)
            return apply(problem, state, grads), loss

        state = params, problem.optimizer.init(params)
        return TrainStep(state=state, place=lambda b: b, step=step, params=lambda s: s[0])

    return Module(build)


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ([0, 1, 2], "the gradients are those of all 4 microbatches except 3;"),
        ([0, 1, 2, 0], "the microbatches are summed with the weights 0.5, 0.25, 0.25, 0"),
    ],
)
def test_an_accumulation_off_by_one_is_named(mesh, programs, parts, why):
    gate = make_gate(mlp, mesh, programs, change=lambda problem: replace(problem, microbatches=4))
    gate.prove_exact(accumulated(range(4)))
    with pytest.raises(WrongStepError, match=why):
        gate.prove_exact(accumulated(parts))


def test_the_loss_of_one_microbatch_is_named(mesh, programs):
    gate = make_gate(mlp, mesh, programs, change=lambda problem: replace(problem, microbatches=4))
    right = accumulated(range(4))

    def build(problem, mesh):
        built, loss_fn = right.build(problem, mesh), jax.jit(problem.loss_function())

        def step(state, batch):
            last = jax.tree.map(lambda x: x[3::4], batch)
            return built.step(state, batch)[0], loss_fn(state[0], last)

        return replace(built, step=step)

    with pytest.raises(WrongStepError, match=r"^the loss is that of microbatch 3 alone"):
        gate.prove_exact(Module(build))


def test_a_reduction_over_some_of_the_shards_is_named(gate):
    def pairs(tree):
        index = jax.lax.axis_index("data")
        return total(jax.tree.map(lambda leaf: jnp.where(index < 2, leaf, 0) / 2, tree))

    wrong = data_parallel(reduced_by(mean, pairs), check_vma=False)
    with pytest.raises(WrongStepError, match="those of shards 0, 1 of 4 alone"):
        gate.prove_exact(wrong)
