"""What is wrong with a wrong step: the gate makes known mistakes on purpose, and compares them.

Every hypothesis is a step computed in float64 on one device, so a match is a match to many
digits and not a guess.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from bench.contract import Batch, Problem

MATCH = 1e-6
"""Relative distance below which a hypothesis is taken to be what happened."""


@dataclass(frozen=True)
class Shards:
    """Losses and gradients of every shard at the starting parameters."""

    losses: np.ndarray
    """(shards,)"""
    grads: np.ndarray
    """(shards, parameters)"""
    sequential: np.ndarray
    """(parameters,): the update if every shard's gradients were applied at once, in turn."""


def explain(
    problem: Problem,
    batch: Batch,
    shards: int,
    learning_rate: float,
    update: np.ndarray,
    loss: float,
) -> list[str]:
    """Name each mistake that reproduces the observed first step under SGD, a clause each.

    Args:
      problem: with float64 parameters.
      batch: the first global batch.
      shards: parts that the mesh splits it into.
      learning_rate: of the SGD that the step ran with.
      update: (parameters,) of the step.
      loss: of the step.
    """
    parts = shard_steps(problem, batch, shards, learning_rate)
    return [
        *explain_update(parts, learning_rate, update, problem.microbatches),
        *explain_loss(parts, loss, problem.microbatches),
    ]


def shard_steps(problem: Problem, batch: Batch, shards: int, learning_rate: float) -> Shards:
    """Compute every shard alone on one device, and all in turn with an update after each."""
    params, loss_fn = problem.functional()
    loss_and_grads = jax.jit(jax.value_and_grad(loss_fn))
    moving = params
    losses, grads = [], []
    for index in range(shards):
        shard = jax.tree.map(
            lambda leaf, i=index: leaf.reshape(shards, -1, *leaf.shape[1:])[i], batch
        )
        loss, shard_grads = loss_and_grads(params, shard)
        losses.append(float(loss))
        grads.append(ravel(shard_grads))
        moving_grads = loss_and_grads(moving, shard)[1]
        moving = jax.tree.map(lambda p, g: p - learning_rate * g, moving, moving_grads)
    return Shards(np.array(losses), np.array(grads), ravel(moving) - ravel(params))


def ravel(tree: Any) -> np.ndarray:
    """All leaves in one vector, in the order of the tree."""
    return np.concatenate([np.asarray(leaf).ravel() for leaf in jax.tree.leaves(tree)])


def explain_update(
    parts: Shards, learning_rate: float, update: np.ndarray, microbatches: int
) -> Iterator[str]:
    """Name the mistake that makes this update."""
    shards = len(parts.losses)
    mean = -learning_rate * parts.grads.mean(axis=0)
    if update.shape != mean.shape or close(update, mean):
        return
    if not update.any():
        yield "the parameters do not change"
        return
    factor = float(update @ mean / (mean @ mean))
    if close(update, factor * mean):
        yield (
            f"the gradients are {factor:.6g} times what they should be"
            f"{_reason_of(factor, shards, microbatches)}"
        )
        return
    if shards > 1 and close(update, parts.sequential):
        yield f"there are {shards} updates a step: one for every shard, not one for their mean"
        return
    for index, grads in enumerate(parts.grads):
        for times in (1, shards, 1 / shards):
            if close(update, -learning_rate * times * grads):
                yield (
                    f"the gradients are those of shard {index} alone: they are not reduced over "
                    "the shards"
                )
                return
    yield "the gradients are wrong, in no way that is known here"


def _reason_of(factor: float, shards: int, microbatches: int) -> str:
    """Give the likely reasons for a constant factor."""
    reasons = {
        "summed over the shards and not divided": (shards, shards),
        "reduced twice over the shards": (shards, shards**2),
        "divided twice by the number of shards": (shards, 1 / shards),
        "summed over the microbatches and not divided": (microbatches, microbatches),
        "divided twice by the number of microbatches": (microbatches, 1 / microbatches),
    }
    likely = [
        reason
        for reason, (parts, value) in reasons.items()
        if parts > 1 and abs(factor / value - 1) < MATCH
    ]
    return f": they are {', or '.join(likely)}" if likely else ""


def explain_loss(parts: Shards, loss: float, microbatches: int) -> Iterator[str]:
    """Name the mistake that makes this loss."""
    mean = parts.losses.mean()
    if close(loss, mean):
        return
    if close(loss, parts.losses.sum()):
        yield "the loss is summed over the shards, not averaged"
        return
    if microbatches > 1 and close(loss, microbatches * mean):
        yield "the loss is summed over the microbatches, not averaged"
        return
    for index, shard_loss in enumerate(parts.losses):
        if close(loss, shard_loss):
            yield f"the loss is that of shard {index} alone"
            return
    factor = float(loss / mean)
    if f"{factor:.6g}" == "1":
        yield f"the loss differs by {abs(factor - 1):.1e} of what it should be"
    else:
        yield f"the loss is {factor:.6g} times what it should be"


def close(ours: Any, theirs: Any) -> bool:
    """Whether two vectors or scalars agree to within MATCH of their size."""
    distance = float(np.linalg.norm(np.atleast_1d(ours - theirs)))
    return distance <= MATCH * float(np.linalg.norm(np.atleast_1d(theirs)))
