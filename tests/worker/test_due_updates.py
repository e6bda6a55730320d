"""Workloads whose optimizers do not update, count or move in every step are checked as such."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import optax
import optax.contrib
import pytest

from bench.contract.workloads import mlp
from bench.records.mesh import MeshShape
from bench.worker.meshes import make_mesh
from bench.worker.prove.gate import Gate
from implementations import jit_spmd, pmap
from tests.worker.test_spot_checks import changed, checked, counted_but_frozen, frozen, half

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
        should_skip_update_fn=partial(optax.skip_large_updates, max_squared_norm=9.0),
    ).gradient_transformation(),
    "ends": optax.adam(optax.linear_schedule(1e-3, 0.0, 12)),
    "begins late": optax.sgd(optax.piecewise_constant_schedule(0.0, {14: 1.0})),
}


@pytest.fixture(scope="module")
def mesh():
    return make_mesh(MeshShape.parse("data=2"))


@pytest.fixture(scope="module")
def gates(mesh, programs):
    made: dict[str, Gate] = {}

    def gate(name: str) -> Gate:
        if name not in made:
            optimizer, size = OPTIMIZERS[name], mlp.SIZES["tiny"]()
            with jax.enable_x64(True):
                exact = replace(mlp.problem(size, 8, "fp64"), optimizer=optimizer)
            timed = replace(mlp.problem(size, 8, "fp32"), optimizer=optimizer)
            made[name] = Gate(timed, exact, mesh, 2, "fp32", programs)
        return made[name]

    return gate


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("implementation", [jit_spmd, pmap])
def test_right_steps_pass(gates, mesh, implementation, name):
    gate = gates(name)
    why, check = checked(gate, implementation.build(gate.timed, mesh), gate.timed, rounds=4)
    assert why == ""
    assert (check is None) == (implementation is pmap)


@pytest.mark.parametrize(
    ("name", "change", "diagnosis"),
    [
        ("accumulates", frozen, "goes from .* and should be"),
        ("accumulates", partial(frozen, every=2), "goes from .* and should be"),
        ("accumulates for sgd", partial(frozen, every=9), "goes from .* and should be"),
        ("accumulates", counted_but_frozen, "do not change"),
        ("accumulates", half, "accumulates for a later update is wrong|that of 1 of 2 parts"),
        ("ends", half, "that of 1 of 2 parts|accumulates for a later"),
        ("looks ahead", frozen, "goes from .* and should be"),
        ("applies what is finite", partial(frozen, every=3), "goes from .* and should be"),
        ("is free of schedules", partial(frozen, every=3), "goes from .* and should be"),
    ],
)
def test_a_planted_fault_is_found(gates, mesh, name, change, diagnosis):
    gate = gates(name)
    why, _ = checked(gate, changed(change)(gate.timed, mesh), gate.timed, rounds=4)
    assert re.search(diagnosis, why), why
