"""Diagnosis of spans that went wrong in the rounds: mistakes are made on purpose and compared."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from bench.records.numbers import count
from bench.worker.prove.diagnosis import close
from bench.worker.prove.gate import FEW, Gate
from bench.worker.prove.held_state import StateReader
from bench.worker.prove.kept_spans import Kept, reference_steps
from bench.worker.prove.timed_reference import Stepped
from bench.worker.prove.trajectory import flat, updated, vector

NEAR = 1e-2
"""Relative distance below which a mistake reproduces what was seen."""
ABOUT = 0.1
"""The same for a factor, because each of several steps starts where the one before has led."""


def named_update(
    gate: Gate, kept: Kept, right: Stepped, wrong: list[str], reader: StateReader
) -> str:
    """Name the mistake that makes this update; empty if it is right or there is none."""
    start, end = flat(kept.before.held.params), flat(kept.after.held.params)
    update, whole = vector(end, start), vector(flat(right.params[-1]), start)

    def makes(params: Any) -> bool:
        return close(update, vector(flat(params), start), NEAR)

    still = [path for path in wrong if np.array_equal(end[path], start[path])]
    if not (wrong and update.any()):
        return "the parameters do not change" if wrong else ""
    for number, params in enumerate(right.params[:-1], start=1):
        if makes(params):
            return f"{kept.steps - number} of {count(kept.steps, 'update')} are left out"
    if still:
        return f"{', '.join(still[:FEW])} does not change"
    parts = gate.reference.parts
    for some in subsets(parts):
        if makes(reference_steps(gate, kept, only=some).params[-1]):
            return f"the update is that of {len(some)} of {parts} parts of the batch"
    factor = float(update @ whole / (whole @ whole))
    if abs(factor - 1) > ABOUT and close(update, factor * whole, ABOUT):
        return f"the update is about {factor:.2g} times what it should be"
    return "" if close(update, whole, NEAR) else _delayed(gate, kept, reader)


def _delayed(gate: Gate, kept: Kept, reader: StateReader) -> str:
    """Tell whether an arm, which is wrong, applies the gradients of the step before."""
    if jax.process_count() > 1 or kept.before.held.opt_state is None:
        return ""
    held = []
    for _ in range(3):
        held.append(reader.read(kept.arm.state))
        kept.arm.run(1)
    batch = gate.timed_batches[0]
    grads = gate.reference.gradients(held[0].params, batch)[1]
    late, _ = updated(gate.timed.optimizer, *held[1], grads)
    start = flat(held[1].params)
    ours = vector(flat(held[2].params), start)
    return (
        "the gradients are those of the step before"
        if close(ours, vector(flat(late), start), NEAR)
        else ""
    )


def named_loss(gate: Gate, kept: Kept, right: float) -> str:
    """Name the mistake that makes this loss."""
    for steps, loss in kept.arm.losses[:-1]:
        if steps < kept.first_step and not loss.is_deleted() and float(loss) == kept.loss:
            return f"the loss is that of step {steps}: it is not computed anew"
    parts = gate.reference.parts
    for some in subsets(parts) if not close(kept.loss, right, NEAR) else ():
        if close(kept.loss, reference_steps(gate, kept, only=some).losses[-1], NEAR):
            return f"the loss is that of {len(some)} of {parts} parts of the batch"
    return f"the loss is {kept.loss:.6g} and should be {right:.6g}"


def subsets(parts: int) -> list[list[int]]:
    """Some parts of a batch: each alone, and the first ones and the last ones."""
    singles = [[index] for index in range(parts)] if parts > 1 else []
    several = [
        list(range(parts))[cut] for n in range(2, parts) for cut in (slice(n), slice(-n, None))
    ]
    return singles + several
