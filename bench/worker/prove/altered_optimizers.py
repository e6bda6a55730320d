"""Diagnosis of a wrong optimizer: the workload's own is altered in one place until it fits.

The numbers of any optax optimizer can be found and changed, and Adam can be replaced by AMSGrad. A
change explains a step only if the gate would accept the step with it.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy  # which loads scipy.optimize, for 0.3 s, only where it is used
from optax import GradientTransformation as Rule

from bench.worker.prove.carried_state import Flat, flat, leaves_by_path, part_of
from bench.worker.prove.known_mistakes import Observed
from bench.worker.prove.optimizer_numbers import (
    DIGITS,
    HeldValue,
    few_digits,
    held_by,
    on_some,
    with_number,
)
from bench.worker.prove.relative_errors import loss_error, some, update_errors
from bench.worker.prove.state_reader import is_count
from bench.worker.prove.trajectory import apply_update, vector

PATIENCE_S = 120.0
"""Seconds after which no further number is tried."""
REPLAYS = 8
"""Most replays of the steps for one number, because their gradients depend on it."""
LESS = 0.5
"""A number is dropped if even the best value leaves more than this share of the last distance."""

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


def clipped_per_shard(seen: Observed, most: float) -> Callable[..., Any]:
    """Return a function that computes a batch's loss and gradients, each shard's clipped."""
    of_part = jax.jit(jax.value_and_grad(seen.problem.functional()[1]))

    def gradients(params: Any, model_state: Any, batch: Any) -> Any:
        parts = [of_part(params, part_of(batch, seen.shards, at)) for at in range(seen.shards)]
        clipped = [(loss, clip_by_norm(most, grads)) for loss, grads in parts]
        loss, grads = jax.tree.map(lambda *leaves: sum(leaves) / seen.shards, *clipped)
        return (loss, model_state), grads

    return gradients


def clip_by_norm(most: float, grads: Any) -> Any:
    """Clip gradients by their global norm."""
    return optax.clip_by_global_norm(most).update(grads, optax.EmptyState())[0]


@dataclass(frozen=True)
class OwnSteps:
    """Steps under the workload's optimizer that differ from the reference's."""

    seen: Observed
    mask: Flat | None
    """Bool per element, whether it is compared; all if None."""
    tolerance: tuple[float, float]
    """Largest relative error of a loss, and of an update."""

    def replay(
        self, rule: Rule, gradients: Callable[..., Any] | None = None
    ) -> tuple[bool, list[str], list[Any]]:
        """Take the reference's steps under an optimizer, with its gradients or others.

        Return whether they reproduce our steps, the paths of the parameters that differ (after the
        first step, or if none does, after the last), and the gradients of each step.
        """
        grads = []

        def recorded(*given: Any) -> Any:
            found = (gradients or self.seen.gradients)(*given)
            grads.append(found[1])
            return found

        theirs = self.seen.steps(recorded, rule)
        ends = (self.seen.ours.first, theirs.first), (self.seen.ours.last, theirs.last)
        errors = (update_errors(*end, theirs.start, self.mask) for end in ends)
        first, last = ([p for p, e in own.items() if not e <= self.tolerance[1]] for own in errors)
        near = loss_error(self.seen.ours.losses, theirs.losses) <= self.tolerance[0]
        return near and not first + last, first or last, grads

    def why(self) -> str:
        """Name the change to the optimizer that reproduces the steps; empty if none does.

        It may apply to all parameters or only to those that differ.
        """
        end, right = time.monotonic() + PATIENCE_S, self.seen.problem.optimizer
        rules = [(what, with_state_mistake(right, *how)) for what, how in STATES.items()]
        rules += [("it is AMSGrad", other) for other in with_amsgrad(right)]
        rules += [("its state is updated twice in each step", twice(right))]
        for what, rule in rules:
            with suppress(Exception):  # a wrapper may not take another kind of state
                if self.replay(rule)[0]:
                    return what
        _, wrong, grads = self.replay(right)
        every = held_by((right.update, right.init), {})
        # A mask of the weight decay is the most frequent mistake, and takes several searches.
        for held in sorted(every, key=lambda held: held.name != "weight_decay"):
            # The optimizer's own code may depend on a number, such as a length.
            with suppress(Exception):
                if why := self._why_number(held, wrong, grads):
                    return why
            if time.monotonic() > end:
                break
        factors = scaled_updates(self.seen, self.mask)
        is_other = any(abs(factor - 1) > 10 * self.seen.match for factor in factors)
        return name_factors(factors) if is_other else ""

    def _why_number(self, number: HeldValue, wrong: list[str], grads: list[Any]) -> str:
        """Name the change to a held number that reproduces the steps; empty if there is none."""
        right, own = self.seen.problem.optimizer, number.value
        if not isinstance(own, int | float):
            return ""
        change = partial(with_number, right, number)
        changes = {"": change}
        some_alike = self._masked_parameters(wrong) if number.name == "weight_decay" else [wrong]
        for paths in some_alike if 0 < len(wrong) < len(self.seen.ours.first) else ():
            changes[f" for {some(paths)}"] = partial(on_some, right, paths, change)
        if number.name == "max_norm" and (why := self._why_clipped(change(np.inf), own)):
            return why
        for where, make in changes.items():
            if (value := self._fitting(number, make, grads)) is not None:
                return number.describe(value, where)
        if number.name == "weight_decay":
            with_penalty = optax.chain(optax.add_decayed_weights(own), change(0.0))
            if self.replay(with_penalty)[0]:
                return "its weight_decay is an L2 penalty, added to the gradients"
        return ""

    def _why_clipped(self, without: Rule, most: float) -> str:
        """Name a wrong way to clip that reproduces the steps; `without` is the unclipped rule."""
        alone = optax.stateless(lambda grads, _: jax.tree.map(partial(clip_by_norm, most), grads))
        if self.replay(without)[0]:
            return "the gradients are not clipped"
        if self.replay(self.seen.problem.optimizer, clipped_per_shard(self.seen, most))[0]:
            return "the gradients are clipped on each shard, before they are averaged"
        if self.replay(optax.chain(alone, without))[0]:
            return "each parameter's gradients are clipped by their own norm, not the global one"
        return ""

    def _masked_parameters(self, wrong: list[str]) -> Iterator[list[str]]:
        """Yield the sets of parameters that a mask may have selected, given those that are wrong.

        Parameters that are 0 at first are right after the first step, whatever their decay.
        """
        start = self.seen.ours.start
        later = [path for path, leaf in start.items() if path in wrong or not leaf.any()]
        flat_ones = [path for path, leaf in start.items() if leaf.ndim < 2]  # noqa: PLR2004
        for paths in (wrong, flat_ones, later):
            if set(wrong) <= set(paths):
                yield paths

    def _fitting(self, number: HeldValue, make: Callable[[Any], Rule], grads: list[Any]) -> Any:
        """Find the value of a number with which an optimizer reproduces the steps, or None.

        `grads` are the gradients of the right steps.
        """
        own = number.value
        if isinstance(own, bool):
            return not own if self.replay(make(not own))[0] else None
        for other in (1, own - 1, own + 1, own // 2, own * 2) if isinstance(own, int) else ():
            if other > 0 and self.replay(make(other))[0]:
                return other
        ends, start = (self.seen.ours.first, self.seen.ours.last), self.seen.start[0]

        @jax.jit
        def squares(value: Any, grads: list[Any], start: Any, ends: Any, mask: Any) -> Any:
            """Return the squared distance from our parameters after the first and the last step."""
            rule, params, every = make(value), start, []
            opt_state = rule.init(params)
            for each in grads:
                updates, opt_state = rule.update(each, opt_state, params)
                params = optax.apply_updates(params, updates)
                every.append(leaves_by_path(params))
            return sum(
                jnp.sum(jnp.where(mask[path] if mask else True, leaf - end[path], 0.0) ** 2)
                for found, end in zip((every[0], every[-1]), ends, strict=True)
                for path, leaf in found.items()
            )

        def far(value: float) -> float:
            return float(squares(float(value), grads, start, ends, self.mask))

        before, value = far(own), min(_candidates(own), key=far)
        for turn in range(REPLAYS):
            by = 1e-2 * (abs(value) or abs(own) or 1e-8)
            found = scipy.optimize.minimize_scalar(far, (value, value + by))
            if found.fun > LESS**2 * before:
                break
            before = found.fun
            value = 0.0 if abs(found.x) <= DIGITS * abs(own) else float(found.x)
            tried = value if turn % 2 else float(few_digits(value))  # most numbers have few digits
            near, _, grads = self.replay(make(tried))
            if near:
                return tried
        return None


def scaled_updates(seen: Observed, mask: Flat | None = None) -> list[float]:
    """Find the factors by which the steps' updates are wrong; empty if factors do not explain them.

    Each factor slightly changes later gradients, so factors and gradients are computed in turn.
    """
    optimizer, ours = seen.problem.optimizer, seen.ours
    ends = vector(ours.first, ours.start, mask), vector(ours.last, ours.first, mask)
    factors = [1.0] * len(seen.batches)
    for _ in range(REPLAYS):
        params, model_state = seen.start
        opt_state, made = optimizer.init(params), []
        for factor, batch in zip(factors, seen.batches, strict=True):
            (_, model_state), grads = seen.gradients(params, model_state, batch)
            new, opt_state = apply_update(optimizer, params, opt_state, grads)
            made.append(vector(flat(new), flat(params), mask))
            params = jax.tree.map(lambda a, b, by=factor: a + by * (b - a), params, new)
        parts = np.stack(made[:1], 1), np.stack(made[1:], 1)
        found = [np.linalg.lstsq(*pair, rcond=None)[0] for pair in zip(parts, ends, strict=True)]
        factors = [float(factor) for factor in np.concatenate(found)]
        if all(seen.is_near(p @ f, end) for p, f, end in zip(parts, found, ends, strict=True)):
            return factors
    return []


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
