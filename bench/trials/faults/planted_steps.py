"""Planted train steps: modifications of a right one, each of which goes wrong in its own way."""

import itertools
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from types import FrameType
from typing import Any

import jax
import jax.numpy as jnp

from bench.contract import TrainStep
from bench.records.current_arm import VARIABLE

PAUSE_S = 1e-3
"""Seconds without a call after which a step may guess that a span begins."""
MOST_CHECKED = 8
"""The most steps in an extra span of a check."""


def timed() -> bool:
    """Return whether the timed rounds have begun: an arm holds the current turn."""
    return bool(os.pread(int(os.environ[VARIABLE]), 64, 0).strip(b"\0 ").partition(b" ")[2])


def frame_with(variable: str) -> FrameType:
    """Return the innermost frame with a local variable of this name, or the outermost of all."""
    frame = sys._getframe()  # noqa: SLF001 - as a cheat would
    while frame.f_back is not None and variable not in frame.f_locals:
        frame = frame.f_back
    return frame


def _result(change: Callable[[Any, jax.Array], Any]) -> Callable[[TrainStep], TrainStep]:
    """Make the step return `change(state, loss)`."""
    return lambda right: replace(right, step=lambda state, batch: change(*right.step(state, batch)))


def _diverge(state: Any, loss: jax.Array) -> Any:
    params, *others = state
    grown = jax.tree.map(lambda leaf: leaf * 1.5, params) if timed() else params
    return (grown, *others), loss


def _freeze(right: TrainStep) -> TrainStep:
    """Leave the parameters unchanged once the rounds have begun."""
    copy = jax.jit(lambda tree: jax.tree.map(jnp.copy, tree))

    def step(state: Any, batch: Any) -> Any:
        kept = copy(state)
        state, loss = right.step(state, batch)
        return (kept if timed() else state), loss

    return replace(right, step=step)


def _skipping(skips: Callable[[], bool]) -> Callable[[TrainStep], TrainStep]:
    """Compute nothing whenever `skips()`, and return the last loss."""

    def change(right: TrainStep) -> TrainStep:
        last: list[Any] = []

        def step(state: Any, batch: Any) -> Any:
            if not (last and skips()):
                state, loss = right.step(state, batch)
                last[:] = [loss]
            return state, last[0]

        return replace(right, step=step)

    return change


_PEEKS = itertools.count()
"""Counts the timed steps of `peeks`, which computes one in ten."""


def _in_a_span() -> bool:
    """Return whether the harness's frames show a timed step rather than a checked one."""
    turn = frame_with("groups").f_locals
    # The clock's frames come first, because a step in a separate process cannot ask for the phase.
    return "groups" in turn and turn["group"] is turn["spans"] and timed()


_CALLS = [0.0, 0.0]
"""The time of the last call of a step that tires, and the number of calls since a pause."""


def _is_late_in_long_span() -> bool:
    """Return whether this is a late step of a long span, which checks never have."""
    now = time.monotonic()
    _CALLS[:] = now, 1 if now - _CALLS[0] > PAUSE_S else _CALLS[1] + 1
    return timed() and _CALLS[1] > MOST_CHECKED


def _turn(right: TrainStep, after: int = 50) -> TrainStep:
    """Skip every update after the first `after`, within one program that counts its own calls."""

    @jax.jit
    def counting(number: jax.Array, state: Any, batch: Any) -> Any:
        new, loss = right.step(state, batch)
        kept = jax.tree.map(lambda made, old: jnp.where(number < after, made, old), new, state)
        return number + 1, kept, loss

    number = [jnp.int32(0)]

    def step(state: Any, batch: Any) -> Any:
        number[0], state, loss = counting(number[0], state, batch)
        return state, loss

    return replace(right, step=step)


class _Lazy:
    """A state that does some of its step's work when it is flattened, after the span."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def flattened(self) -> tuple[Any, None]:
        """Return the state, after a while if the rounds have begun."""
        if timed():
            time.sleep(0.01)
        return (self.state,), None


jax.tree_util.register_pytree_node(_Lazy, _Lazy.flattened, lambda _, parts: _Lazy(*parts))


def _defer_work(right: TrainStep) -> TrainStep:
    def step(lazy: Any, batch: Any) -> Any:
        state, loss = right.step(lazy.state, batch)
        return _Lazy(state), loss

    return replace(
        right, state=_Lazy(right.state), step=step, params=lambda lazy: right.params(lazy.state)
    )


def _work_ahead(right: TrainStep) -> TrainStep:
    """Work for long in the first step after a pause, as if to compute the next ones."""
    ended = [0.0]

    def step(state: Any, batch: Any) -> Any:
        if timed() and time.monotonic() - ended[0] > PAUSE_S:
            time.sleep(0.1)
        result = right.step(state, batch)
        ended[0] = time.monotonic()
        return result

    return replace(right, step=step)


CHANGES: dict[str, Callable[[TrainStep], Any]] = {
    "no_step": lambda _: None,
    "params_of_shape": lambda right: replace(
        right, params=lambda state: jax.tree.map(jnp.ravel, right.params(state))
    ),
    "loss_of_shape": _result(lambda state, loss: (state, jnp.stack([loss] * 8))),
    "three_values": _result(lambda state, loss: (state, loss, None)),
    "becomes_nan": _result(lambda state, loss: (state, loss * jnp.nan if timed() else loss)),
    "diverges": _result(_diverge),
    "freezes": _freeze,
    "keeps_the_loss": _skipping(timed),
    "dodges": _skipping(_in_a_span),
    "peeks": _skipping(lambda: _in_a_span() and next(_PEEKS) % 10 > 0),
    "tires": _skipping(_is_late_in_long_span),
    "turns": _turn,
    "puts_off": _defer_work,
    "hurries": _work_ahead,
}
"""Modifications of the correct step, which `build` then returns."""
