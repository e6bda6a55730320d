"""Proof that functions compute the same step: losses and whole states, against a reference."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bench.contract.model_state import is_float
from bench.records import numbers
from bench.records.row_parts import ProofCheck
from bench.worker.prove.carried_state import Flat, differing_paths, flat, leaves_by_path
from bench.worker.prove.exact_arithmetic import rounding
from bench.worker.prove.failures import WrongStepError
from bench.worker.prove.relative_errors import loss_error, rms
from bench.worker.prove.trajectory import check_waitable, state_and_loss
from bench.worker.read.programs import FirstCall
from bench.worker.time.clock import Arm

State = Any
Step = Callable[[State, Any], tuple[State, jax.Array]]
STEPS = 3
NAME = "functions"
"""The proof's name, in addition to those of bench.worker.prove.gate."""

NUMERIC = (jax.Array, np.ndarray, np.generic, int, float, complex)
"""Leaves that a step changes; all others, such as an Equinox module's functions, stay the same."""

MANY = 100.0
"""Relative differences above this are written like `1e+03 times`, not in percent."""

AMPLIFIED = 10.0
"""A leaf's error may be this many times the effect of rounding the starting state once, because
another order of summation rounds in every operation."""


def copied(tree: Any) -> Any:
    """Copy the arrays of a pytree, keeping their shardings, so that a step may donate its own."""

    def copy(leaf: Any) -> Any:
        if isinstance(leaf, jax.Array):
            return jnp.copy(leaf)
        return leaf.copy() if isinstance(leaf, np.ndarray) else leaf

    return jax.tree.map(copy, tree)


@dataclass(frozen=True)
class Trace:
    """A few steps from the given state, all on the given batch."""

    losses: np.ndarray
    """(STEPS,) float64."""
    start: Flat
    last: Flat


def trace(step: Step, state: State, batch: Any) -> tuple[Trace, State]:
    """Take the steps without modifying the arguments; also return the final state.

    Raises:
      WrongStepError: a step does not return a pair, its loss is not a real scalar jax.Array, its
        state has other leaves, something cannot be waited for, or a loss or state is not finite.
    """
    start, state, losses = _flat(state), copied(state), []
    shapes = _shapes(state)
    fixed = {id(leaf): leaf for leaf in jax.tree.leaves(state) if not isinstance(leaf, NUMERIC)}
    for _ in range(STEPS):
        state, loss = state_and_loss(step(state, copied(batch)))
        check_waitable(jax.tree.map(lambda x: None if id(x) in fixed else x, state), loss)
        losses.append(float(loss))
        if other := {path for path, _ in shapes.items() ^ _shapes(state).items()}:
            raise WrongStepError(
                "the step returns a state of another structure; new, missing or reshaped leaves: "
                f"{_some([*other])}"
            )
    last = _flat(state)
    # An infinity may stay as it was, like those of a mask.
    finite = (np.isfinite(one) | (one == start[path]) for path, one in _floats(last).items())
    if not all(one.all() for one in (np.isfinite(losses), *finite)):
        raise WrongStepError(f"after {STEPS} steps, the loss or the state is not finite")
    return Trace(np.array(losses), start, last), state


class Agreement:
    """The steps of a reference, against which other functions are proved.

    Args:
      reference: the step that is taken to be correct.
      state: the starting state of every function.
      batch: the batch of every step.
      precision: `fp64`, `fp32`, `fp16` or `bf16`, in which the steps compute.
      loss_tolerance: largest relative difference of a loss; the square root of the precision's
        rounding by default.
      update_tolerance: largest difference of a leaf's update, relative to its size (both as root
        mean squares); four times that of losses by default.
      least_loss: differences of smaller losses are taken relative to this one.
    """

    def __init__(
        self,
        reference: Step,
        state: State,
        batch: Any,
        precision: str,
        loss_tolerance: float | None = None,
        update_tolerance: float | None = None,
        least_loss: float = 1e-30,
    ) -> None:
        self.reference, self.state, self.batch, self.precision = reference, state, batch, precision
        self.least_loss = least_loss
        eps = rounding(precision, jax.default_backend())
        self.loss_tolerance = eps**0.5 if loss_tolerance is None else loss_tolerance
        self.update_tolerance = 4 * eps**0.5 if update_tolerance is None else update_tolerance
        self._kept = {path: _kept(leaf) for path, leaf in leaves_by_path(state).items()}
        self.first_call = FirstCall(reference)
        """The reference, with the programs that it compiled."""
        self.truth = trace(self.first_call, state, batch)[0]
        rounded = trace(reference, _rounded(state, eps), batch)[0]
        self.allowed = {
            path: max(self.update_tolerance, AMPLIFIED * error)
            for path, error in self._errors(rounded).items()
        }
        """By leaf, the largest allowed error of its update."""

    def _errors(self, ours: Trace) -> dict[str, float]:
        """Return the error of each leaf's update, relative to the update, beyond its rounding."""
        found, truth = {}, self.truth
        for path in _floats(truth.last):
            start, right = _finite(truth.start[path]), _finite(truth.last[path])
            alike = np.isfinite(ours.last[path]) == np.isfinite(truth.last[path])
            away = np.where(alike, _finite(ours.last[path]) - right, np.inf)
            # Where the starting state was rounded, the start and the end of a leaf move alike.
            off = min(rms(away), rms(away + start - _finite(ours.start[path])))
            relative, least = self._kept[path]
            change, kept = rms(right - start), relative * rms(right)
            # A change within rounding is none: Python numbers become arrays under jax.jit.
            scale = change if change > kept else rms(right) or 1.0
            found[path] = max(0.0, off - max(kept, least)) / scale
        return found

    def _wrong_loss(self, which: str, off: float) -> str:
        return (
            f"the loss of {which} step differs from the reference's by {_share(off)} "
            f"(allowed: {_share(self.loss_tolerance)})"
        )

    def check_reference(self) -> None:
        """Check that the reference does something, and does the same when it is repeated.

        Raises:
          WrongStepError: it does nothing, or something else when repeated. What does not repeat
            may make up less than half of the elements that it changes, because sums in another
            order decide some leaves alone, as where Adam divides by a gradient of nearly zero.
        """
        start, last = self.truth.start, self.truth.last
        if not self.truth.losses.any() and all(_equal(start, last, path) for path in last):
            raise WrongStepError("it leaves the state as it is, and its loss is 0")
        again = trace(self.reference, self.state, self.batch)[0]
        try:
            self.check(again)
        except WrongStepError as error:
            raise WrongStepError(f"it changes from one call to the next: {error}") from None
        # They loosen the tolerance, so that `check` cannot show them. Smaller ones are usual, as of
        # steps in bfloat16 whose sums have another order in each call.
        changed = {path for path in _floats(last) if not _equal(start, last, path)}
        errors = self._errors(again).items()
        unsure = [path for path, off in errors if off > self.update_tolerance]
        if 2 * sum(last[path].size for path in unsure) > sum(last[path].size for path in changed):
            raise WrongStepError(f"it changes from one call to the next: {_some(unsure)}")

    def why_changed(self, arm: Arm) -> str:
        """Say how a function no longer agrees after its rounds; empty if it still does.

        It is compared from the starting state, and from the state that it has reached.
        """
        try:
            self.check(trace(arm.step, self.state, self.batch)[0])
            late = Agreement(
                self.reference, arm.state, self.batch, self.precision,
                self.loss_tolerance, self.update_tolerance,
                max(abs(float(self.truth.losses[0])), self.least_loss),
            )  # fmt: skip
            late.check(trace(arm.step, arm.state, self.batch)[0])
        except WrongStepError as error:
            return f"after the rounds: {error}"
        return ""

    def check(self, ours: Trace) -> ProofCheck:
        """Compare the steps of another function with the reference's.

        Raises:
          WrongStepError: a loss or a leaf differs by more than its tolerance. Integers and keys
            must be equal.
        """
        right = self.truth.last
        if differing := differing_paths(ours.last, right):
            raise WrongStepError(
                f"the state differs from the reference's in its leaves or their shapes: "
                f"{_some(differing)}"
            )
        first, off = (
            loss_error(ours.losses[:steps], self.truth.losses[:steps], self.least_loss)
            for steps in (1, STEPS)
        )
        if first > self.loss_tolerance:
            raise WrongStepError(self._wrong_loss("the first", first))
        errors = self._errors(ours)
        exact = [path for path in right.keys() - errors if not _equal(ours.last, right, path)]
        if exact:
            raise WrongStepError(
                f"integers or keys of the state differ from the reference's: {_some(exact)}"
            )
        far = [path for path, error in errors.items() if error > self.allowed[path]]
        if far:
            worst, *others = sorted(
                far, key=lambda path: -errors[path] / (self.allowed[path] or 1e-9)
            )
            raise WrongStepError(
                f"the update of state{worst} differs from the reference's by "
                f"{_share(errors[worst], 'its size')} (allowed: {_share(self.allowed[worst])})"
                + (f"; also wrong: {_some(others)}" if others else "")
            )
        if off > self.loss_tolerance:
            raise WrongStepError(self._wrong_loss("a later", off))
        shares = (error and error / self.allowed[path] for path, error in errors.items())
        return ProofCheck(
            name=NAME,
            loss_error=off,
            loss_tolerance=self.loss_tolerance,
            update_error=max(shares, default=0.0) * self.update_tolerance,
            update_tolerance=self.update_tolerance,
        )


def precision_of(state: State) -> str:
    """Return the least precise dtype of a state's floats, such as `bf16`; `fp32` without any."""
    names = {"float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
    kinds = [str(leaf.dtype) for leaf in jax.tree.leaves(state) if hasattr(leaf, "dtype")]
    found = [name for kind, name in names.items() if kind in kinds]
    return found[-1] if found else "fp32"


def _floats(leaves: Flat) -> Flat:
    return {path: leaf for path, leaf in leaves.items() if leaf.dtype.kind == "f"}


def _flat(tree: Any) -> Flat:
    """Return the leaves of a state, with the parts of complex numbers along a new axis."""
    return {
        path: np.stack([leaf.real, leaf.imag]) if leaf.dtype.kind == "c" else leaf
        for path, leaf in flat(tree).items()
    }


def _finite(values: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(values), values, 0.0)


def _kept(leaf: Any) -> tuple[float, float]:
    """Return which differences of a leaf are none: relative to its size, and absolute.

    These are two roundings of its own dtype, which may be wider than that of the steps (float32 for
    Python's numbers), and float32's smallest normal number: XLA flushes smaller ones to 0, and
    NumPy does not.
    """
    dtype = getattr(leaf, "dtype", np.float32)
    if not jnp.issubdtype(dtype, jnp.inexact):
        return 0.0, 0.0
    own, single = jnp.finfo(dtype), jnp.finfo(np.float32)
    return 2 * float(own.eps), float(min(own.tiny, single.tiny))


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path): np.shape(leaf) for path, leaf in leaves}


def _equal(ours: Flat, theirs: Flat, path: str) -> bool:
    return bool(np.array_equal(ours[path], theirs[path]))


def _share(share: float, of: str = "") -> str:
    if share > MANY:
        return f"{share:.0e} times{of and ' ' + of}"
    return f"{numbers.significant(100 * share, 2)} %{of and ' of ' + of}"


def _some(paths: list[str]) -> str:
    more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""  # noqa: PLR2004 - a few
    return f"{', '.join(f'state{path}' for path in sorted(paths)[:3])}{more}"


def _rounded(state: State, eps: float) -> State:
    """Move every float of a state by one rounding, up or down."""
    chance = np.random.default_rng(0)

    def move(leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array | np.ndarray) or not is_float(leaf):
            return leaf
        factors = 1 + eps * chance.choice([-1.0, 1.0], leaf.shape)
        wide = np.float32 if leaf.dtype.itemsize < 4 else leaf.dtype  # noqa: PLR2004 - bytes
        return (leaf.astype(wide) * factors.astype(wide)).astype(leaf.dtype)

    return jax.tree.map(move, state)
