"""Diagnosis of a wrong optimizer: the workload's own is altered in one place until it fits.

The numbers of any optax optimizer can be found and changed, and Adam can be replaced by AMSGrad. A
change explains a step only if the gate would accept the step with it.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy  # which loads scipy.optimize, for 0.3 s, only where it is used
from optax import GradientTransformation as Rule

from bench.worker.prove.carried_state import Flat, flat, leaves_by_path, part_of
from bench.worker.prove.divided_gradients import mean_of
from bench.worker.prove.known_mistakes import AtStep, Observed
from bench.worker.prove.optimizer_numbers import (
    DIGITS,
    HeldValue,
    few_digits,
    held_by,
    with_number,
)
from bench.worker.prove.relative_errors import close, multiple_of, some, update_errors
from bench.worker.prove.state_reader import is_count
from bench.worker.prove.trajectory import apply_update, vector

PATIENCE_S = 120.0
"""Seconds after which no further number is tried."""

STATES: dict[str, tuple[int, Callable[[Any, Any], Any]]] = {
    "its state is not kept: each step begins with a new one": (0, lambda old, _: old),
    "its count is one ahead: each step is taken as the one after it": (1, lambda _, new: new),
    "its count does not rise": (0, lambda old, new: old if is_count(old) else new),
    "its moments are not corrected for their bias": (1 << 20, lambda _, new: new),
}
"""Mistakes in an optimizer's state: the offset that is added to its initial counts, and a function
that chooses what an update leaves of each leaf, given the old leaf and the new one."""


def with_state_mistake(rule: Rule, first: int, left: Callable[[Any, Any], Any]) -> Rule:
    """Return the optimizer with one of the mistakes of STATES."""

    def update(grads: Any, state: Any, params: Any = None) -> Any:
        updates, new = rule.update(grads, state, params)
        return updates, jax.tree.map(left, state, new)

    def init(params: Any) -> Any:
        return jax.tree.map(lambda x: x + first if is_count(x) else x, rule.init(params))

    return Rule(init, update)


def with_amsgrad(rule: Rule) -> Iterator[Rule]:
    """Yield the optimizer with AMSGrad in place of each of its Adams in turn."""
    for held in held_by(rule.update, {}):
        for adam in jax.tree.leaves(held.value):
            if getattr(adam, "__qualname__", "") != "scale_by_adam.<locals>.update_fn":
                continue
            own = {each.name: each.value for each in held_by(adam, {})}
            other = optax.scale_by_amsgrad(own["b1"], own["b2"], own["eps"], own["eps_root"])

            def update(grads: Any, state: Any, *_: Any, other: Rule = other) -> Any:
                is_new = isinstance(state, optax.ScaleByAdamState)
                return other.update(grads, other.init(grads) if is_new else state)

            places = {adam: update}
            changed = jax.tree.map(lambda x, at=places: at.get(x, x), held.value)
            yield with_number(rule, held, changed)


def twice(rule: Rule) -> Rule:
    """Return the optimizer with its state updated twice in each step."""

    def update(grads: Any, state: Any, params: Any = None) -> Any:
        return rule.update(grads, rule.update(grads, state, params)[1], params)

    return Rule(rule.init, update)


def clip_by_norm(most: float, grads: Any) -> Any:
    """Clip gradients by their global norm."""
    return optax.clip_by_global_norm(most).update(grads, optax.EmptyState())[0]


def ends_of(rule: Rule, steps: Sequence[AtStep]) -> list[Any]:
    """Return the parameters after each step by an optimizer, which begins each from our own."""
    opt_state, found = rule.init(steps[0].params), []
    for params, _, _, grads in steps:
        after, opt_state = apply_update(rule, params, opt_state, grads)
        found.append(after)
    return found


@dataclass(frozen=True)
class OwnSteps:
    """Steps under the workload's optimizer that differ from the reference's."""

    seen: Observed
    mask: Flat | None
    """Bool per element, whether it is compared; all if None."""
    tolerance: float
    """Largest relative error of an update."""

    def wrong(self, rule: Rule, steps: Sequence[AtStep] | None = None) -> list[str]:
        """Return the paths of the parameters that an optimizer does not reproduce in each step.

        `steps` may have other gradients than the right ones.
        """
        ends = map(flat, ends_of(rule, steps or self.seen.at_steps))
        errors = [
            [*update_errors(after, theirs, before, self.mask).values()]
            for (before, after), theirs in zip(pairwise(self.seen.ours.every), ends, strict=True)
        ]
        worst = zip(self.seen.ours.first, np.max(errors, axis=0), strict=True)
        return [path for path, error in worst if not error <= self.tolerance]

    def why(self) -> str:
        """Name the change to the optimizer that reproduces the steps; empty if none does."""
        end, right = time.monotonic() + PATIENCE_S, self.seen.problem.optimizer
        rules = [(what, with_state_mistake(right, *how)) for what, how in STATES.items()]
        rules += [("it is AMSGrad", other) for other in with_amsgrad(right)]
        rules += [("its state is updated twice in each step", twice(right))]
        for what, rule in rules:
            with suppress(Exception):  # a wrapper may not take another kind of state
                if not self.wrong(rule):
                    return what
        wrong = self.wrong(right)
        every = held_by((right.update, right.init), {})
        # A mask of the weight decay is the most frequent mistake.
        for held in sorted(every, key=lambda held: held.name != "weight_decay"):
            # The optimizer's own code may depend on a number, such as a length.
            with suppress(Exception):
                if why := self._why_number(held, wrong):
                    return why
            if time.monotonic() > end:
                break
        return self._why_scaled()

    def _why_scaled(self) -> str:
        """Name the factors by which the updates are wrong; empty if these do not explain them."""
        factors, match = [], self.seen.match
        ends = map(flat, ends_of(self.seen.problem.optimizer, self.seen.at_steps))
        for (before, after), theirs in zip(pairwise(self.seen.ours.every), ends, strict=True):
            ours, right = vector(after, before, self.mask), vector(theirs, before, self.mask)
            factors.append(multiple_of(ours, right))
            if not close(ours, factors[-1] * right, match):
                return ""
        return name_factors(factors) if any(abs(by - 1) > 10 * match for by in factors) else ""

    def _why_number(self, number: HeldValue, wrong: list[str]) -> str:
        """Name the change to a held number that reproduces the steps; empty if there is none.

        It may apply only to the parameters that are wrong.
        """
        right, own = self.seen.problem.optimizer, number.value
        if not isinstance(own, int | float):
            return ""
        change = partial(with_number, right, number)
        if number.name == "max_norm" and (why := self._why_clipped(change(np.inf), own)):
            return why
        for value in self._values(own, change, wrong):
            others = self.wrong(change(value))
            if not {*wrong} & {*others}:
                return number.describe(value, f" for {some(wrong)}" if others else "")
        if number.name == "weight_decay":
            with_penalty = optax.chain(optax.add_decayed_weights(own), change(0.0))
            if not self.wrong(with_penalty):
                return "its weight_decay is an L2 penalty, added to the gradients"
        return ""

    def _why_clipped(self, without: Rule, most: float) -> str:
        """Name a wrong way to clip that reproduces the steps; `without` is the unclipped rule."""
        alone = optax.stateless(lambda grads, _: jax.tree.map(partial(clip_by_norm, most), grads))
        if not self.wrong(without):
            return "the gradients are not clipped"
        if not self.wrong(without, self._clipped_per_shard(most)):
            return "the gradients are clipped on each shard, before they are averaged"
        if not self.wrong(optax.chain(alone, without)):
            return "each parameter's gradients are clipped by their own norm, not the global one"
        return ""

    def _clipped_per_shard(self, most: float) -> list[AtStep]:
        """Return the steps with gradients of which each shard's are clipped."""
        shards, of_part = self.seen.shards, jax.jit(jax.grad(self.seen.problem.functional()[1]))

        def clipped(step: AtStep, batch: Any) -> AtStep:
            parts = (of_part(step.params, part_of(batch, shards, at)) for at in range(shards))
            return step._replace(grads=mean_of(clip_by_norm(most, grads) for grads in parts))

        return [*map(clipped, self.seen.at_steps, self.seen.batches)]

    def _values(
        self, own: float, change: Callable[[Any], Rule], wrong: list[str]
    ) -> Iterator[float]:
        """Yield values that may reproduce the wrong parameters in place of a number's own."""
        if isinstance(own, bool):
            yield not own
            return
        if isinstance(own, int):
            yield from (each for each in (1, own - 1, own + 1, own // 2, own * 2) if each > 0)
        given = self.seen.at_steps, self.seen.ours.every[1:], self.mask

        @jax.jit
        def squares(value: Any, steps: Any, ours: Any, mask: Any) -> Any:
            """Return the squared distance of the steps' ends from our parameters."""
            ends = map(leaves_by_path, ends_of(change(value), steps))
            return sum(
                jnp.sum(jnp.where(mask[path] if mask else True, theirs[path] - own[path], 0.0) ** 2)
                for theirs, own in zip(ends, ours, strict=True)
                for path in wrong
            )

        def far(value: float) -> float:
            return float(squares(float(value), *given))

        best = min(_candidates(own), key=far)
        by = 1e-2 * (abs(best) or abs(own) or 1e-8)
        value = float(scipy.optimize.minimize_scalar(far, (best, best + by)).x)
        value = 0.0 if abs(value) <= DIGITS * abs(own) else value
        yield from (float(few_digits(value)), value)  # most numbers have few digits


def name_factors(factors: list[float]) -> str:
    """Say by which factors the updates of the steps are wrong."""
    listed = ", ".join(f"{round(factor, 5) + 0.0:.4g}" for factor in factors)
    return f"the updates of the first steps are {listed} times what they should be"


def _candidates(value: float) -> Iterator[float]:
    """Yield starting values of a search: powers of ten times the value or its distance from 1."""
    yield from (value, 0.0)
    for power in (-6, -4, -2, -1, 1, 2, 4, 6):
        yield (value or 1e-4) * 10.0**power
        if 0 < value < 1:
            yield 1 - (1 - value) * 10.0**power
