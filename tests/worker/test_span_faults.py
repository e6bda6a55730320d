"""NaNs, growth and tolerances of the checks in the rounds, each on a step that goes wrong so."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from bench.contract.workloads import mlp
from bench.records.row_parts import AS_TIMED, ProofCheck
from bench.worker.prove.gate import ExpectedTrajectory, Gate, drift_beyond_rounding
from bench.worker.prove.relative_errors import allowed, distance, named_state
from bench.worker.prove.replica_drift import Drift, find_drifts
from bench.worker.prove.span_comparison import Comparison, why_drifting, why_lost
from bench.worker.prove.span_diagnosis import unexplained
from bench.worker.prove.span_records import SpanRecord
from bench.worker.prove.state_reader import HostState
from bench.worker.prove.timed_reference import ReferenceSteps
from bench.worker.prove.trajectory import Trajectory
from implementations import jit_spmd, pmap
from tests.worker.test_spot_checks import AFTER, changed, checked

NAN, INF = float("nan"), float("inf")


@pytest.fixture(scope="module")
def gate_of(mesh, programs):
    made: dict[str, Gate] = {}

    def gate(precision="fp32", optimizer=None):
        def own(precision):
            problem = mlp.problem(mlp.SIZES["tiny"](), 8, precision)
            return replace(problem, optimizer=optimizer) if optimizer else problem

        if (name := f"{precision} {optimizer}") not in made:
            with jax.enable_x64(True):
                exact = own("fp64")
            made[name] = Gate(own(precision), exact, mesh, 2, precision, programs)
        return made[name]

    return gate


def with_loss(right, copy, problem, mesh, *, value):
    """A right step that returns another loss."""

    def step(call, state, batch):
        state, loss = right(state, batch)
        return state, loss if call < AFTER else jnp.full_like(loss, value)

    return step


def with_element(right, copy, problem, mesh, *, value):
    """A right loss, from right parameters, of which one element is then replaced for the reader."""
    first: list[jax.Array] = []

    def step(call, state, batch):
        (params, *others), loss = right(copy(state), batch)
        first[:] = first or [loss]
        if call >= AFTER:
            leaves, tree = jax.tree.flatten(params)
            leaves[0] = leaves[0].at[(0,) * leaves[0].ndim].set(value)
            params, loss = jax.tree.unflatten(tree, leaves), first[0]
        return (params, *others), loss

    return step


def growing(right, copy, problem, mesh, *, factor):
    def step(call, state, batch):
        (params, *others), loss = right(state, batch)
        if call >= AFTER:
            params = jax.tree.map(lambda leaf: leaf * factor, params)
        return (params, *others), loss

    return step


def of_pmap(change, problem, mesh):
    """A change around pmap, whose optimizer state is not found."""
    right, calls = pmap.build(problem, mesh), iter(range(1 << 30))
    copy = jax.jit(lambda tree: jax.tree.map(jnp.copy, tree))
    step = change(right.step, copy, problem, mesh)
    return replace(right, step=lambda state, batch: step(next(calls), state, batch))


@pytest.mark.parametrize("approximate", [False, True])
@pytest.mark.parametrize("value", [NAN, INF])
def test_a_loss_that_is_not_finite_is_named(gate_of, mesh, value, approximate):
    gate = gate_of()
    change = partial(with_loss, value=value)
    built = changed(change)(gate.timed, mesh)
    names = {"planted"} if approximate else ()
    why, _ = checked(gate, built, gate.timed, approximate=names)
    steps = r"step \d+" if approximate else r"steps \d+ to \d+"
    assert re.fullmatch(rf"{steps}, in round 1: the loss is {value}", why), why


@pytest.mark.parametrize("value", [NAN, INF])
def test_a_parameter_that_is_not_finite_is_named_even_beside_a_right_loss(gate_of, mesh, value):
    gate = gate_of()
    change = partial(with_element, value=value)
    why, _ = checked(gate, changed(change)(gate.timed, mesh), gate.timed)
    assert re.search(r"in round 1: \['.*'\] is NaN or infinite in \d+ element", why), why


def test_a_loss_that_is_not_finite_is_named_where_the_optimizers_state_is_unknown(gate_of, mesh):
    gate = gate_of()
    built = of_pmap(partial(with_loss, value=NAN), gate.timed, mesh)
    assert re.search("in round 1: the loss is nan$", checked(gate, built, gate.timed)[0])


def test_a_right_step_of_a_workload_that_overflows_is_no_crash(gate_of, mesh):
    """The reference overflows too. That all arms do so is said after the rounds."""
    inflating = optax.GradientTransformation(
        lambda _: optax.EmptyState(),
        lambda grads, state, params: (jax.tree.map(lambda p: 49 * p, params), state),
    )
    gate = gate_of(optimizer=inflating)
    for build in jit_spmd.build, pmap.build:
        why, check = checked(gate, build(gate.timed, mesh), gate.timed)
        assert re.search(r"in round 1: the loss is (nan|inf)", why), why
        assert check is None


@pytest.mark.parametrize("factor", [1.5, 1.1, 0.7])
def test_parameters_that_grow_in_each_step_are_named(gate_of, mesh, factor):
    gate = gate_of()
    change = partial(growing, factor=factor)
    why, _ = checked(gate, changed(change)(gate.timed, mesh), gate.timed)
    found = re.search(r"the parameters are multiplied by about ([\d.]+) in each step", why)
    assert found, why
    assert float(found[1]) == pytest.approx(factor, rel=0.02)


def test_a_replica_that_is_not_finite_drifts(mesh):
    whole, devices = NamedSharding(mesh, P()), mesh.devices.flat
    parts = [
        jax.device_put(jnp.float32([1.0, x]), d) for x, d in zip((2.0, NAN), devices, strict=True)
    ]
    array = jax.make_array_from_single_device_arrays((2,), whole, parts)
    drifts = find_drifts({"kernel": array})
    assert np.isnan(drifts["kernel"].size)

    held = HostState({"kernel": np.float32([1.0, 2.0])}, None, {})
    after = HostState({"kernel": np.float32([1.5, 2.5])}, None, {})
    kept = span(held, after, drifts=drifts)
    assert "replicas drift: kernel" in why_drifting(kept)

    expected = FakeGate().expected(AS_TIMED)
    ours = replace(expected.truth, drifts=(*drifts.items(),))
    check = ProofCheck(
        name=AS_TIMED, loss_error=0, loss_tolerance=1.0, update_error=0, update_tolerance=1.0
    )
    assert "replicas drift: kernel" in drift_beyond_rounding(ours, check, expected)


@pytest.mark.parametrize("value", [NAN, INF])
def test_model_state_that_is_not_finite_is_wrong(value):
    start, right = ({"average": np.array([x])} for x in (0.0, 1.0))
    assert named_state(right, right, start, 0.1) == ""
    found = named_state({"average": np.array([value])}, right, start, 0.1)
    assert "the model state is wrong in average" in found
    assert named_state(right, {"average": np.array([value])}, start, 0.1)


@pytest.mark.parametrize(
    ("rounding", "limit"),
    [
        (0.001, 0.016),  # 16 roundings
        (0.0156, 0.2496),
        (0.03, 0.25),  # 16 of them would exceed the wider tolerance, and 4 would not reach it
        (0.1, 0.4),  # 4 roundings
        (0.2, 0.8),  # an update that is left out, which is off by 1, is wrong even here
    ],
)
def test_roundings_that_are_allowed(rounding, limit):
    assert allowed(rounding, 0.25) == pytest.approx(limit)


class FakeGate:
    """A gate in bfloat16, with parameters of two elements and a first update of 1 each."""

    timed_eps = 2.0**-8
    first_loss = 1.0

    def expected(self, _name):
        start, end = {"['kernel']": np.zeros(2)}, {"['kernel']": np.ones(2)}
        truth = Trajectory(np.ones(1), start, end, end)
        return ExpectedTrajectory(truth, None, (0.01, 0.1), (0.0625, 0.25), 0.1)


@dataclass
class FakeSpan(SpanRecord):
    """A span that the reference, summing in the other order, ends elsewhere."""

    other: ReferenceSteps | None = None

    def stepped(self, *, apart=False):
        assert apart
        return self.other


def span(before, after, loss=1.0, drifts=None, other=None):
    made = FakeSpan(FakeGate(), None, "in round 1", 1, 1, (), loss, 0.0, other)
    made.before, made.after, made.drifts = before, after, ({}, drifts or {})
    return made


def stepped(loss, value):
    end = HostState({"kernel": np.full(2, value, np.float32)}, (), {})
    return ReferenceSteps(loss, end)


def compared(error, rounding, *, loss=1.0, other_loss=1.0, start=0.0, update=1.0):
    """The comparison of an update that is off by `error`, where the reference's is by `rounding`.

    Both are shares of the right update.
    """
    at = [
        HostState({"kernel": np.full(2, value, np.float32)}, (), {})
        for value in (start, start + update * (1 + error))
    ]
    other = stepped(other_loss, start + update * (1 + rounding))
    kept = span(*at, loss, other=other)
    return Comparison(kept, stepped(1.0, start + update))


@pytest.mark.parametrize(
    ("right", "other"),
    [
        ((1.0, NAN), (1.0, NAN)),
        ((1.0, INF), (1.0, NAN)),
        ((NAN, 1.0), (NAN, 1.0)),
        ((0.5, 1.0), (NAN, 1.0)),
        ((1.0, 0.5), (1.0, NAN)),
    ],
)
def test_a_reference_that_is_not_finite_makes_no_update_right(right, other):
    """The arm's loss and parameters are 1."""
    held = [HostState({"kernel": np.full(2, x, np.float32)}, (), {}) for x in (0.0, 1.0)]
    found = Comparison(span(*held, other=stepped(*other)), stepped(*right))
    assert not found.is_right
    assert not found.is_within_wide


FIRST = 8 * 2.0**-8
"""The floor of an update that is as large as the first: 8 roundings of it."""


@pytest.mark.parametrize(
    ("rounding", "limit"),
    [(0.0, 0.1), (0.001, 0.116), (0.03, 0.35), (0.1, 0.5), (0.2, 0.9)],
)
def test_an_update_may_be_off_by_its_tolerance_and_some_roundings(rounding, limit):
    # The reference's own rounding counts only beyond the floor, too.
    assert compared(FIRST + 0.99 * limit, FIRST + rounding).is_right
    assert not compared(FIRST + 1.01 * limit, FIRST + rounding).is_right


@pytest.mark.parametrize(("rounding", "limit"), [(0.0, 0.25), (0.001, 0.266), (0.1, 0.65)])
def test_a_single_unlucky_update_may_be_off_by_the_wider_tolerance(rounding, limit):
    assert compared(FIRST + 0.99 * limit, FIRST + rounding).is_within_wide
    assert not compared(FIRST + 1.01 * limit, FIRST + rounding).is_within_wide


@pytest.mark.parametrize(
    ("rounding", "limit", "wide"), [(0.0, 0.01, 0.0625), (0.001, 0.026, 0.0785)]
)
def test_a_loss_may_be_off_by_its_tolerance_and_16_roundings(rounding, limit, wide):
    def at(share, of):
        found = compared(0.0, 0.0, loss=1 + FIRST + share * of, other_loss=1 + FIRST + rounding)
        return found.is_right, found.is_within_wide

    assert at(0.99, limit) == (True, True)
    assert at(1.01, limit) == (False, True)
    assert at(0.99, wide) == (False, True)
    assert at(1.01, wide) == (False, False)


def test_near_a_minimum_an_update_may_be_off_by_8_roundings_of_the_parameters():
    floor = 8 * 2.0**-23 * 1024  # of parameters of 1024, beside 8 roundings of the first update
    share = 0.1 * (update := 2.0**-7)
    for times, right in (0.95, True), (1.05, False):
        error = times * (floor + FIRST + share)
        assert compared(error / update, 0.0, start=1024.0, update=update).is_right == right


@pytest.mark.parametrize(("wrong", "where"), [("b", " in ['b']"), ("ab", "")])
def test_an_unexplained_update_names_its_parameters_unless_all_are_wrong(wrong, where):
    right = {path: np.array([0.0, 1.0]) for path in "ab"}
    after = right | {path: np.array([1.0, 0.0]) for path in wrong}
    kept = span(None, HostState(after, (), {}))
    why = unexplained(
        kept, ReferenceSteps(1.0, HostState(right, (), {})), [f"['{path}']" for path in wrong]
    )
    assert why == f"the update is wrong{where}, and no known mistake explains it"


def adam_state(a, b):
    moments = {"a": np.full(2, a, np.float32), "b": np.full(2, b, np.float32)}
    return HostState({}, (optax.ScaleByAdamState(np.int32(1), moments, {}),), {})


@pytest.mark.parametrize(
    ("ours", "lost"),
    [
        ({"a": 1.0, "b": 0.3}, ""),
        ({"a": 0.0, "b": 0.0}, "[0].mu['a']"),  # reinitialized
        ({"a": NAN, "b": 0.1}, "[0].mu['a']"),
        ({"a": 1.0, "b": 0.7}, "[0].mu['b']"),
        ({"a": 0.0, "b": 0.0, "rounding": 0.1}, ""),  # near a minimum, all may be rounding
        ({"a": 1.0, "b": 0.7, "rounding": 0.1}, ""),  # even where its own happens to be none
    ],
)
def test_moments_are_lost_where_they_are_farther_off_than_any_rounding(ours, lost):
    rounding = ours.pop("rounding", 0.001)
    right, other = (ReferenceSteps(1.0, adam_state(a, 0.1)) for a in (1.0, 1.0 + rounding))
    why = why_lost(span(None, adam_state(**ours), other=other), right)
    assert why.removeprefix("the optimizer's ").partition(" ")[0].rstrip(",") == lost


def test_moments_that_overflow_in_the_reference_too_are_not_lost():
    right = ReferenceSteps(1.0, adam_state(np.inf, 0.1))
    assert not why_lost(span(None, adam_state(np.inf, 0.1), other=right), right)
    assert why_lost(span(None, adam_state(NAN, 0.1), other=right), right)


@pytest.mark.parametrize(
    ("loss", "value", "other"), [(NAN, 1.0, 1.0), (1.0, NAN, 1.0), (1.0, 1.0, NAN), (NAN, NAN, NAN)]
)
def test_a_comparison_with_nan_is_never_right(loss, value, other):
    held = [HostState({"kernel": np.full(2, x, np.float32)}, (), {}) for x in (0.0, value)]
    kept = span(*held, loss, other=stepped(other, other))
    found = Comparison(kept, stepped(other, other))
    assert not found.is_right
    assert not found.is_within_wide


@pytest.mark.parametrize(
    ("update", "before", "most"),
    [
        (0.01, 0.0, 0.001),  # the tolerance of the update
        (0.01, 0.002, 0.005),  # and twice what the replicas had drifted before
        (0.5, 0.0, 0.015),  # a hundredth of the change since the start
    ],
)
def test_replicas_may_differ_by_rounding(update, before, most):
    held = [HostState({"kernel": np.full(2, value)}, (), {}) for value in (1.5 - update, 1.5)]
    for share, right in (0.99, True), (1.01, False):
        kept = span(*held, drifts={"['kernel']": Drift("replicas drift", share * most)})
        kept.drifts = {"['kernel']": Drift("", before)}, kept.drifts[1]
        assert (why_drifting(kept) == "") == right


def test_replicas_may_drift_by_rounding_where_a_schedule_begins_at_0():
    """The first update is then 0, and sizes are relative to the whole change."""
    expected = FakeGate().expected(AS_TIMED)
    truth = expected.truth
    still = replace(truth, first=truth.start)
    change = distance(truth.last, truth.start)
    check = ProofCheck(
        name=AS_TIMED, loss_error=0, loss_tolerance=1.0, update_error=0, update_tolerance=1e-3
    )
    for size, reason in ((1e-4 * change, ""), (1e-2 * change, "kernel differs")):
        ours = replace(still, drifts=(("kernel", Drift("kernel differs", size)),))
        assert drift_beyond_rounding(ours, check, expected._replace(truth=still)) == reason
