"""Diagnosis of a wrong optimizer: mistakes with its state, or with the scale of its updates."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import jax
import numpy as np
from optax import GradientTransformation as Rule

from bench.worker.prove.carried_state import Flat, flat
from bench.worker.prove.known_mistakes import Observed
from bench.worker.prove.relative_errors import close, multiple_of, some, update_errors
from bench.worker.prove.state_reader import is_count
from bench.worker.prove.trajectory import apply_update, vector

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


@dataclass(frozen=True)
class OwnSteps:
    """Steps under the workload's optimizer that differ from the reference's."""

    seen: Observed
    mask: Flat | None
    """Bool per element, whether it is compared; all if None."""
    tolerance: float
    """Largest relative error of an update."""

    def why(self) -> str:
        """Name the mistake that reproduces the steps, or the parameters that go wrong later.

        It is empty if neither is known.
        """
        optimizer = self.seen.problem.optimizer
        for what, how in STATES.items():
            with suppress(Exception):  # a wrapper may not take another kind of state
                if self._are_near(self._ends(with_state_mistake(optimizer, *how))).all():
                    return what
        ends = self._ends(optimizer)
        if why := self._why_scaled(ends):
            return why
        are_right = self._are_near(ends)
        paths = zip(self.seen.ours.first, are_right.T, strict=True)
        wrong = [path for path, each in paths if not each.all()]
        if are_right[0].all() and 0 < len(wrong) < are_right.shape[1]:
            return f"its first step is right, and later updates of {some(wrong)} are not"
        return ""

    def _ends(self, rule: Rule) -> list[Flat]:
        """Return the parameters after each step by an optimizer, which begins each from our own."""
        steps = self.seen.at_steps
        opt_state, found = rule.init(steps[0].params), []
        for params, _, _, grads in steps:
            after, opt_state = apply_update(rule, params, opt_state, grads)
            found.append(flat(after))
        return found

    def _are_near(self, ends: list[Flat]) -> np.ndarray:
        """Return whether an optimizer's steps reproduce our update of each parameter, by step."""
        every = self.seen.ours.every
        errors = [
            [*update_errors(after, theirs, before, self.mask).values()]
            for (before, after), theirs in zip(pairwise(every), ends, strict=True)
        ]
        return np.array(errors) <= self.tolerance

    def _why_scaled(self, ends: list[Flat]) -> str:
        """Name the factors by which the updates are wrong; empty if these do not explain them."""
        factors, match = [], self.seen.match
        for (before, after), theirs in zip(pairwise(self.seen.ours.every), ends, strict=True):
            ours, right = vector(after, before, self.mask), vector(theirs, before, self.mask)
            factors.append(multiple_of(ours, right))
            if not close(ours, factors[-1] * right, match):
                return ""
        return name_factors(factors) if any(abs(by - 1) > 10 * match for by in factors) else ""


def name_factors(factors: list[float]) -> str:
    """Say by which factors the updates of the steps are wrong."""
    listed = ", ".join(f"{round(factor, 5) + 0.0:.4g}" for factor in factors)
    return f"the updates of the first steps are {listed} times what they should be"
