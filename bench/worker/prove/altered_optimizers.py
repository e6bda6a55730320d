"""Diagnosis of a wrong optimizer: the workload's own is altered in one place until it fits.

optax's transformations are closures, whose cells hold numbers under the names of optax's arguments.
So any optimizer can be taken apart, and put together again with another decay rate. A step is
explained only if the gate would accept it with that.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from types import CellType, FunctionType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from optax import GradientTransformation as Rule
from scipy.optimize import minimize_scalar

from bench.contract import Batch, Problem
from bench.worker.prove.carried_state import Flat, leaves_by_path
from bench.worker.prove.relative_errors import loss_error, some, update_errors
from bench.worker.prove.trajectory import Trajectory, whole_batch_steps

PATIENCE_S = 120.0
"""Seconds after which nothing else is tried."""
REPLAYS = 8
"""Most replays of the steps for one number, because their gradients depend on it."""
LESS = 0.1
"""A number is dropped if even the best value leaves more than this share of the distance."""
DIGITS = 1e-3
"""Relative precision to which a number is told."""


class Number(NamedTuple):
    """A number, or a truth value, that an optimizer's functions hold."""

    name: str
    cell: CellType

    @property
    def own(self) -> Any:
        """Its value in the workload's optimizer."""
        return self.cell.cell_contents

    def told(self, value: Any, where: str = "") -> str:
        """Say which value it has, and which it should have."""
        name, values = self.name, (value, self.own)
        if name == "step_size" and self.own < 0:
            name, values = "learning rate", (-value, -self.own)
        return f"its {name}{where} is {' and should be '.join(map(_text, values))}"


def _text(value: Any) -> str:
    """Write a number with few digits; of a decay rate, the distance from 1 counts."""
    if isinstance(value, bool):
        return str(value)
    least = DIGITS * min(abs(value), abs(1 - value) or 1.0)
    texts = (f"{value:.{digits}g}" for digits in range(1, 18))
    return next(text for text in texts if abs(float(text) - value) <= least)


def numbers_of(rule: Rule) -> list[Number]:
    """Find the numbers in the closures of an optimizer's `update`."""
    found: dict[int, Number] = {}
    seen: set[int] = set()

    def look(part: Any) -> None:
        if id(part) in seen:
            return
        seen.add(id(part))
        if isinstance(part, dict):
            part = (*part.values(),)
        if isinstance(part, tuple | list):
            for each in part:
                look(each)
        elif isinstance(part, FunctionType):
            for name, cell in zip(part.__code__.co_freevars, part.__closure__ or (), strict=True):
                if isinstance(cell.cell_contents, int | float):
                    found[id(cell)] = Number(name, cell)
                else:
                    look(cell.cell_contents)

    look(rule.update)
    return list(found.values())


def with_number(rule: Rule, cell: CellType, value: Any) -> Rule:
    """Copy an optimizer's functions, with another number in one of their cells."""
    made: dict[int, FunctionType] = {}

    def copy(part: Any) -> Any:
        if id(part) in made:
            return made[id(part)]
        if isinstance(part, dict):
            return {key: copy(each) for key, each in part.items()}
        if isinstance(part, tuple | list):
            parts = map(copy, part)
            return type(part)(*parts) if hasattr(part, "_fields") else type(part)(parts)
        if not isinstance(part, FunctionType) or not part.__closure__:
            return part
        cells = tuple(CellType() for _ in part.__closure__)
        new = FunctionType(part.__code__, part.__globals__, part.__name__, part.__defaults__, cells)
        new.__kwdefaults__ = part.__kwdefaults__
        made[id(part)] = new  # before its cells are filled, one of which may hold itself
        for own, old in zip(cells, part.__closure__, strict=True):
            own.cell_contents = value if old is cell else copy(old.cell_contents)
        return new

    return Rule(*map(copy, rule))


def on_some(right: Rule, other: Rule, paths: Sequence[str]) -> Rule:
    """Apply the one optimizer, and to the parameters of these paths the other one."""

    def update(grads: Any, states: Any, params: Any = None) -> Any:
        (ours, kept), (theirs, others) = (
            rule.update(grads, state, params)
            for rule, state in zip((right, other), states, strict=True)
        )

        def chosen(path: Any, own: Any, their: Any) -> Any:
            return their if jax.tree_util.keystr(path) in paths else own

        return jax.tree_util.tree_map_with_path(chosen, ours, theirs), (kept, others)

    return Rule(lambda params: (right.init(params), other.init(params)), update)


def anew(rule: Rule) -> Rule:
    """Forget the optimizer's state in every step."""

    def update(grads: Any, state: Any, params: Any = None) -> Any:
        return rule.update(grads, rule.init(params), params)[0], state

    return Rule(rule.init, update)


def coupled(rule: Rule, decay: Number) -> Rule:
    """Add a weight decay to the gradients instead."""
    without = with_number(rule, decay.cell, 0.0)

    def update(grads: Any, state: Any, params: Any = None) -> Any:
        grads = jax.tree.map(lambda grad, leaf: grad + decay.own * leaf, grads, params)
        return without.update(grads, state, params)

    return Rule(without.init, update)


def ahead(rule: Rule) -> Rule:
    """Begin with counts of 1."""

    def counted(leaf: Any) -> Any:
        return leaf + 1 if leaf.ndim == 0 and jnp.issubdtype(leaf.dtype, jnp.integer) else leaf

    return Rule(lambda params: jax.tree.map(counted, rule.init(params)), rule.update)


@dataclass(frozen=True)
class OwnSteps:
    """Steps under the workload's optimizer that differ from the reference's."""

    problem: Problem
    """The problem, with float64 parameters."""
    batches: Sequence[Batch]
    gradients: Callable[..., Any]
    """The reference's loss and gradients of a whole batch."""
    ours: Trajectory
    mask: Flat | None
    """Bool per element, whether it is compared; all if None."""
    tolerance: tuple[float, float]
    """Largest relative error of a loss, and of an update."""

    def replay(self, rule: Rule) -> tuple[bool, list[Any]]:
        """Take the reference's steps by a rule; say whether they are ours, and the gradients."""
        grads = []

        def recorded(*given: Any) -> Any:
            found = self.gradients(*given)
            grads.append(found[1])
            return found

        start = self.problem.draw(), self.problem.draw_state()
        theirs = whole_batch_steps(*start, recorded, rule, self.batches)
        ends = [(self.ours.first, theirs.first), (self.ours.last, theirs.last)]
        errors = (update_errors(*end, theirs.start, self.mask).values() for end in ends)
        of_loss = loss_error(self.ours.losses, theirs.losses)
        near = of_loss <= self.tolerance[0] and max(map(max, errors)) <= self.tolerance[1]
        return near, grads

    def why(self, wrong: Sequence[str]) -> str:
        """Name the change of the optimizer that makes the steps; empty if none does.

        If it is not one for all parameters, it may be one for those of the paths `wrong`.
        """
        end, right = time.monotonic() + PATIENCE_S, self.problem.optimizer
        if self.replay(anew(right))[0]:
            return "its state is not kept: each step begins with a new one"
        if self.replay(ahead(right))[0]:
            return "its count is one ahead: each step is taken as the one after it"
        _, grads = self.replay(right)
        some_of_all = [wrong] if 0 < len(wrong) < len(self.ours.first) else []
        for number, paths in product(numbers_of(right), ((), *some_of_all)):

            def make(value: Any, cell: CellType = number.cell, paths: Any = paths) -> Rule:
                changed = with_number(right, cell, value)
                return on_some(right, changed, paths) if paths else changed

            if time.monotonic() > end:
                break
            # The optimizer's own code may depend on a number, such as a length.
            with suppress(Exception):
                if number.name == "weight_decay" and self.replay(coupled(right, number))[0]:
                    return "its weight_decay is an L2 penalty, added to the gradients"
                if (value := self._fitting(number.own, make, grads)) is not None:
                    return number.told(value, f" for {some([*paths])}" if paths else "")
        return ""

    def _fitting(self, own: Any, make: Callable[[Any], Rule], grads: list[Any]) -> Any:
        """Find the number with which a rule makes the steps; None if none does.

        `grads` are the gradients of the right steps, and `own` is the right number.
        """
        if isinstance(own, bool):
            return not own if self.replay(make(not own))[0] else None
        ends, start = (self.ours.first, self.ours.last), self.problem.draw()

        @jax.jit
        def squares(value: Any, grads: list[Any], start: Any, ends: Any, mask: Any) -> Any:
            """Return the squared distance of the first parameters and the last from the steps'."""
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
            found = minimize_scalar(far, (value, value + by))
            if found.fun > LESS**2 * before:
                break
            value = 0.0 if abs(found.x) <= DIGITS * abs(own) else float(found.x)
            tried = value if turn % 2 else float(_text(value))  # most numbers have few digits
            near, grads = self.replay(make(tried))
            if near:
                return tried
        return None


def _candidates(value: float) -> Iterator[float]:
    """Yield values from which to search: other powers of ten, also of the distance from 1."""
    yield from (value, 0.0)
    for power in (-6, -4, -2, -1, 1, 2, 4, 6):
        yield (value or 1e-4) * 10.0**power
        if 0 < value < 1:
            yield 1 - (1 - value) * 10.0**power
