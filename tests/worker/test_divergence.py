"""A step that does not train any more is seen after the rounds."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from bench.worker.prove.arm_checks import diverged, why_diverged
from bench.worker.time.clock import Arm


def arm(*losses: float, name: str = "a") -> Arm:
    """An arm that had these losses, every ten steps."""
    told = [(10 * number, jnp.float32(loss)) for number, loss in enumerate(losses, start=1)]
    return Arm(name, lambda state, _: (state, state), None, None, 10 * len(losses), told)


@pytest.mark.parametrize(
    ("first", "losses"),
    [
        (2.0, (1.0, 0.1, 1e-9)),
        (2.0, (1.9, 19.9)),
        (-5.0, (-6.0, -1e9, 39.0)),  # a likelihood, say
        (0.0, (3.0, 4.0)),  # nothing to compare with
        (1e-30, ()),
    ],
)
def test_a_loss_that_trains(first: float, losses: tuple[float, ...]) -> None:
    assert why_diverged(arm(*losses), first) == ""


@pytest.mark.parametrize(
    ("first", "losses", "words"),
    [
        (2.0, (1.0, float("nan"), 1.0), "the loss is nan after 20 steps"),
        (0.0, (float("inf"),), "the loss is inf after 10 steps"),
        (2.0, (1.0, 20.5), "diverges: 20.5 after 20 steps, and 2 before the first"),
        (-5.0, (41.0,), "diverges: 41 after 10 steps"),
    ],
)
def test_a_loss_that_does_not(first: float, losses: tuple[float, ...], words: str) -> None:
    why = why_diverged(arm(*losses), first)
    assert words in why
    assert f"of {10 * len(losses)} steps in all" in why


def test_a_loss_that_was_donated_is_passed_over() -> None:
    one = arm(float("nan"), 1.0)
    one.losses[0][1].delete()
    assert why_diverged(one, 1.0) == ""


def test_where_all_diverge_the_workload_does() -> None:
    bad, good = arm(float("nan"), name="bad"), arm(1.0, name="good")
    assert "workload" not in diverged([bad, good], 1.0)["bad"]
    worse = arm(1e9, name="worse")
    found = diverged([bad, worse], 1.0)
    assert all("the workload itself does not train" in why for why in found.values())
    assert "workload" not in diverged([bad], 1.0)["bad"], "one alone says nothing of others"


def test_what_a_check_has_found_is_the_reason_and_the_workload_is_named_too() -> None:
    bad, worse = arm(float("nan"), name="bad"), arm(1e9, name="worse")
    found = diverged([bad, worse], 1.0, {"bad": "in round 1: the loss is nan", "other": "wrong"})
    assert found.keys() == {"bad", "worse"}
    assert found["bad"].startswith("in round 1: the loss is nan; all arms of the block diverge")
    assert diverged([bad, arm(1.0, name="good")], 1.0, {"bad": "seen"}) == {"bad": "seen"}


def test_losses_are_kept_as_steps_run() -> None:
    one = Arm("a", jax.jit(lambda x, _: (x + 1, x)), jnp.float32(0), None)
    one.run(3)
    one.run(2, wait_each=True)
    assert [(steps, float(loss)) for steps, loss in one.losses] == [(3, 2.0), (5, 4.0)]
