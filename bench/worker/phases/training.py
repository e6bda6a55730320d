"""Loss curves: arms train from the same parameters on the same batches, beside a reference.

The reference is the whole batch on one device, in the block's dtypes, with the workload's own
optimizer. Right programs differ from it by rounding, which every step amplifies: after some dozens
of steps under Adam, two orders of summation part company. How far they do is the yardstick of all
other curves, and the reference shows it, once with its batch computed in parts whose gradients are
averaged, as devices do, and once in float64.
"""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import optax

from bench.contract import Batch, Problem, TrainStep
from bench.records.arms import EXACT, IN_PARTS, WHOLE_BATCH
from bench.worker.prove.failures import failure
from bench.worker.prove.gate import state_and_loss, widened

ENOUGH_S = 60.0
"""Most time of the curve in float64, which some devices compute slowly: it ends early then."""

Progress = Callable[[int], None]
"""Told the number of each step before it begins."""


class Curve(NamedTuple):
    """What came of training."""

    losses: list[float]
    """Of each step's batch before its update; all finite."""
    reason: str
    """Why there are fewer than were asked for; empty if there are not."""


def train(
    train_step: TrainStep,
    batch: Callable[[int], Batch],
    steps: int,
    progress: Progress,
    until: float = math.inf,
) -> list[float]:
    """Take steps on batch(0), batch(1) ..., each waited for.

    Args:
      train_step: built, and not stepped yet.
      batch: gives the i-th batch on the host.
      steps: at most.
      progress: told the number of each step before it begins.
      until: on the monotonic clock, after which no step begins. Only for what has no collectives:
        processes would not agree.

    Returns:
      (steps,) losses.
    """
    state, losses = train_step.state, []
    for number in range(steps):
        if time.monotonic() > until:
            break
        progress(number)
        state, loss = state_and_loss(train_step.step(state, train_step.place(batch(number))))
        losses.append(float(loss))
    return losses


def finite(losses: list[float], steps: int) -> Curve:
    """The curve up to the first loss that is no number."""
    for number, loss in enumerate(losses):
        if not math.isfinite(loss):
            return Curve(losses[:number], f"the loss of step {number + 1} is {loss}")
    if len(losses) < steps:
        return Curve(losses, f"ended after {ENOUGH_S:g} s")
    return Curve(losses, "")


def trained(
    build: Callable[[], TrainStep],
    batch: Callable[[int], Batch],
    steps: int,
    progress: Progress,
    most_s: float = math.inf,
) -> Curve:
    """The curve of what is built; whatever is raised is the reason why there is none."""
    try:
        losses = train(build(), batch, steps, progress, time.monotonic() + most_s)
    except BaseException as error:  # noqa: BLE001 - a user's file may raise anything
        traceback.print_exc()
        return Curve([], ": ".join(failure(error)))
    return finite(losses, steps)


def references(
    timed: Problem, exact: Problem, steps: int, progress: Callable[[str, int], None]
) -> dict[str, Curve]:
    """The reference, and what rounding does to it; by their names in bench.records.rows.

    Args:
      timed: the problem as it is timed.
      exact: the same in float64, with the same start.
      steps: of each curve.
      progress: told of which curve a step begins, and its number.
    """

    def curve(name: str, problem: Problem, parts: int, **limit: float) -> Curve:
        def batch(number: int) -> Batch:
            return widened(timed.batch(number)) if problem is exact else timed.batch(number)

        with jax.enable_x64(problem is exact):
            return trained(
                lambda: whole_batch(problem, parts), batch, steps, partial(progress, name), **limit
            )

    found = {WHOLE_BATCH: curve(WHOLE_BATCH, timed, 1)}
    if timed.batch_size > 1:
        found[IN_PARTS] = curve(IN_PARTS, timed, fewest_parts(timed.batch_size))
    found[EXACT] = curve(EXACT, exact, 1, most_s=ENOUGH_S)
    return found


def fewest_parts(batch_size: int) -> int:
    """The least number above 1 that divides a batch of several samples."""
    return next(parts for parts in range(2, batch_size + 1) if batch_size % parts == 0)


def whole_batch(problem: Problem, parts: int) -> TrainStep:
    """The step on one device, with the batch computed in so many parts."""
    params, loss_fn = problem.functional()
    divided = replace(problem, microbatches=parts)
    loss_and_gradients = divided.over_microbatches(jax.value_and_grad(loss_fn))

    def step(state: Any, batch: Batch) -> tuple[Any, jax.Array]:
        params, opt_state = state
        loss, grads = loss_and_gradients(params, batch)
        updates, opt_state = problem.optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), loss

    return TrainStep(
        state=(params, problem.optimizer.init(params)),
        place=lambda batch: batch,
        step=jax.jit(step, donate_argnums=0),
        params=lambda state: state[0],
    )
