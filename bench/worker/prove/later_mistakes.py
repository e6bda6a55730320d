"""Diagnosis of mistakes that show in several steps: with gradients, losses and the optimizer.

The reference computes the gradients at our own parameters, so each update can be judged by itself.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

import jax
import numpy as np
from optax import GradientTransformation as Rule

from bench.contract.model_state import is_float
from bench.worker.prove.carried_state import Flat, flat
from bench.worker.prove.known_mistakes import Observed
from bench.worker.prove.relative_errors import close, multiple_of, some, update_errors
from bench.worker.prove.state_reader import is_count
from bench.worker.prove.trajectory import apply_update, vector

WEIGHTS = {
    "the gradients are those of the step before": [[1, 0, 0], [0, 1, 0]],
    "the gradients are those of the first step": [[1, 0, 0], [1, 0, 0]],
    "the gradients of all steps so far are summed": [[1, 1, 0], [1, 1, 1]],
    "the gradients of every two steps are averaged for one update": [[0.5, 0.5, 0], [0, 0, 0]],
    "the gradients of every two steps are summed for one update": [[1, 1, 0], [0, 0, 0]],
}
"""Weights with which the second and the third update sum the gradients of the three steps."""

STATES: dict[str, tuple[int, Callable[[Any, Any], Any]]] = {
    "its state is not kept: each step begins with a new one": (0, lambda old, _: old),
    "its count is one ahead: each step is taken as the one after it": (1, lambda _, new: new),
    "its count does not rise": (0, lambda old, new: old if is_count(old) else new),
    "its moments are not corrected for their bias": (1 << 20, lambda _, new: new),
}
"""Mistakes in an optimizer's state: the offset that is added to its initial counts, and a function
that chooses what an update leaves of each leaf, given the old leaf and the new one."""


def wrong_times(seen: Observed) -> str:
    """Name a mistake that shows in several steps: gradients of others, or a changing factor."""
    updates, near = seen.updates, seen.is_near
    right = -seen.rate * np.stack([vector(flat(step.grads)) for step in seen.at_steps])
    factors = [multiple_of(*pair) for pair in zip(updates, right, strict=True)]
    if not near(updates[0], factors[0] * right[0]) or near(updates, right):
        return ""
    moves, is_right = updates[0].any(), abs(factors[0] - 1) <= 10 * seen.match
    for why, later in _later_updates(seen, right) if is_right or not moves else ():
        if near(updates[1:], later):
            return why
    if near(updates, np.array(factors)[:, None] * right):
        return _name_factors(factors) if np.ptp(factors) > 10 * seen.match else ""
    right_loss = close(seen.ours.losses[0], seen.truth.losses[0], seen.loss_match)
    if not is_right and 0 < factors[0] < 1 and right_loss:
        first = f"the first update is {factors[0]:.6g} times what it should be"
        return f"{first}, and later ones are not: `params` may return an average"
    return ""


def _later_updates(seen: Observed, right: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield mistakes of steps whose first update is right or missing, and their later updates.

    `right` are the right updates (steps, parameters) from our own parameters.
    """
    for why, weights in WEIGHTS.items():
        yield why, np.array(weights) @ right
    params, states, *_ = zip(*seen.at_steps, strict=True)

    def later(*numbers: tuple[int, int, int], states: Sequence[Any] = states) -> np.ndarray:
        """Compute updates, given the steps of their parameters, model state and batch."""
        given = ((params[own], states[kept], seen.batches[at]) for own, kept, at in numbers)
        grads = (seen.gate.loss_and_gradients(*each)[1] for each in given)
        return -seen.rate * np.stack([vector(flat(each)) for each in grads])

    if not seen.updates[0].any():
        yield "`params` returns the parameters of the step before", later((1, 0, 0), (2, 1, 1))
        return
    yield "every step takes the first batch", later((1, 1, 0), (2, 2, 0))
    yield "the batch is that of the step before", later((1, 1, 0), (2, 2, 1))
    yield "the gradients are those of the initial parameters", later((0, 1, 1), (0, 2, 2))
    why = "the gradients are those of the parameters before the last update"
    yield why, later((0, 1, 1), (1, 2, 2))
    before, after, _ = seen.ours.states
    if any(not is_float(x) and not np.array_equal(before[path], x) for path, x in after.items()):
        again = [jax.tree.map(lambda x, x0: x if is_float(x) else x0, s, states[0]) for s in states]
        yield "every step draws the same random numbers", later((1, 1, 1), (2, 2, 2), states=again)


def wrong_loss(seen: Observed) -> str:
    """Name the steps or the parameters whose loss is returned instead; empty if not known."""
    ours = seen.ours.losses
    right = np.array([step.loss for step in seen.at_steps])
    if seen.is_loss(ours[1:], right[:-1], right[1:]):
        return "the loss is that of the step before"
    if seen.is_loss(ours, right[0], right):
        return "the loss is that of the first step"
    updated, state = seen.at_steps[1].params, seen.start[1]
    after = float(seen.gate.loss_and_gradients(updated, state, seen.batches[0])[0][0])
    if seen.is_loss(ours[0], after, right[0]):
        return "the loss is that of the parameters after the update"
    return ""


def with_state_mistake(rule: Rule, first: int, left: Callable[[Any, Any], Any]) -> Rule:
    """Return the optimizer with one of the mistakes of STATES."""

    def update(grads: Any, state: Any, params: Any = None) -> Any:
        updates, new = rule.update(grads, state, params)
        return updates, jax.tree.map(left, state, new)

    def init(params: Any) -> Any:
        return jax.tree.map(lambda x: x + first if is_count(x) else x, rule.init(params))

    return Rule(init, update)


def wrong_optimizer(seen: Observed, mask: Flat | None, tolerance: float) -> str:
    """Name the mistake with the workload's optimizer that reproduces the steps.

    If none is known, name the parameters that go wrong after a right first step; else empty. `mask`
    has a bool per element, whether it is compared; `tolerance` is for relative errors of updates.
    """
    steps = [*pairwise(seen.ours.every)]

    def are_near(ends: list[Flat]) -> np.ndarray:
        """Return whether steps to these parameters reproduce our update of each, by step."""
        errors = [
            [*update_errors(after, theirs, before, mask).values()]
            for (before, after), theirs in zip(steps, ends, strict=True)
        ]
        return np.array(errors) <= tolerance

    optimizer = seen.problem.optimizer
    for what, how in STATES.items():
        with suppress(Exception):  # a wrapper may not take another kind of state
            if are_near(_ends(with_state_mistake(optimizer, *how), seen)).all():
                return what
    ends, factors, are_scaled = _ends(optimizer, seen), [], True
    for (before, after), theirs in zip(steps, ends, strict=True):
        ours, right = vector(after, before, mask), vector(theirs, before, mask)
        factors.append(multiple_of(ours, right))
        are_scaled &= close(ours, factors[-1] * right, seen.match)
    if are_scaled and any(abs(by - 1) > 10 * seen.match for by in factors):
        return _name_factors(factors)
    are_right = are_near(ends)
    paths = zip(seen.ours.first, are_right.T, strict=True)
    wrong = [path for path, each in paths if not each.all()]
    if are_right[0].all() and 0 < len(wrong) < are_right.shape[1]:
        return f"its first step is right, and later updates of {some(wrong)} are not"
    return ""


def _ends(rule: Rule, seen: Observed) -> list[Flat]:
    """Return the parameters after each step by an optimizer, which begins each from our own."""
    opt_state, found = rule.init(seen.at_steps[0].params), []
    for params, _, _, grads in seen.at_steps:
        after, opt_state = apply_update(rule, params, opt_state, grads)
        found.append(flat(after))
    return found


def _name_factors(factors: list[float]) -> str:
    """Say by which factors the updates of the steps are wrong."""
    listed = ", ".join(f"{round(factor, 5) + 0.0:.4g}" for factor in factors)
    return f"the updates of the first steps are {listed} times what they should be"
