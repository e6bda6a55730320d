"""A wrong optimizer is named by a mistake with its state, or the scale of its updates."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bench.worker.prove.known_mistakes import Observed, _explain_loss, _weights
from bench.worker.prove.later_mistakes import (
    STATES,
    with_state_mistake,
    wrong_loss,
    wrong_optimizer,
)
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
    gate = SimpleNamespace(loss_and_gradients=whole, mesh=SimpleNamespace(shape={}))
    seen = Observed(gate, problem, batches, 0.0, ours, ours, 1e-6, 1e-6)
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
        loss_match=0.1, gate=SimpleNamespace(loss_and_gradients=lambda *_: ((0.0, {}), {})),
    )  # fmt: skip
    seen.is_loss = partial(Observed.is_loss, seen)
    assert wrong_loss(seen) == why


@pytest.mark.parametrize(("loss", "why"), [(1.12, ""), (1.18, "the loss is that of shard 0 alone")])
def test_a_loss_that_is_only_near_that_of_a_shard_is_not_taken_for_it(loss, why):
    """In bfloat16, updates may differ by 10 %, and losses by much less."""
    seen = SimpleNamespace(
        ours=SimpleNamespace(losses=[loss]), problem=SimpleNamespace(microbatches=1),
        match=0.1, loss_match=0.02,
    )  # fmt: skip
    seen.is_near = partial(Observed.is_near, seen)
    seen.is_loss = partial(Observed.is_loss, seen)
    assert _explain_loss(seen, np.array([1.18, 0.82])) == why


@pytest.mark.parametrize(
    ("weights", "parts", "why"),
    [
        ([0.5, 0, 0], "shards", "shard 0 alone, times 0.5, as if they were not reduced over the"),
        ([0, 1, 0], "microbatches", "microbatch 1 alone"),
    ],
)
def test_the_weight_of_a_part_alone_is_named(weights, parts, why):
    updates = np.random.default_rng(0).standard_normal((3, 8))
    seen = SimpleNamespace(match=1e-6, updates=[weights @ updates])
    seen.is_near = partial(Observed.is_near, seen)
    assert next(_weights(seen, updates, parts)).startswith(f"the gradients are those of {why}")
