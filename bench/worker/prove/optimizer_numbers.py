"""Numbers that an optimizer holds, and the optimizer with one of them changed.

optax's transformations are closures, whose cells hold numbers under the names of optax's arguments;
optax.inject_hyperparams keeps them in a dict, and optax.MultiSteps in an object's attributes.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import FunctionType, MethodType
from typing import Any, NamedTuple

from optax import GradientTransformation as Rule

DIGITS = 1e-3
"""Relative precision to which a number is reported."""


class HeldValue(NamedTuple):
    """Something that an optimizer's functions hold, such as a number."""

    name: str
    value: Any
    put: Callable[[Any], None]
    """Replaces the held value."""

    @contextmanager
    def replaced(self, value: Any) -> Iterator[None]:
        """Hold another value in this context."""
        self.put(value)
        try:
            yield
        finally:
            self.put(self.value)

    def describe(self, value: Any, where: str) -> str:
        """Say that the step uses `value`, and which value it should use."""
        name, values = self.name, (value, self.value)
        if name == "step_size" and values[1] < 0:
            name, values = "learning rate", (-values[0], -values[1])
        return f"its {name}{where} is {' and should be '.join(map(few_digits, values))}"


def few_digits(value: Any) -> str:
    """Write a number in the fewest digits that give it, and its distance from 1, to DIGITS."""
    if isinstance(value, bool):
        return str(value)
    least = DIGITS * min(abs(value), abs(1 - value) or 1.0)
    texts = (f"{value:.{digits}g}" for digits in range(1, 18))
    return next(f"{float(text):.12g}" for text in texts if abs(float(text) - value) <= least)


def held_by(part: Any, seen: dict[int, Any]) -> Iterator[HeldValue]:
    """Find what an optimizer's functions and their objects hold; `seen` is empty at first."""
    if id(part) in seen:
        return
    seen[id(part)] = part
    if isinstance(part, MethodType):
        yield from held_by(vars(part.__self__), seen)
    elif isinstance(part, FunctionType):
        for name, cell in zip(part.__code__.co_freevars, part.__closure__ or (), strict=True):
            with suppress(ValueError):  # it is empty
                held = cell.cell_contents
                if id(cell) not in seen:
                    seen[id(cell)] = cell
                    yield HeldValue(name, held, partial(setattr, cell, "cell_contents"))
                yield from held_by(held, seen)
    elif isinstance(part, dict):
        numbers = {name: held for name, held in part.items() if type(held) in (int, float)}
        for name, held in numbers.items():  # not a mask's booleans
            yield HeldValue(name, held, partial(part.__setitem__, name))
        yield from held_by([*part.values()], seen)
    elif isinstance(part, tuple | list):
        for each in part:
            yield from held_by(each, seen)


def with_number(rule: Rule, held: HeldValue, value: Any) -> Rule:
    """Return an optimizer whose functions find `value` in place of a held one while they run."""
    return Rule(held.replaced(value)(rule.init), held.replaced(value)(rule.update))
