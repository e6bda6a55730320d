"""Diagnosis of a trajectory that the gate refuses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import product
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import optax

from bench.contract import Batch
from bench.contract.model_state import is_float
from bench.records.numbers import count
from bench.records.row_parts import AS_TIMED, OWN, SGD, TIMED_SGD, ProofCheck
from bench.worker.prove.altered_optimizers import OwnSteps
from bench.worker.prove.carried_state import Flat, flat
from bench.worker.prove.exact_arithmetic import exact_arithmetic, widened
from bench.worker.prove.failures import APPROXIMATE, FEW
from bench.worker.prove.known_mistakes import MATCH, UNKNOWN, Observed, known_mistakes
from bench.worker.prove.relative_errors import close, describe, loss_error, some, update_errors
from bench.worker.prove.trajectory import Trajectory, under_sgd, vector, whole_batch_steps

if TYPE_CHECKING:
    from bench.worker.prove.gate import Gate

OPTIMIZER = "the gradients are right under SGD, but the optimizer is not applied as given"
BF16 = (2.0**-12, 2.0**-5)
"""Range of relative errors that rounding to bfloat16 (8 bits) causes."""
ORDERS = {
    (-1, 0, 1): "the gradients are those of the step before",
    (0, 0, 1): "the gradients are those of the step before",
    (0, -1, 2): "the second update is skipped",
    (0, 1, -1): "the third update is skipped",
    (0, -1, -1): "no update follows the first",
    (0, 0, 0): "the gradients are those of the first step",
}
"""Names of mistakes, by the number of the step whose gradients each step applies; -1 for none."""
DECAY = 1e-2
"""Relative distance below which a difference is a multiple of the parameters."""


def why_wrong(
    gate: Gate,
    name: str,
    ours: Trajectory,
    check: ProofCheck,
    drift: str,
    wrong_state: str,
    *,
    again: bool,
) -> str:
    """Say what is wrong with a trajectory, of whose errors one is too large in its check.

    `drift` and `wrong_state` describe replicas and model state, if these are wrong. With `again`,
    the trajectory is on other batches.
    """
    truth, mask = gate.expected(name, again=again)[:2]
    timed, under = name in gate.optimizers, name in (SGD, TIMED_SGD)
    match = 8 * check["update_tolerance"] if timed else MATCH
    first = update_errors(ours.first, truth.first, truth.start, mask)
    right_update = check["update_error"] <= check["update_tolerance"]
    sentences = [drift] if drift else []
    coarse = 2 * gate.timed_eps < ours.loss_eps and check["loss_error"] <= ours.loss_eps
    if coarse and right_update and not drift and not wrong_state:
        sentences = [f"the loss is {ours.loss_dtype}, whose rounding exceeds what is allowed"]
    elif under:
        sentences += mistakes(gate, name, ours, truth, match, again=again)
    # A wrong optimizer spoils the model state too, which was right under SGD.
    sentences += [wrong_state] if wrong_state and (right_update or under) and not sentences else []
    # After the first step alone: from the second on, one wrong parameter spoils the others.
    wrong = [path for path, error in first.items() if error > check["update_tolerance"]]
    right = f"that of the other {count(len(first) - len(wrong), 'parameter')} is right"
    if name == OWN and not sentences and gate.division.devices == 1:
        given = gate.problems[OWN], gate.exact_batches, gate.shards, 0.0, ours, truth
        seen = Observed(*given, gate.loss_and_gradients, match)
        steps = OwnSteps(seen, mask, (check["loss_tolerance"], check["update_tolerance"]))
        why = ""
        # An optimizer may be of a kind that cannot be altered. The step is wrong all the same.
        with exact_arithmetic(gate.programs), suppress(Exception):
            why = steps.why()
        sentences, wrong = ([f"{OPTIMIZER}: {why}"], []) if why else (sentences, wrong)
    if not sentences or sentences[0].startswith(UNKNOWN):
        applied = f"{OPTIMIZER}: " if name == OWN else ""
        change = _change(ours, truth, wrong, mask, max(match, 1e-3))
        if change and len(wrong) == len(first):
            sentences = [f"{applied}the first update {change}"]
        elif change:
            sentences = [f"{applied}the first update of {some(wrong)} {change}, and {right}"]
            wrong = []
    worst = max(check["update_error"], check["loss_error"])
    if timed and not sentences and BF16[0] < worst < BF16[1]:
        sentences = [
            f"computed in bf16: the error is of the size of bfloat16's rounding ({APPROXIMATE})"
        ]
    if not sentences:
        right_loss = loss_error(ours.losses[:1], truth.losses[:1]) <= check["loss_tolerance"]
        sentences = [_general_diagnosis(name, right_start=right_loss and not wrong)]
    if 0 < len(wrong) <= FEW and len(wrong) < len(first):
        sentences.append(f"the first update of {', '.join(wrong)} is wrong, and {right}")
    return f"{'; '.join(sentences)} ({describe(check)})"


def _general_diagnosis(name: str, *, right_start: bool) -> str:
    """Describe a wrong trajectory that matches no known mistake."""
    if name in (TIMED_SGD, AS_TIMED):
        return "the step is right in float64, but not as it would be timed"
    if name == OWN:
        later = "its first step is right, a later one is not, and no change of one number makes it"
        return f"{OPTIMIZER}: {later}" if right_start else OPTIMIZER
    if right_start:
        return "the first step is right, but a later one is not"
    return "the loss or the update has fewer correct digits than float64 gives"


def _change(
    ours: Trajectory, truth: Trajectory, wrong: Sequence[str], mask: Flat | None, match: float
) -> str:
    """Say how the first update of parameters is wrong; empty if that is not known.

    To within `match`, it is a multiple of the right one, or off by a multiple of the parameters.
    """
    if not wrong:
        return ""
    start, update, right = (
        np.concatenate([leaves[p][... if mask is None else mask[p]].ravel() for p in wrong])
        for leaves in (truth.start, ours.first, truth.first)
    )
    update, right = update - start, right - start
    factor, decay = _multiple(update, right), _multiple(update - right, start)
    if not update.any():
        return "is missing: it does not change"
    if abs(factor - 1) > 10 * match and close(update, factor * right, match):
        return f"is {factor:.3g} times what it should be"
    if decay and close(update - right, decay * start, DECAY):
        how = "is left out" if decay > 0 else "or an L2 penalty is added"
        return f"is off by {decay:.2g} times the parameters: a weight decay {how}"
    return ""


def _multiple(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Return the factor by which the one vector is nearest to a multiple of the other."""
    return float(ours @ theirs / (theirs @ theirs or 1.0))


def mistakes(
    gate: Gate, name: str, ours: Trajectory, truth: Trajectory, match: float, *, again: bool
) -> list[str]:
    """Name known mistakes that reproduce steps under SGD to within `match`."""
    if gate.division.devices > 1 or gate.division.parts > gate.shards:
        return []  # a shard does not fit on one device
    rate = gate.rates[name]
    problem = under_sgd(gate.problems[SGD], rate)
    batches = [*map(widened, gate.batches[len(ours.losses) :])] if again else gate.exact_batches
    gradients = gate.loss_and_gradients
    seen = Observed(problem, batches, gate.shards, rate, ours, truth, gradients, match)
    with exact_arithmetic(gate.programs):
        found = _wrong_times(seen) or known_mistakes(seen)
        if name == SGD and found and found[0].startswith(UNKNOWN):
            of_others = _others(gate, seen)
            found = [of_others] if of_others else found
        return found


def _wrong_times(seen: Observed) -> list[str]:
    """Name mistakes that show in several steps: values of another step, or a changing factor."""
    ours, truth, match, near = seen.ours, seen.truth, seen.match, seen.is_near
    update, right, optimizer = seen.update, seen.right, seen.problem.optimizer
    start = seen.problem.draw(), seen.problem.draw_state()

    def last(rule: optax.GradientTransformation, batches: Sequence[Batch]) -> np.ndarray:
        return vector(whole_batch_steps(*start, seen.gradients, rule, batches).last, truth.start)

    found, end, factor = [], vector(ours.last, ours.start), _multiple(update, right)
    if not update.any():
        if near(end, last(optimizer, seen.batches[:-1])):
            found += ["`params` returns the parameters of the step before"]
    elif abs(factor - 1) > 10 * match and near(update, factor * right):
        scaled = optax.chain(optimizer, optax.scale(factor))
        if not close(end, last(scaled, seen.batches), 10 * match):
            first = f"the first update is {factor:.6g} times what it should be"
            later = "`params` may return an average, or the learning rate changes"
            found += [f"{first}, and later ones are not: {later}"]
    found = found or _other_gradients(seen, end)
    if near(ours.losses[1:], truth.losses[:-1]):
        found += ["the loss is that of the step before"]
    elif near(ours.losses, truth.losses[0]) and not near(truth.losses, truth.losses[0]):
        found += ["the loss is that of the first step"]
    elif near(update, right) and not near(ours.losses[0], truth.losses[0]):
        params = jax.tree.unflatten(jax.tree.structure(start[0]), truth.first.values())
        after = seen.gradients(params, start[1], seen.batches[0])[0][0]
        if near(ours.losses[0], float(after)):
            found += ["the loss is that of the parameters after the update"]
    return found


def _other_gradients(seen: Observed, end: np.ndarray) -> list[str]:
    """Name the mistake by which steps apply gradients of other steps, or none, until the end."""
    start = seen.problem.draw(), seen.problem.draw_state()
    begins = -1 if not seen.update.any() else 0
    right = seen.is_near(seen.update, seen.right) or begins
    if not right or seen.is_near(end, vector(seen.truth.last, seen.truth.start)):
        return []

    def ordered(order: Sequence[int]) -> Callable[..., Any]:
        kept: list[Any] = []

        def gradients(*given: Any) -> Any:
            of_loss, grads = seen.gradients(*given)
            kept.append(grads)
            at = order[len(kept) - 1]
            return of_loss, kept[at] if at >= 0 else jax.tree.map(np.zeros_like, grads)

        return gradients

    def again(params: Any, now: Any, batch: Batch) -> Any:
        """Draw in every step the random numbers of the first."""
        same = jax.tree.map(lambda own, first: own if is_float(own) else first, now, start[1])
        return seen.gradients(params, same, batch)

    first, *others = seen.batches
    tries = [(why, ordered(o), seen.batches) for o, why in ORDERS.items() if o[0] == begins]
    tries += [
        ("every step takes the first batch", seen.gradients, [first] * len(seen.batches)),
        ("the batch is that of the step before", seen.gradients, [first, first, *others[:-1]]),
        (
            "the gradients are those of the initial parameters",
            lambda _, *given: seen.gradients(start[0], *given),
            seen.batches,
        ),
    ]
    before, after, _ = seen.ours.states
    draws = [path for path, leaf in before.items() if leaf.dtype.kind != "f"]
    if not all(np.array_equal(before[path], after[path]) for path in draws):
        tries.append(("every step draws the same random numbers", again, seen.batches))
    for why, gradients, batches in tries:
        steps = whole_batch_steps(*start, gradients, seen.problem.optimizer, batches)
        if seen.is_near(end, vector(steps.last, steps.start)):
            return [why]
    return []


def _others(gate: Gate, seen: Observed) -> str:
    """Name another optimizer or batch that makes an update under SGD; empty if none does."""
    own = vector(gate.truth[OWN].first, gate.truth[OWN].start)
    differs = not close(own, _multiple(own, seen.right) * seen.right, 10 * DECAY)
    if differs and close(seen.update, _multiple(seen.update, own) * own, DECAY):
        return (
            "the step does not use problem.optimizer: under SGD, it updates as the workload's own "
            "optimizer would"
        )
    start = seen.problem.draw(), seen.problem.draw_state()
    leaves, tree = jax.tree.flatten(seen.batches[0])
    for place, leaf in reversed([*enumerate(leaves)]):  # labels come last
        for axis, by in product(range(np.ndim(leaf))[:2], (1, -1)):
            moved = [np.roll(x, by, axis) if at == place else x for at, x in enumerate(leaves)]
            grads = seen.gradients(*start, jax.tree.unflatten(tree, moved))[1]
            found = vector(flat(grads))
            if close(seen.update, _multiple(seen.update, found) * found, MATCH):
                return f"array {place} of the batch is shifted by {by} along axis {axis}"
    return ""
