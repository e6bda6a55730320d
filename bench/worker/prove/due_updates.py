"""Updates that an optimizer owes after some steps: its counts, and whether parameters move.

Not every step counts, or moves parameters: optax.MultiSteps does so in every k-th, and a schedule
may be 0. The workload's own optimizer therefore runs on parameters of one element each.
"""

from contextlib import suppress
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bench.contract import Params
from bench.records.numbers import count
from bench.worker.prove.gate import STEPS
from bench.worker.prove.state_reader import HostState, counters
from bench.worker.prove.trajectory import apply_update

GRADIENTS = (0.0, 1e4)
"""Two gradients. A counter that they bring to different values depends on the gradients."""


class LastCheck(NamedTuple):
    """The state of an arm at its last check, or at the start of the rounds."""

    step: int
    """Steps of the arm by then."""
    digest: int
    """Checksum of the parameters."""
    scalars: Any
    """The optimizer's scalars; None if its state was not found."""
    start: tuple[int, HostState] | None
    """The arm's steps up to a state from which the reference can repeat steps, and that state."""


class DueUpdates:
    """The updates that an optimizer owes for parameters of these names and dimensions."""

    def __init__(self, optimizer: optax.GradientTransformation, params: Params) -> None:
        zeros = jax.tree.map(lambda leaf: np.zeros((1,) * np.ndim(leaf), leaf.dtype), params)
        self._init = partial(optimizer.init, zeros)

        def step(params: Params, state: Any, gradient: float) -> Any:
            grads = jax.tree.map(lambda leaf: jnp.full_like(leaf, gradient), params)
            made = apply_update(optimizer, params, state, grads)
            return jax.tree.map(lambda new, old: new.astype(old.dtype), made, (params, state))

        def has_moved(params: Params) -> jax.Array:
            return jnp.array([jnp.any(leaf != 0) for leaf in jax.tree.leaves(params)]).any()

        @jax.jit
        def advanced(state: Any, steps: int, gradient: float, until_moved: bool) -> Any:
            """Take steps from parameters of 0; return whether these have moved, and the state."""
            _, params, state = jax.lax.while_loop(
                lambda at: (at[0] < steps) & ~(until_moved & has_moved(at[1])),
                lambda at: (at[0] + 1, *step(at[1], at[2], gradient)),
                (0, zeros, state),
            )
            return has_moved(params), state

        self._program = advanced

    def _advanced(
        self, state: Any, steps: int, gradient: float = GRADIENTS[1], *, until_moved: bool = False
    ) -> tuple[jax.Array, Any]:
        """Run many small operations, for which the CPU is faster, if jax may use it."""
        device = None
        with suppress(RuntimeError):
            device = jax.local_devices(backend="cpu")[0]
        with jax.default_device(device):
            return self._program(state, steps, gradient, until_moved)

    def _moves(self, state: Any, steps: int) -> bool:
        return bool(self._advanced(state, steps, until_moved=True)[0])

    @cached_property
    def _start(self) -> Any:
        return jax.tree.map(jnp.asarray, self._init())

    def why_miscounted(self, left: LastCheck, now: LastCheck) -> str:
        """Describe a counter whose change since the last check is not the one due; else empty."""
        if left.scalars is None:
            return ""
        steps, began, counted = now.step - left.step, *map(counters, (left.scalars, now.scalars))
        if all(counted[name] - start == steps for name, start in began.items()):
            return ""  # the most frequent case, which needs no program
        if (small := self._small(left.scalars)) is None:
            return ""
        due = counters(self._advanced(small, steps, GRADIENTS[0])[1])
        wrong = [name for name, value in due.items() if counted[name] != value]
        other = counters(self._advanced(small, steps)[1]) if wrong else due
        for name in wrong:
            if due[name] == other[name]:
                return (
                    f"the optimizer's {name} goes from {began[name]} to {counted[name]} in "
                    f"{count(steps, 'step')}, and should be {due[name]}: updates were skipped, or "
                    "its state was reset"
                )
        return ""

    def moves(self, left: LastCheck, steps: int) -> bool:
        """Whether a gradient moves the parameters within some steps after the last check."""
        if left.scalars is not None:
            small = self._small(left.scalars)
            return small is not None and self._moves(small, steps)
        # Only the age of an unreadable state is known, up to the steps of the proof.
        ages = range(left.step, left.step + STEPS + 1)
        return all(self._moves(self._advanced(self._start, age)[1], steps) for age in ages)

    def _small(self, held: Any) -> Any:
        """Add moments of small parameters to an optimizer's scalars; None if they do not fit."""
        tree: Any = jax.tree.structure(held)
        if tree != jax.tree.structure(self._start):
            return None
        return jax.tree.map(
            lambda own, leaf: own if own.ndim else jnp.asarray(leaf, own.dtype), self._start, held
        )
