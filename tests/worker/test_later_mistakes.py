"""A wrong optimizer is named by a mistake with its state, or the scale of its updates."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bench.worker.prove.known_mistakes import Observed
from bench.worker.prove.later_mistakes import (
    STATES,
    with_state_mistake,
    wrong_loss,
    wrong_optimizer,
)
from bench.worker.prove.relative_errors import close
from bench.worker.prove.trajectory import whole_batch_steps

TOLERANCE = 4 * 2.0**-26
BIAS = "['bias']"


@jax.jit
@jax.value_and_grad
def loss_fn(params, batch):
    scaled = batch @ params["kernel"] * params.get("scale", 1.0)
    return jnp.mean(jnp.tanh(scaled + params["bias"] - 1.0) ** 2)


def whole(params, model_state, batch):
    loss, grads = loss_fn(params, batch)
    return (loss, model_state), grads


@pytest.fixture(autouse=True)
def _exact():
    with jax.enable_x64(True):
        yield


def named(right, other, start=None):
    """What the steps of another optimizer are called, where `right` was asked for."""
    chance = np.random.default_rng(0)
    start = start or {"bias": 0.1 * np.ones(3), "kernel": chance.standard_normal((4, 3))}
    batches = [chance.standard_normal((8, 4)) for _ in range(3)]
    two, three = (whole_batch_steps(start, {}, whole, other, batches[:n]) for n in (2, 3))
    ours = replace(three, between=(two.last,))
    problem = SimpleNamespace(optimizer=right, draw=lambda: start, draw_state=dict)
    gate = SimpleNamespace(loss_and_gradients=whole)
    seen = Observed(gate, problem, batches, 0.0, ours, ours, 1e-6)
    return wrong_optimizer(seen, None, TOLERANCE)


def adamw(rate=1e-3, **changed):
    return optax.adamw(rate, **changed)


def warmed(steps, rate=1e-2):
    return optax.adam(optax.linear_schedule(1e-4, rate, steps))


@pytest.mark.parametrize(
    ("other", "name"),
    [
        (adamw(3e-4), "the updates of the first steps are 0.3, 0.3, 0.3 times what they should be"),
        (
            adamw(optax.exponential_decay(1e-3, 1, 0.9)),
            "the updates of the first steps are 1, 0.9, 0.81 times what they should be",
        ),
        (adamw(b2=0.99), ""),
        (adamw(weight_decay=0.1), ""),
    ],
)
def test_a_scale_of_the_updates_is_named(other, name):
    assert named(adamw(), other) == name


@pytest.mark.parametrize("what", STATES)
def test_a_mistake_in_the_state_is_named(what):
    for right in (warmed(10), adamw()):
        found = named(right, with_state_mistake(right, *STATES[what]))
        assert found == what


def test_parameters_that_go_wrong_after_the_first_step_are_named():
    start = {"bias": jnp.zeros(3), "kernel": jnp.ones((4, 3)), "scale": jnp.zeros(3)}
    right, other = (adamw(weight_decay=0.1, mask=mask) for mask in (None, masked))
    found = named(right, other, start=start)
    assert found == f"its first step is right, and later updates of {BIAS}, ['scale'] are not"


def masked(tree):
    return jax.tree.map(lambda leaf: leaf.ndim > 1, tree)


@pytest.mark.parametrize(
    ("losses", "why"),
    [
        ([2.0, 0.95, 0.9], ""),  # the first alone is wrong, and all others are near one another
        ([2.0, 1.0, 0.5], "the loss is that of the step before"),
    ],
)
def test_a_right_loss_is_not_taken_for_that_of_the_step_before(losses, why):
    right = [1.0, 0.5, 0.25] if why else [1.0, 0.95, 0.9]
    steps = [SimpleNamespace(loss=loss, params=None) for loss in right]
    seen = SimpleNamespace(
        ours=SimpleNamespace(losses=np.array(losses)), at_steps=steps, start=({}, {}), batches=[0],
        is_near=lambda ours, theirs: close(ours, theirs, 0.1),
        gate=SimpleNamespace(loss_and_gradients=lambda *_: ((0.0, {}), {})),
    )  # fmt: skip
    assert wrong_loss(seen) == why
