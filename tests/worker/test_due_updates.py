"""Workloads whose optimizers do not update, count or move in every step are checked as such."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import optax
import optax.contrib
import pytest

from bench.contract.workloads import mlp
from bench.worker.prove.gate import Gate
from bench.worker.prove.span_diagnosis import left_out
from bench.worker.prove.state_reader import StateReader
from implementations import jit_spmd, pmap, zero1
from tests.slow import slow
from tests.worker.test_spot_checks import (
    AFTER,
    changed,
    checked,
    counted_but_frozen,
    dodging,
    frozen,
    half,
)

EVERY = 4
"""Steps of which optax.MultiSteps updates in the last."""


def with_slow_weights(period: int) -> optax.GradientTransformation:
    """optax.lookahead, whose slow weights are in its state, because a model has fast ones alone."""
    inner = optax.lookahead(optax.adam(1e-3), period, 0.5)

    def init(params):
        slow = jax.tree.map(jnp.copy, params)
        return slow, inner.init(optax.LookaheadParams(params, slow))

    def update(grads, state, params):
        both = optax.LookaheadParams(params, state[0])
        updates, opt_state = inner.update(grads, state[1], both)
        return updates.fast, (optax.apply_updates(state[0], updates.slow), opt_state)

    return optax.GradientTransformation(init, update)


def accumulated(inner: optax.GradientTransformation) -> optax.GradientTransformation:
    return optax.MultiSteps(inner, EVERY).gradient_transformation()


OPTIMIZERS = {
    "accumulates": accumulated(optax.adamw(1e-3)),
    "accumulates for sgd": accumulated(optax.sgd(1e-2)),
    "is free of schedules": optax.contrib.schedule_free(optax.sgd(1e-2), 1e-2),
    "looks ahead": with_slow_weights(5),
    "applies what is finite": optax.apply_if_finite(optax.adam(1e-3), 3),
    "skips the large": optax.MultiSteps(
        optax.adam(1e-3),
        1,
        should_skip_update_fn=partial(optax.skip_large_updates, max_squared_norm=1e-2),
    ).gradient_transformation(),
    "ends": optax.adam(optax.linear_schedule(1e-3, 0.0, AFTER)),
    "descends": optax.sgd(1e-2),
    "oscillates": optax.sgd(3.0),
    "begins late": optax.sgd(optax.piecewise_constant_schedule(0.0, {14: 1.0})),
}


@pytest.fixture(scope="module")
def gates(mesh, problem, programs):
    made: dict[str, Gate] = {}

    def gate(name: str) -> Gate:
        if name not in made:
            optimizer = OPTIMIZERS[name]
            with jax.enable_x64(True):
                exact = replace(mlp.problem(mlp.SIZES["tiny"](), 8, "fp64"), optimizer=optimizer)
            timed = replace(problem, optimizer=optimizer)
            made[name] = Gate(timed, exact, mesh, 2, "fp32", programs)
        return made[name]

    return gate


KINDS = ("accumulates", "descends")
"""Optimizers of which every run of the tests tries pmap, whose state cannot be read."""

LIKE_OTHERS = ("accumulates for sgd", "skips the large", "looks ahead", "ends")
"""The first two update as `accumulates` and `applies what is finite` do, and planted faults are
found in the others; `slow` tries them too."""


@pytest.mark.parametrize(
    ("implementation", "name"),
    [
        *itertools.product([jit_spmd], [name for name in OPTIMIZERS if name not in LIKE_OTHERS]),
        *slow(*itertools.product([jit_spmd], LIKE_OTHERS)),
        *itertools.product([pmap], KINDS),
        *slow(*itertools.product([pmap], [name for name in OPTIMIZERS if name not in KINDS])),
    ],
)
def test_right_steps_pass(gates, mesh, implementation, name):
    gate = gates(name)
    why, check = checked(gate, implementation.build(gate.timed, mesh), gate.timed, rounds=4)
    assert why == ""
    unreadable = implementation is pmap and jax.tree.leaves(OPTIMIZERS[name].init(jnp.zeros(1)))
    assert (check is None) == bool(unreadable)


def restless(right, copy, problem, mesh):
    """Parameters that shrink a little in every step, whether or not an update is due."""

    def step(call, state, batch):
        (params, *others), loss = right(state, batch)
        if call >= AFTER:
            params = jax.tree.map(lambda leaf: leaf * (1 - 1e-4), params)
        return (params, *others), loss

    return step


@pytest.mark.parametrize(
    ("name", "change", "diagnosis"),
    [
        ("accumulates", frozen, "goes from .* and should be"),
        *slow(("accumulates", partial(frozen, every=2), "goes from .* and should be")),
        *slow(("accumulates for sgd", partial(frozen, every=9), "goes from .* and should be")),
        ("accumulates", counted_but_frozen, "do not change"),
        ("accumulates", half, "accumulates for a later update is wrong|the update is wrong"),
        ("ends", half, "the update is wrong|accumulates for a later"),
        ("ends", restless, "the parameters change after steps that owe no update"),
        ("looks ahead", frozen, "goes from .* and should be"),
        *slow(("applies what is finite", partial(frozen, every=3), "goes from .* and should be")),
        *slow(("is free of schedules", partial(frozen, every=3), "goes from .* and should be")),
    ],
)
def test_a_planted_fault_is_found(gates, mesh, name, change, diagnosis):
    gate = gates(name)
    why, _ = checked(gate, changed(change)(gate.timed, mesh), gate.timed, rounds=4)
    assert re.search(diagnosis, why), why


def frozen_pmap(problem, mesh):
    right = pmap.build(problem, mesh)
    copy = jax.jit(lambda tree: jax.tree.map(jnp.copy, tree))
    calls = itertools.count()
    step = frozen(right.step, copy, problem, mesh)
    return replace(right, step=lambda state, batch: step(next(calls), state, batch))


def test_parameters_must_move_even_if_the_optimizers_state_is_unreadable(gates, mesh):
    gate = gates("applies what is finite")
    why, _ = checked(gate, frozen_pmap(gate.timed, mesh), gate.timed)
    assert "the parameters do not change" in why


LONG = 1e6
"""Seconds of rounds that leave time to repeat whatever lies between two checks."""


@pytest.mark.parametrize(
    ("implementation", "name"),
    [
        *((jit_spmd, "oscillates"), (zero1, "descends"), (pmap, "begins late")),
        *slow((jit_spmd, "descends"), (jit_spmd, "begins late")),
        *slow((zero1, "oscillates"), (zero1, "begins late")),
        *slow((pmap, "descends"), (pmap, "oscillates")),
    ],
)
def test_steps_between_checks_are_repeated_without_a_counter(gates, mesh, name, implementation):
    gate = gates(name)
    built = implementation.build(gate.timed, mesh)
    assert checked(gate, built, gate.timed, rounds=8, seconds=LONG)[0] == ""


@pytest.mark.parametrize("of", [2, *slow(3)])
def test_steps_that_nobody_checks_are_counted_without_a_counter(gates, mesh, of):
    gate = gates("descends")
    build = changed(partial(dodging, of=of))
    why, _ = checked(gate, build(gate.timed, mesh), gate.timed, rounds=8, seconds=LONG)
    assert re.search(r": \d+ of the \d+ updates before are missing: the step skips", why), why
    why, _ = checked(gate, build(gate.timed, mesh), gate.timed, rounds=8, seconds=0.0)
    assert why == "", "no time to repeat any"


@pytest.mark.parametrize("name", ["descends", "oscillates"])
@pytest.mark.parametrize("before", [0, 200])
def test_updates_that_are_left_out_are_counted(gates, mesh, name, before):
    gate = gates(name)
    built = jit_spmd.build(gate.timed, mesh)
    reader = StateReader(built, gate.timed, built.state)
    state, batch = built.state, built.place(gate.timed.batch(0))
    held = []
    for number in range(before + 30):
        if number >= before:
            held.append(reader.read(state, reader.parts(state)))
        state, _ = built.step(state, batch)
    for end in (1, 10, 29):
        assert left_out(gate, held[0], held[end], end) == 0
        if name == "descends":
            assert left_out(gate, held[0], held[end], end + 4) == 4
