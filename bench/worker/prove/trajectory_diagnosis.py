"""Diagnosis of a trajectory that the gate refuses."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from bench.records.numbers import count
from bench.records.row_parts import AS_TIMED, OWN, SGD, TIMED_SGD, ProofCheck
from bench.worker.prove.carried_state import Flat
from bench.worker.prove.exact_arithmetic import exact_arithmetic, widened
from bench.worker.prove.failures import APPROXIMATE
from bench.worker.prove.known_mistakes import MATCH, UNKNOWN, Observed, known_mistakes
from bench.worker.prove.later_mistakes import wrong_loss, wrong_optimizer, wrong_times
from bench.worker.prove.relative_errors import (
    close,
    describe,
    loss_error,
    multiple_of,
    some,
    update_errors,
)
from bench.worker.prove.trajectory import Trajectory, under_sgd, vector

if TYPE_CHECKING:
    from bench.worker.prove.gate import Gate

OPTIMIZER = "the gradients are right under SGD, but the optimizer is not applied as given"
OTHER = (
    "the step does not use problem.optimizer: under SGD, it updates as the workload's own "
    "optimizer would"
)
BF16 = (2.0**-12, 2.0**-5)
"""Range of relative errors that rounding to bfloat16 (8 bits) causes."""
LOOSE = 0.1
"""Largest relative distance below which a mistake reproduces steps in the timed dtypes."""
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
    """Say what is wrong with a trajectory that does not pass its check.

    `drift` and `wrong_state` describe replicas and model state, if these are wrong. With `again`,
    the trajectory is on other batches.
    """
    truth, mask, (loss_tolerance, _), *_ = gate.expected(name, again=again)
    timed, under = name in gate.optimizers, name in (SGD, TIMED_SGD)
    match = (min(LOOSE, 8 * check["update_tolerance"]), loss_tolerance) if timed else (MATCH, MATCH)
    rate = gate.rates.get(name, 0.0)
    problem = under_sgd(gate.problems[SGD], rate) if under else gate.problems[OWN]
    batches = [*map(widened, gate.batches[len(ours.losses) :])] if again else gate.exact_batches
    seen = Observed(gate, problem, batches, rate, ours, truth, *match)
    first = update_errors(ours.first, truth.first, truth.start, mask)
    right_update = check["update_error"] <= check["update_tolerance"]
    sentences = [drift] if drift else []
    coarse = 2 * gate.timed_eps < ours.loss_eps and check["loss_error"] <= ours.loss_eps
    if coarse and right_update and not drift and not wrong_state:
        sentences = [f"the loss is {ours.loss_dtype}, whose rounding exceeds what is allowed"]
    elif under:
        sentences += _mistakes(name, seen)
    # A wrong optimizer spoils the model state too, which was right under SGD.
    sentences += [wrong_state] if wrong_state and (right_update or under) and not sentences else []
    # After the first step alone: from the second on, one wrong parameter spoils the others.
    wrong = [path for path, error in first.items() if error > check["update_tolerance"]]
    others = count(len(first) - len(wrong), "parameter").removeprefix("1 ")
    right = f"that of the other {others} is right"
    only_losses = not timed and right_update and not (wrong or sentences)
    sentences += ["the losses are wrong, and the updates are right"] if only_losses else []
    if name == OWN and not sentences and gate.division.devices == 1:
        why = ""
        # An optimizer may be of a kind that cannot be altered. The step is wrong all the same.
        with exact_arithmetic(gate.programs), suppress(Exception):
            why = wrong_optimizer(seen, mask, check["update_tolerance"])
        sentences, wrong = ([f"{OPTIMIZER}: {why}"], []) if why else (sentences, wrong)
    if not sentences or sentences[0].startswith(UNKNOWN):
        applied = f"{OPTIMIZER}: " if name == OWN else ""
        change = _change(ours, truth, wrong, mask, max(seen.match, 1e-3)) if wrong else ""
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
        sentences = [_general_diagnosis(name, seen, right_start=right_loss and not wrong)]
    if 0 < len(wrong) < len(first):
        sentences.append(f"the first update of {some(wrong)} is wrong, and {right}")
    return f"{'; '.join(sentences)} ({describe(check)})"


def _general_diagnosis(name: str, seen: Observed, *, right_start: bool) -> str:
    """Describe a wrong trajectory that matches no known mistake."""
    if name in (TIMED_SGD, AS_TIMED):
        return "the step is right in float64, but not as it would be timed"
    if name == OWN:
        return f"{OPTIMIZER}{': its first step is right, a later one not' if right_start else ''}"
    if right_start:
        return "the first step is right, but a later one is not"
    digits = f"has fewer correct digits than float64 gives{seen.advice}"
    return f"the loss or the update {digits if seen.advice else 'is wrong'}"


def _change(
    ours: Trajectory, truth: Trajectory, wrong: Sequence[str], mask: Flat | None, match: float
) -> str:
    """Say how the first update of parameters is wrong; empty if that is not known.

    It may be missing, not added, to within `match` a multiple of the right one, or off by decay.
    """
    each = ({path: own[path] for path in wrong} for own in (truth.start, ours.first, truth.first))
    start, update, right = (vector(leaves, mask=mask) for leaves in each)
    update, right = update - start, right - start
    factor, decay = multiple_of(update, right), multiple_of(update - right, start)
    if not update.any():
        return "is missing: it does not change"
    if abs(factor - 1) > 10 * match and close(update, factor * right, match):
        return f"is {factor:.3g} times what it should be"
    if close(update + start, right, match):
        return "replaces the parameters, to which it should be added"
    if decay and close(update - right, decay * start, DECAY):
        how = "is left out" if decay > 0 else "or an L2 penalty is added"
        return f"is off by {decay:.2g} times the parameters: a weight decay {how}"
    return ""


def _mistakes(name: str, seen: Observed) -> list[str]:
    """Name known mistakes that reproduce steps under SGD; see `why_wrong`."""
    gate, own, wanted = seen.gate, seen.ours.first, seen.truth.first
    narrow = [path for path, leaf in own.items() if leaf.itemsize < wanted[path].itemsize]
    if narrow and name == SGD:
        return [f"parameters are in narrower dtypes than their own: {some(narrow)} ({APPROXIMATE})"]
    begun, given = seen.ours.start, seen.truth.start
    if differing := [path for path in given if not close(begun[path], given[path], seen.match)]:
        return [f"the initial parameters are not those of the problem, in {some(differing)}"]
    if gate.division.devices > 1 or gate.division.parts > gate.shards:
        return []  # a shard does not fit on one device
    # Memory may not suffice. The step is wrong all the same.
    with exact_arithmetic(gate.programs), suppress(Exception):
        found = [*filter(None, (wrong_times(seen), wrong_loss(seen)))] or known_mistakes(seen)
        unknown = name == SGD and found and found[0].startswith(UNKNOWN)
        return [OTHER] if unknown and _is_own(seen) else found
    return []


def _is_own(seen: Observed) -> bool:
    """Whether updates under SGD are those of the workload's own optimizer."""
    truth = seen.gate.truth[OWN]
    own = vector(truth.first, truth.start)
    differs = not close(own, multiple_of(own, seen.right) * seen.right, 10 * DECAY)
    return differs and close(seen.updates[0], multiple_of(seen.updates[0], own) * own, DECAY)
