"""Diagnosis of wrong steps under SGD: known mistakes are reproduced and compared with the steps.

Every hypothesis is a step computed in float64 on one device, so a match agrees to many digits and
is not a guess. There, jax.vmap with a named axis computes what jax.shard_map would on several.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bench.contract import Batch, Params, Problem, StateLossFn
from bench.contract.model_state import LOCAL, SYNCHRONIZED, ModelState
from bench.contract.pipelines import into_microbatches
from bench.worker.prove.carried_state import (
    SHARDS,
    flat,
    in_microbatches,
    in_shards,
    part_of,
    strided_part,
    whole_batch_loss,
)
from bench.worker.prove.failures import APPROXIMATE
from bench.worker.prove.relative_errors import close, multiple_of, some, state_errors, update_errors
from bench.worker.prove.trajectory import Trajectory, vector

if TYPE_CHECKING:
    from bench.worker.prove.gate import Gate

MATCH = 1e-6
"""Relative distance below which a hypothesis is accepted."""
UNKNOWN = "the gradients are wrong, and no known mistake explains them"
APART = 0.3
"""Largest relative distance at which a first update may be meant to be approximate. Without the
part of the gradients whose squares are a tenth of all, a loss falls by about a tenth less, which
is the MARGIN of the proof of approximate steps."""
LEAST_WEIGHT = 2e-3
"""Smallest weight of a part of the batch that counts, relative to the right weight."""
MOST_ELEMENTS = 1 << 26
"""Most elements in the gradients of all microbatches, for these to be tried one by one."""


class AtStep(NamedTuple):
    """What the reference computes in a step from our own parameters."""

    params: Params
    model_state: ModelState
    loss: float
    grads: Params


@dataclass(frozen=True)
class Observed:
    """Steps that differ from the reference's."""

    gate: Gate
    problem: Problem
    """The problem, with float64 parameters."""
    batches: Sequence[Batch]
    rate: float
    """The learning rate under SGD."""
    ours: Trajectory
    truth: Trajectory
    match: float
    """Relative distance below which a mistake reproduces the steps. Above MATCH, only known
    mistakes are named."""
    loss_match: float
    """The same for losses, whose rounding is much smaller than that of updates."""

    @cached_property
    def start(self) -> tuple[Params, ModelState]:
        """The initial parameters and model state."""
        return self.problem.draw(), self.problem.draw_state()

    @cached_property
    def at_steps(self) -> list[AtStep]:
        """What the reference computes in each step from our own parameters."""
        state, found = self.start[1], []
        for leaves, batch in zip(self.ours.every[:-1], self.batches, strict=True):
            params = jax.tree_util.tree_map_with_path(
                lambda path, _, own=leaves: own[jax.tree_util.keystr(path)].astype(np.float64),
                self.start[0],
            )
            (loss, after), grads = self.gate.loss_and_gradients(params, state, batch)
            found.append(AtStep(params, state, float(loss), grads))
            state = after
        return found

    @cached_property
    def updates(self) -> np.ndarray:
        """(steps, parameters) our updates."""
        return np.stack([vector(after, before) for before, after in pairwise(self.ours.every)])

    @cached_property
    def right(self) -> np.ndarray:
        """The first update as it should be."""
        return vector(self.truth.first, self.truth.start)

    @property
    def advice(self) -> str:
        """Advice on a first step that the proof of approximate steps might accept; else empty."""
        near = close(self.ours.losses[0], self.truth.losses[0], self.gate.loss_tolerance)
        narrow = f"; here, the state's {self.ours.narrow}" if self.ours.narrow else ""
        is_near = near and close(self.updates[0], self.right, APART)
        return f" ({APPROXIMATE}{narrow})" if is_near else ""

    def is_near(self, ours: Any, theirs: Any) -> bool:
        """Whether two vectors or scalars agree."""
        return close(ours, theirs, self.match)

    def is_loss(self, ours: Any, theirs: Any, right: Any) -> bool:
        """Whether these are our losses, and clearly not the right ones."""
        nearer = 4 * np.linalg.norm(ours - theirs) < np.linalg.norm(ours - right)
        fits, is_right = (close(ours, each, self.loss_match) for each in (theirs, right))
        return bool(nearer) and fits and not is_right


def known_mistakes(seen: Observed) -> list[str]:
    """Name each known mistake that reproduces the steps, in one clause each."""
    if not seen.problem.state_names:
        return _in_first_step(seen, *_parts_in_turn(seen, part_of, seen.gate.shards))
    others = _other_steps(seen.problem, seen.gate.shards) if seen.gate.shards > 1 else {}
    for why, loss_fn in others.items():
        grads, _ = jax.jit(jax.grad(loss_fn, has_aux=True))(*seen.start, seen.batches[0])
        mistaken = -seen.rate * vector(flat(grads))
        if seen.is_near(seen.updates[0], mistaken) and not seen.is_near(seen.right, mistaken):
            return [why]
    return _in_first_step(seen, *_shards_at_once(seen)) or _wrong_averages(seen)


def _in_first_step(
    seen: Observed, losses: np.ndarray, updates: np.ndarray, sequential: Any = np.nan
) -> list[str]:
    """Name mistakes of the first step, given the shards' results from `_parts_in_turn`."""
    mean, why = updates.mean(axis=0), ""
    if not seen.is_near(seen.updates[0], mean):
        unknown = f"{UNKNOWN}{seen.advice}" if seen.match <= MATCH else ""
        why = next(_mistaken_updates(seen, updates, sequential), unknown)
    return [*filter(None, (why, _explain_loss(seen, losses)))]


def _mistaken_updates(seen: Observed, updates: np.ndarray, sequential: Any) -> Iterator[str]:
    """Yield the mistakes that produce the first update, the most likely ones first."""
    shards, update, mean = len(updates), seen.updates[0], updates.mean(axis=0)
    if not update.any():
        yield "the parameters do not change"
    factor = multiple_of(update, mean)
    if seen.is_near(update, factor * mean):
        reason = _reason_of(seen, factor, shards)
        yield f"the gradients are {factor:.6g} times what they should be{reason}"
    if shards > 1 and seen.is_near(update, sequential):
        yield f"there are {shards} updates per step: one for every shard, not one for their mean"
    yield from _weights(seen, updates, "shards")
    if seen.match > MATCH:
        return
    count = seen.problem.microbatches
    if 1 < count <= MOST_ELEMENTS // update.size and not seen.problem.state_names:
        _, own, sequential = _parts_in_turn(seen, strided_part, count)
        if seen.is_near(update, sequential):
            yield f"there are {count} updates per step: one for each of the microbatches"
        yield from _weights(seen, own, "microbatches")
    yield from _rounded(seen)
    yield from _reduced_shards(seen)


def _rounded(seen: Observed) -> Iterator[str]:
    """Yield the dtype to which right gradients are rounded, where the loss is right too."""
    if not seen.is_near(seen.ours.losses[0], seen.truth.losses[0]):
        return
    gradients, right = (each / -seen.rate for each in (seen.updates[0], seen.right))
    for name in ("bfloat16", "float16"):
        eps, rounded = float(jnp.finfo(name).eps), np.asarray(jnp.asarray(gradients, name), float)
        if close(gradients, rounded, 0.01 * eps) and close(gradients, right, eps):
            yield f"the gradients are rounded to {name} ({APPROXIMATE})"


def _weights(seen: Observed, updates: np.ndarray, parts: str) -> Iterator[str]:
    """Yield which parts of the batch the first update weights wrongly; nothing if it is no sum.

    `updates` (parts, parameters) are those of each part alone; `parts` says what these are.
    """
    update = seen.updates[0]
    weights, _, rank, _ = np.linalg.lstsq(updates @ updates.T, updates @ update, rcond=None)
    unique = rank == len(updates) < np.count_nonzero(updates.any(axis=0))
    least = max(LEAST_WEIGHT / len(updates), 10 * seen.match)
    if not unique or np.ptp(weights) <= least or not seen.is_near(weights @ updates, update):
        return  # or a multiple of their mean
    used = np.flatnonzero(abs(weights) > least)
    if len(used) < len(updates) and np.ptp(weights[used]) <= least:
        unused, total = np.setdiff1d(range(len(updates)), used), weights[used].sum()
        times = "" if abs(total - 1) <= least else f", times {total:.3g}"
        which = f"{parts} {some([*map(str, used)])} of {len(updates)} alone{times}"
        if len(used) == 1:
            which = f"{parts.removesuffix('es').removesuffix('s')} {used[0]} alone{times}"
            which += ", as if they were not reduced over the shards" if parts == "shards" else ""
        elif len(unused) < len(used):
            which = f"all {len(updates)} {parts} except {some([*map(str, unused)])}{times}"
        yield f"the gradients are those of {which}"
    listed = ", ".join(f"{weight:.3g}" for weight in np.where(abs(weights) > least, weights, 0))
    yield f"the gradients of the {parts} are summed with the weights {listed}"


def _reduced_shards(seen: Observed) -> Iterator[str]:
    """Yield the reduction of gradients over a mesh axis that shards them.

    How the step shards a parameter is not known, so shards along each of its dimensions are tried.
    """
    start, ours, truth = seen.truth.start, seen.ours.first, seen.truth.first
    errors = update_errors(ours, truth, start, None)
    wrong = [path for path, error in errors.items() if not error <= seen.match]

    def is_reduced(path: str, shards: int, factor: int) -> bool:
        update, right = ours[path] - start[path], truth[path] - start[path]
        for axis in [at for at, size in enumerate(right.shape) if size % shards == 0]:
            mean = factor * np.mean(np.split(right, shards, axis), axis=0)
            if seen.is_near(update, np.concatenate(shards * [mean], axis)):
                return True
        return False

    mesh = seen.gate.mesh.shape
    sizes = sorted({size for size in mesh.values() if size > 1})
    for shards, what in product(sizes, ("averaged", "summed")):
        factor = shards if what == "summed" else 1
        if wrong and all(is_reduced(path, shards, factor) for path in wrong):
            axes = " or ".join(f"`{name}`" for name, size in mesh.items() if size == shards)
            where = "where each device has other shards of them"
            yield f"the gradients are {what} over {axes}, {where}"


def _reason_of(seen: Observed, factor: float, shards: int) -> str:
    """Return the likely reasons for a constant factor."""
    microbatches, devices = seen.problem.microbatches, seen.gate.mesh.size
    others, both = devices // shards, min(shards, microbatches)
    rows = seen.problem.batch_size if seen.problem.batch_size not in (shards, microbatches) else 1
    tokens = seen.problem.sequence.length if seen.problem.sequence else 1
    reasons = {
        "summed over the shards and not divided": (shards, shards),
        "summed twice over the shards and not divided": (shards, shards**2),
        "summed over all devices of the mesh and not divided": (min(shards, others), devices),
        "divided twice by the number of shards": (shards, 1 / shards),
        "summed over the microbatches and not divided": (microbatches, microbatches),
        "summed over shards and microbatches and not divided": (both, shards * microbatches),
        "divided twice by the number of microbatches": (microbatches, 1 / microbatches),
        "summed over the rows and not divided": (rows, rows),
        "summed over the tokens of a sequence and not divided": (tokens, tokens),
        "summed over all tokens and not divided": (tokens, tokens * seen.problem.batch_size),
        "divided by the number of all devices, not of the shards": (devices, shards / devices),
    }
    likely = [
        reason
        for reason, (parts, value) in reasons.items()
        if parts > 1 and abs(factor / value - 1) < seen.match
    ]
    return f", as if they were {', or '.join(likely)}" if likely else ""


def _explain_loss(seen: Observed, losses: np.ndarray) -> str:
    """Name the mistake that produces the first loss, given the shards'; empty if it is right."""
    loss, mean = float(seen.ours.losses[0]), losses.mean()
    if close(loss, mean, seen.loss_match):
        return ""
    known = {"summed over the shards, not averaged": losses.sum()}
    known |= {f"that of shard {index} alone": each for index, each in enumerate(losses)}
    if (count := seen.problem.microbatches) > 1 and not seen.problem.state_names:
        known["summed over the microbatches, not averaged"] = count * mean
        params, loss_fn = seen.problem.functional()
        for index in range(count):
            part = strided_part(seen.batches[0], count, index)
            known[f"that of microbatch {index} alone"] = jax.jit(loss_fn)(params, part)
    if how := next((how for how, value in known.items() if seen.is_loss(loss, value, mean)), ""):
        return f"the loss is {how}"
    return f"the loss is {loss / mean:.8g} times what it should be" if seen.match <= MATCH else ""


def _parts_in_turn(
    seen: Observed, part: Callable[[Batch, int, int], Batch], parts: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compute parts of the first batch alone, and all in sequence with an update after each.

    Return (parts,) losses and (parts, parameters) updates from the initial parameters, and the
    (parameters,) update of applying each part's gradients before computing those of the next.
    """
    params, loss_fn = seen.problem.functional()
    loss_and_grads = jax.jit(jax.value_and_grad(loss_fn))
    moving, losses, updates = params, [], []
    for index in range(parts):
        own = part(seen.batches[0], parts, index)
        loss, grads = loss_and_grads(params, own)
        losses.append(float(loss))
        updates.append(-seen.rate * vector(flat(grads)))
        moving_grads = loss_and_grads(moving, own)[1]
        moving = jax.tree.map(lambda p, g: p - seen.rate * g, moving, moving_grads)
    return np.array(losses), np.array(updates), vector(flat(moving), flat(params))


def _shards_at_once(seen: Observed) -> tuple[np.ndarray, np.ndarray]:
    """Return the shards' losses and updates; the whole batch's where statistics couple shards."""
    each = jax.value_and_grad(in_microbatches(seen.problem, SHARDS), has_aux=True)
    (losses, _), grads = jax.jit(jax.vmap(each, (None, None, 0), axis_name=SHARDS))(
        *seen.start, into_microbatches(seen.batches[0], seen.gate.shards)
    )
    own = [x.reshape(seen.gate.shards, -1) for x in jax.tree.leaves(grads)]
    updates = -seen.rate * np.concatenate(own, axis=1)
    if seen.is_near(updates.mean(axis=0), seen.right):  # no draws depend on the position
        return np.asarray(losses), updates
    return seen.truth.losses[:1], seen.right[None]


def _other_steps(problem: Problem, shards: int) -> dict[str, StateLossFn]:
    """Return mistakes that change a first step, each with the loss function that it computes."""
    of_all, local = (replace(problem, statistics=each) for each in (SYNCHRONIZED, LOCAL))
    if problem.statistics == LOCAL:
        why = "the statistics are those of the global batch, but the workload declares local ones"
        return {why: whole_batch_loss(of_all, shards)}
    same = "every shard draws the same random numbers: the masks of dropout repeat over the shards"
    alone = "every shard is normalized by its own statistics: they are not synchronized"
    return {same: in_shards(of_all, shards), alone: in_shards(local, shards)}


def _wrong_averages(seen: Observed) -> list[str]:
    """Name the mistake that explains the model state after the first step; empty if none does."""
    problem, batch, shards = seen.problem, seen.batches[0], seen.gate.shards

    def makes(loss_fn: StateLossFn, batch: Batch) -> bool:
        theirs = flat(jax.jit(loss_fn)(*seen.start, batch)[1])
        errors = state_errors(seen.ours.states[1], theirs, flat(seen.start[1]))
        return all(error <= seen.match for error in errors.values())

    alone = in_shards(replace(problem, statistics=LOCAL), shards)
    if problem.statistics != LOCAL and makes(alone, batch):
        why = "the running averages are the means of the shards' own statistics"
        return [f"{why}, not the statistics of the global batch"]
    for index in range(shards):
        if makes(in_microbatches(problem), part_of(batch, shards, index)):
            return [f"the running averages are those of shard {index} alone"]
    return []
