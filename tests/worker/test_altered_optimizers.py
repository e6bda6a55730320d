"""A wrong optimizer is named by the one number of the workload's own that would make it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from optax.contrib import muon

from bench.contract.clipping import clip_by_global_norm
from bench.worker.prove.altered_optimizers import STATES, OwnSteps, twice, with_state_mistake
from bench.worker.prove.known_mistakes import Observed
from bench.worker.prove.optimizer_numbers import held_by, with_number
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


def named(right, other, gradients=whole, start=None):
    """What the steps of another optimizer are called, where `right` was asked for."""
    chance = np.random.default_rng(0)
    start = start or {"bias": 0.1 * np.ones(3), "kernel": chance.standard_normal((4, 3))}
    batches = [chance.standard_normal((8, 4)) for _ in range(3)]
    two, three = (whole_batch_steps(start, {}, gradients, other, batches[:n]) for n in (2, 3))
    ours = replace(three, between=(two.last,))
    problem = SimpleNamespace(
        optimizer=right,
        draw=lambda: start,
        draw_state=dict,
        functional=lambda: (start, lambda params, batch: loss_fn(params, batch)[0]),
    )
    seen = Observed(problem, batches, 2, 0.0, ours, ours, whole, 2, 1e-6)
    return OwnSteps(seen, None, TOLERANCE).why()


def adamw(rate=1e-3, **changed):
    return optax.adamw(rate, **changed)


def clipped(norm):
    return optax.chain(clip_by_global_norm(norm), optax.sgd(0.1))


def warmed(steps, rate=1e-2):
    return optax.adam(optax.linear_schedule(1e-4, rate, steps))


def as_amsgrad(rate=1e-3):
    """AdamW with another rule, written as a user would."""
    return optax.chain(
        optax.scale_by_amsgrad(), optax.add_decayed_weights(1e-4), optax.scale(-rate)
    )


def in_steps(rule, every=2):
    return optax.MultiSteps(rule, every).gradient_transformation()


def injected(**changed):
    return optax.inject_hyperparams(optax.adamw)(**{"learning_rate": 1e-3} | changed)


def each_clipped(norm, rule):
    def clipped(grads, _):
        return jax.tree.map(lambda leaf: leaf * jnp.minimum(1, norm / jnp.linalg.norm(leaf)), grads)

    return optax.chain(optax.stateless(clipped), rule)


COUPLED = optax.chain(optax.add_decayed_weights(0.1), optax.adam(1e-3))


@pytest.mark.parametrize(
    ("right", "other", "name"),
    [
        (adamw(), adamw(b2=0.99), "its b2 is 0.99 and should be 0.999"),
        (optax.adam(0.01), optax.adam(0.01, b1=0.0), "its b1 is 0 and should be 0.9"),
        (adamw(), adamw(b1=0.8765), "its b1 is 0.8765 and should be 0.9"),
        (adamw(), adamw(eps=1e-3), "its eps is 0.001 and should be 1e-08"),
        (adamw(), adamw(3e-4), "its learning rate is 0.0003 and should be 0.001"),
        (adamw(), adamw(weight_decay=0.0), "its weight_decay is 0 and should be 0.0001"),
        (adamw(), adamw(nesterov=True), "its nesterov is True and should be False"),
        (adamw(), as_amsgrad(), "it is AMSGrad"),
        (
            optax.chain(clip_by_global_norm(0.1), adamw()),
            optax.chain(clip_by_global_norm(0.1), as_amsgrad()),
            "it is AMSGrad",
        ),
        (
            adamw(),
            adamw(optax.exponential_decay(1e-3, 1, 0.9)),
            "the updates of the first steps are 1, 0.9, 0.81 times what they should be",
        ),
        (clipped(0.1), clipped(0.05), "its max_norm is 0.05 and should be 0.1"),
        (adamw(weight_decay=0.1), COUPLED, "its weight_decay is an L2 penalty, added to the grad"),
        (clipped(0.1), optax.sgd(0.1), "the gradients are not clipped"),
        (
            clipped(0.1),
            each_clipped(0.1, optax.sgd(0.1)),
            "each parameter's gradients are clipped by their own norm, not the global one",
        ),
        (in_steps(adamw()), in_steps(adamw(weight_decay=0.0)), "its weight_decay is 0 and should"),
        (in_steps(adamw()), in_steps(adamw(), 3), "its every_k_schedule is 3 and should be 2"),
        (injected(), injected(b1=0.8), "its b1 is 0.8 and should be 0.9"),
        (injected(), injected(learning_rate=1e-4), "its learning_rate is 0.0001 and should be"),
        (adamw(), twice(adamw()), "its state is updated twice in each step"),
        (adamw(), adamw(3e-4, b2=0.9), ""),
    ],
)
def test_the_number_that_makes_the_steps_is_named(right, other, name):
    found = named(right, other)
    assert found.startswith(name), found
    assert bool(found) == bool(name)


@pytest.mark.parametrize("what", STATES)
def test_a_mistake_in_the_state_is_named(what):
    for right in (warmed(10), adamw()):
        found = named(right, with_state_mistake(right, *STATES[what]))
        assert found == what


def test_a_number_may_be_wrong_for_some_parameters():
    without_bias = adamw(mask={"bias": False, "kernel": True})
    assert named(adamw(), without_bias) == f"its weight_decay for {BIAS} is 0 and should be 0.0001"


def test_a_mask_may_leave_out_what_is_zero_at_first():
    start = {"bias": jnp.zeros(3), "kernel": jnp.ones((4, 3)), "scale": jnp.ones(3)}
    right, other = (adamw(weight_decay=0.1, mask=mask) for mask in (None, masked))
    found = named(right, other, start=start)
    assert found == f"its weight_decay for {BIAS}, ['scale'] is 0 and should be 0.1"


def test_shards_may_clip_on_their_own():
    def clipped(params, model_state, batch):
        halves = [whole(params, model_state, half)[1] for half in (batch[:4], batch[4:])]
        clip = optax.clip_by_global_norm(0.1)
        grads = [clip.update(grads, optax.EmptyState())[0] for grads in halves]
        mean = jax.tree.map(lambda a, b: (a + b) / 2, *grads)
        return whole(params, model_state, batch)[0], mean

    rule = optax.chain(clip_by_global_norm(0.1), optax.adam(1e-3))
    found = named(rule, rule, clipped)
    assert found == "the gradients are clipped on each shard, before they are averaged"


def masked(tree):
    return jax.tree.map(lambda leaf: leaf.ndim > 1, tree)


@pytest.mark.parametrize(
    ("rule", "names"),
    [
        (clipped(1.0), {"max_norm", "step_size"}),
        (optax.sgd(0.1, momentum=0.9), {"decay", "nesterov", "step_size"}),
        (adamw(mask=masked), {"weight_decay", "b1", "b2", "eps", "eps_root", "step_size"}),
        (warmed(10), {"b1", "transition_steps", "init_value", "end_value"}),
        (muon(1e-3), {"ns_steps", "b1", "b2", "beta", "eps", "step_size"}),
    ],
)
def test_the_numbers_of_an_optimizer_are_found(rule, names):
    assert names <= {held.name for held in held_by(rule.update, {})}


def test_a_number_is_changed_only_while_the_optimizer_runs():
    params, rule = {"bias": jnp.ones(3), "kernel": jnp.eye(4, 3)}, adamw(mask=masked)
    (rate,) = (held for held in held_by(rule.update, {}) if held.name == "step_size")
    doubled = with_number(rule, rate, 2 * rate.value)
    one, other = (each.update(params, each.init(params), params)[0] for each in (rule, doubled))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(2 * a, b, rtol=1e-12), one, other)
    assert rate.value in [held.value for held in held_by(rule.update, {})]


def test_an_empty_cell_holds_no_number():
    def outer():
        def update(grads):
            return grads, unset

        if update is None:
            unset = 1.0
        return update

    assert list(held_by(outer(), {})) == []
