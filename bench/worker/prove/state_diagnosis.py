"""Diagnosis of wrong steps, with and without model state: known mistakes are reproduced.

On one device, jax.vmap with a named axis computes what jax.shard_map would on several.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np

from bench.contract import Batch, Problem, StateLossFn
from bench.contract.model_state import LOCAL, SYNCHRONIZED, ModelState, is_float
from bench.worker.prove.carried_state import (
    SHARDS,
    Flat,
    flat,
    in_microbatches,
    in_shards,
    parts_of,
    state_errors,
    whole_batch_loss,
)
from bench.worker.prove.diagnosis import MATCH, close, explain, explain_loss, explain_update, ravel
from bench.worker.prove.trajectory import Trajectory, vector, whole_batch_steps


def known_mistakes(
    problem: Problem,
    batches: list[Batch],
    shards: int,
    learning_rate: float,
    ours: Trajectory,
    loss_and_gradients: Callable[..., Any],
    match: float,
) -> list[str]:
    """Name each known mistake that reproduces a trajectory under SGD; see `diagnosis.explain`."""
    update = vector(ours.first, ours.start)
    step = problem, batches[0], shards, learning_rate, update, float(ours.losses[0]), match
    if not ours.states[0]:
        return explain(*step)
    first = explain_with_state(*step)
    return first or explain_later(problem, batches, shards, ours, loss_and_gradients, match)


def explain_with_state(
    problem: Problem,
    batch: Batch,
    shards: int,
    learning_rate: float,
    update: np.ndarray,
    loss: float,
    match: float = MATCH,
) -> list[str]:
    """Name each mistake that reproduces the observed first step; see `diagnosis.explain`."""
    params, model_state, _ = problem.functional_with_state()
    near = partial(close, match=match)

    def step(loss_fn: StateLossFn) -> tuple[float, np.ndarray]:
        gradients = jax.jit(jax.value_and_grad(loss_fn, has_aux=True))
        (loss, _), grads = gradients(params, model_state, batch)
        return float(loss), -learning_rate * ravel(grads)

    right_loss, right = step(whole_batch_loss(problem, shards))
    for why, loss_fn in _other_steps(problem, shards) if shards > 1 else ():
        mistaken = step(loss_fn)[1]
        if near(update, mistaken) and not near(right, mistaken):
            return [why]
    losses, updates = np.array([right_loss]), right[None]
    each = jax.value_and_grad(in_microbatches(problem, SHARDS), has_aux=True)
    (of_shards, _), grads = jax.jit(jax.vmap(each, (None, None, 0), axis_name=SHARDS))(
        params, model_state, parts_of(batch, shards)
    )
    of_each = np.concatenate([x.reshape(shards, -1) for x in jax.tree.leaves(grads)], axis=1)
    if near(-learning_rate * of_each.mean(axis=0), right):  # no draws depend on the position
        losses, updates = np.asarray(of_shards), -learning_rate * of_each
    unknown = np.full_like(right, np.nan)
    wrong_update = explain_update(updates, unknown, update, problem.microbatches, match)
    return [why for why in (wrong_update, explain_loss(losses, loss, 1, match)) if why]


def _other_steps(problem: Problem, shards: int) -> Iterator[tuple[str, StateLossFn]]:
    """Yield mistakes that change a first step, and the losses that they compute."""
    if problem.statistics == LOCAL:
        yield (
            "the statistics are those of the global batch, and the workload declares local ones",
            whole_batch_loss(replace(problem, statistics=SYNCHRONIZED), shards),
        )
        return
    yield (
        "every shard draws the same random numbers: the masks of dropout repeat over the shards",
        in_shards(problem, shards),
    )
    yield (
        "every shard is normalized by its own statistics: they are not synchronized",
        in_shards(replace(problem, statistics=LOCAL), shards),
    )


def explain_averages(
    problem: Problem, batch: Batch, shards: int, ours: Flat, match: float = MATCH
) -> str:
    """Name the mistake that leaves this model state after the first step; empty if none does."""
    params, model_state, _ = problem.functional_with_state()
    start = flat(model_state)

    def makes(theirs: ModelState) -> bool:
        errors = state_errors(ours, flat(theirs), start)
        return all(error <= match for error in errors.values())

    local = in_shards(replace(problem, statistics=LOCAL), shards)
    if problem.statistics != LOCAL and makes(jax.jit(local)(params, model_state, batch)[1]):
        return (
            "the running averages are the means of the shards' own statistics, not the statistics "
            "of the global batch"
        )
    of_part = jax.jit(in_microbatches(problem))
    for index in range(shards):
        part = jax.tree.map(lambda x, i=index: x[i], parts_of(batch, shards))
        if makes(of_part(params, model_state, part)[1]):
            return f"the running averages are those of shard {index} alone"
    return ""


def explain_later(
    problem: Problem,
    batches: list[Batch],
    shards: int,
    ours: Trajectory,
    loss_and_gradients: Callable[..., Any],
    match: float = MATCH,
) -> list[str]:
    """Name mistakes that show after a first step whose loss and update are right."""
    if why := explain_averages(problem, batches[0], shards, ours.states[1], match):
        return [why]
    start = problem.draw_state()
    before, after, _ = ours.states
    draws = [path for path, leaf in before.items() if leaf.dtype.kind != "f"]
    if all(np.array_equal(before[path], after[path]) for path in draws):
        return []  # the comparison of the model state says so

    def again(params: Any, now: ModelState, batch: Batch) -> Any:
        """Draw in every step the random numbers of the first."""
        same = jax.tree.map(lambda own, first: own if is_float(own) else first, now, start)
        return loss_and_gradients(params, same, batch)

    repeated = whole_batch_steps(problem.draw(), start, again, problem.optimizer, batches)
    repeats = float(np.abs(ours.losses / repeated.losses - 1).max()) <= match
    return ["every step draws the same random numbers"] if repeats else []
