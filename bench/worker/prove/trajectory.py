"""A few steps from the initial parameters, by an implementation or by the reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, is_dataclass, replace
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from bench.contract import Batch, Implementation, Params, Problem, TrainStep
from bench.contract.model_state import ModelState, is_float
from bench.worker import process_exchange
from bench.worker.prove.carried_state import (
    Flat,
    flat,
    leaves_by_path,
    model_state_of,
    not_finite,
    snapshot,
    words,
)
from bench.worker.prove.failures import WrongStepError, own_copy
from bench.worker.prove.replica_drift import Drift, find_drifts
from bench.worker.prove.state_reader import StateCopy, is_elsewhere

LOSS = "the loss"
STATE = "the model state's "
REST = "the state's "
"""Names of what drifts: the loss, and prefixes of paths in the model state and the rest."""


@dataclass(frozen=True)
class Trajectory:
    """Losses and parameters of a few steps; parameters in their own dtype, or at least float32."""

    losses: np.ndarray
    """(steps,) float64: every step's loss, before its update."""
    start: Flat
    first: Flat
    """Parameters after one step."""
    last: Flat
    """Parameters after all steps."""
    states: tuple[Flat, ...] = ({}, {}, {})
    """Model state before the first step, after it, and after the last."""
    drifts: tuple[tuple[str, Drift], ...] = ()
    """Names and drifts of arrays whose replicas differ: of each loss, and of the state after the
    first step and the last."""
    loss_dtype: str = ""
    """Dtype of the losses, float32 if they only have its digits; empty if they are no floats."""

    repeated: Trajectory | None = None
    """The same with the results of the first step when it was taken again; None if it was not."""
    between: tuple[Flat, ...] = ()
    """Parameters after each step between the first and the last; kept of implementations only."""

    @property
    def every(self) -> tuple[Flat, ...]:
        """Parameters before the first step of an implementation and after each."""
        return self.start, self.first, *self.between, self.last

    @property
    def loss_eps(self) -> float:
        """Rounding of the losses' own dtype."""
        return float(jnp.finfo(self.loss_dtype).eps) if self.loss_dtype else 0.0

    @property
    def finite(self) -> bool:
        """Whether all is finite, except infinities that the model state has from the start."""
        allowed: list[tuple[Flat, Flat]] = [(params, {}) for params in self.every]
        allowed += [(state, self.states[0]) for state in self.states]
        return bool(np.isfinite(self.losses).all()) and not any(
            not_finite(leaf, before.get(path, 0.0)).any()
            for leaves, before in allowed
            for path, leaf in leaves.items()
        )


def under_sgd(problem: Problem, rate: float) -> Problem:
    """Replace a problem's optimizer by SGD, in its outline for other frameworks too."""
    outline = {**problem.outline, "optimizer": {"name": "sgd", "learning_rate": rate}}
    return replace(problem, optimizer=optax.sgd(rate), outline=outline if problem.outline else {})


def build_step(implementation: Implementation, problem: Problem, mesh: Mesh) -> TrainStep:
    """Build an implementation's step; WrongStepError if `build` does not return a TrainStep."""
    train_step: Any = implementation.build(own_copy(problem), mesh)
    # isinstance would fail: an implementation of another revision has that revision's class.
    parts = ("state", "place", "step", "params")
    if not is_dataclass(train_step) or not all(hasattr(train_step, part) for part in parts):
        raise WrongStepError(f"build returns a {type(train_step).__name__}, not a TrainStep")
    if values := [part for part in parts[1:] if not callable(getattr(train_step, part))]:
        raise WrongStepError(f"{values[0]} of its TrainStep is a value, not a function")
    return cast("TrainStep", train_step)


def state_and_loss(returned: Any) -> tuple[Any, Any]:
    """Unpack the pair that a step returned; WrongStepError if it is none."""
    what = f"an object of type {type(returned).__name__}"
    if isinstance(returned, tuple | list):
        if len(returned) == 2:  # noqa: PLR2004 - a pair
            first, second = returned
            if getattr(first, "shape", None) != () or jax.tree_util.all_leaves([second]):
                return first, second
        what = "(loss, state)" if len(returned) == 2 else f"{len(returned)} values"  # noqa: PLR2004
    elif isinstance(returned, jax.Array):
        what = "one array"
    raise WrongStepError(f"the step returns {what}, not the pair (state, loss)")


def run_steps(
    problem: Problem,
    train_step: TrainStep,
    batches: list[Batch],
    mask: Flat | None = None,
    resolved: Flat | None = None,
    *,
    repeated: bool = False,
) -> tuple[Trajectory, Any]:
    """Step through the batches; return the trajectory and the last state.

    `mask` selects the elements that count in the size of a parameter's drift, and `resolved` those
    of the rest of the state, by the parameters' paths. If `repeated`, the first step is taken again
    in the end, from a copy of the first state; a step that changes its state in place cannot be.
    WrongStepError if a step breaks the contract, or a loss or parameter is not finite.
    """
    state = train_step.state
    repeated = repeated and not is_elsewhere(train_step)
    start = StateCopy(state, replicas=False) if repeated else None
    losses: list[float] = []
    snapshots = [read_params(train_step.params(state), np.float32)]
    states = [flat(model_state_of(problem, train_step, state))]
    drifts: list[tuple[str, Drift]] = []
    for number, batch in enumerate(batches):
        given = state
        state, loss = take_step(train_step, given, batch)
        if state is given and is_part(train_step.params(state), state):
            start = None
        del given
        drifts += find_drifts({LOSS: loss}).items()
        losses.append(float(loss))
        params = train_step.params(state)
        snapshots.append(read_params(params, np.float32))
        if number in (0, len(batches) - 1):
            model_state = model_state_of(problem, train_step, state)
            drifts += find_drifts(by_path(params) | by_path(model_state, STATE), mask).items()
            drifts += _drifts_of_rest(state, (params, model_state), resolved or {})
            states.append(flat(model_state))
    found, dtype = np.array(losses), str(loss.dtype) if is_float(loss) else ""
    if dtype == "float64" and np.array_equal(found, found.astype(np.float32)):
        dtype = "float32"
    at_params, at_states = ((each[0], each[1], each[-1]) for each in (snapshots, states))
    between = tuple(snapshots[2:-1])
    trajectory = Trajectory(found, *at_params, at_states, tuple(drifts), dtype, between=between)
    if not trajectory.finite:
        raise WrongStepError("the loss or a parameter is not finite (it is infinite or NaN)")
    if start is not None:
        last = StateCopy(state, replicas=False)
        del state, params, model_state  # a second state beside it might not fit
        state, loss = take_step(train_step, start.restored(), batches[0])
        first = read_params(train_step.params(state), np.float32)
        again = replace(trajectory, losses=np.array([float(loss), *losses[1:]]), first=first)
        trajectory, state = replace(trajectory, repeated=again), last.restored()
    return trajectory, state


def is_part(tree: Any, state: Any) -> bool:
    """Whether all leaves of a tree are leaves of a state."""
    return {*map(id, jax.tree.leaves(tree))} <= {*map(id, jax.tree.leaves(state))}


def _drifts_of_rest(state: Any, known: Any, resolved: Flat) -> Iterator[tuple[str, Drift]]:
    """Compare the replicas of what a state holds beside the parameters and the model state.

    Sizes are relative to each array's own size, over elements whose gradient is resolved.
    """
    others = {id(leaf) for leaf in jax.tree.leaves(known)}
    arrays = {
        f"{REST}{path}": words(leaf)
        for path, leaf in leaves_by_path(state).items()
        if isinstance(leaf, jax.Array) and id(leaf) not in others
    }
    masks = {
        name: mask
        for name, leaf in arrays.items()
        for path, mask in resolved.items()
        if name.endswith(path) and mask.shape == leaf.shape
    }
    for name, (where, size) in find_drifts(arrays, masks).items():
        values = process_exchange.to_host(arrays[name]).astype(np.float64)
        counted = values[masks[name]] if name in masks else values
        own = float(np.linalg.norm(counted)) / max(1, values.size) ** 0.5
        yield name, Drift(where, (size / own if own else np.inf) if size else 0.0)


def take_step(train_step: TrainStep, state: Any, batch: Batch) -> tuple[Any, jax.Array]:
    """Take a step on a host batch; WrongStepError if `place` or the step breaks the contract."""
    # A copy, so that a `place` that writes to its argument spares the next implementation's.
    placed = train_step.place(jax.tree.map(np.array, batch))
    if not is_elsewhere(train_step):
        check_placed(batch, placed)
    state, loss = state_and_loss(train_step.step(state, placed))
    check_waitable(state, loss)
    return state, loss


def check_placed(batch: Batch, placed: Any) -> None:
    """Raise WrongStepError if a placed batch has fewer elements than the batch."""
    given, found = (sum(map(np.size, jax.tree.leaves(tree))) for tree in (batch, placed))
    if found < given:
        raise WrongStepError(
            f"`place` makes {found} elements of a batch of {given}: it reduces the batch, which is "
            "part of the step's work, untimed"
        )


def check_waitable(state: Any, loss: Any) -> None:
    """Raise WrongStepError if something that a step returns cannot be waited for.

    The loss must be a jax.Array of one real number. A leaf of the state that is neither an array
    nor a number or text could hide work.
    """
    if not isinstance(loss, jax.Array):
        raise WrongStepError(
            f"the loss is a {type(loss).__name__}, not a jax.Array: return it without converting it"
        )
    if loss.shape:
        raise WrongStepError(f"the loss has shape {loss.shape}; it must be one scalar")
    if jnp.iscomplexobj(loss):
        raise WrongStepError(f"the loss is of dtype {loss.dtype}; it must be a real number")
    for path, leaf in leaves_by_path(state).items():
        if not isinstance(leaf, jax.Array | np.ndarray | np.generic | int | float | complex | str):
            raise WrongStepError(
                f"the state holds a {type(leaf).__name__} at {path or 'its root'}: it cannot be "
                "waited for (keep functions elsewhere, and register classes as pytrees of arrays)"
            )


def by_path(tree: Any, prefix: str = "") -> dict[str, jax.Array]:
    """Return parameters or model state by path, with a prefix before each; keys as their words.

    WrongStepError if one of them is not a jax.Array.
    """
    named = leaves_by_path(tree)
    for path, leaf in named.items():
        if not isinstance(leaf, jax.Array):
            raise WrongStepError(
                f"params returns a {type(leaf).__name__} at {path or 'its root'}, not a jax.Array: "
                "it must return the parameters as they lie on the devices"
            )
    return {f"{prefix}{path}": words(leaf) for path, leaf in named.items()}


def read_params(params: Params, dtype: Any = np.float64) -> Flat:
    """Copy parameters from the devices; WrongStepError if one of them is not a jax.Array."""
    by_path(params)
    return flat(params, dtype)


def vector(ours: Flat, start: Flat | None = None, mask: Flat | None = None) -> np.ndarray:
    """Concatenate parameters, or their change since `start`, into one vector; masked if asked."""
    changes = {p: np.subtract(ours[p], start[p] if start else 0, dtype=np.float64) for p in ours}
    return np.concatenate([x[... if mask is None else mask[p]].ravel() for p, x in changes.items()])


def whole_batch_steps(
    start: Params,
    model_state: ModelState,
    loss_and_gradients: Callable[[Params, ModelState, Batch], Any],
    optimizer: optax.GradientTransformation,
    batches: Sequence[Batch],
    opt_state: Any = None,
) -> Trajectory:
    """Take the reference's steps on whole batches, with a new optimizer state if none is given."""
    params, opt_state = start, optimizer.init(start) if opt_state is None else opt_state
    losses: list[float] = []
    snapshots, states = [snapshot(params)], [flat(model_state)]
    for number, batch in enumerate(batches):
        (loss, model_state), grads = loss_and_gradients(params, model_state, batch)
        params, opt_state = apply_update(optimizer, params, opt_state, grads)
        losses.append(float(loss))
        if number in (0, len(batches) - 1):
            snapshots.append(snapshot(params))
            states.append(flat(model_state))
    ends = states[0], states[1], states[-1]
    return Trajectory(np.array(losses), snapshots[0], snapshots[1], snapshots[-1], ends)


@partial(jax.jit, static_argnums=0)
def apply_update(
    optimizer: optax.GradientTransformation, params: Params, opt_state: Any, grads: Params
) -> tuple[Params, Any]:
    """Apply one update; return the new parameters and optimizer state."""
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state
