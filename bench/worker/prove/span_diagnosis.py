"""Diagnosis of wrong spans in the rounds: known mistakes are reproduced and compared."""

import jax
import numpy as np
import optax

from bench.records.numbers import count
from bench.worker.prove.carried_state import flat, leaves_by_path, not_finite
from bench.worker.prove.failures import FEW
from bench.worker.prove.gate import Gate
from bench.worker.prove.relative_errors import close, multiple_of, some, unchanged
from bench.worker.prove.span_records import SpanRecord
from bench.worker.prove.state_reader import HostState
from bench.worker.prove.timed_reference import ReferenceSteps
from bench.worker.prove.trajectory import vector

NEAR = 1e-2
"""Relative distance below which a mistake reproduces an observation."""
NEARER = 0.1
"""Largest ratio of the distance to a mistake and that to the right update, which may be small too,
as near a minimum."""
FLOOR = 8
"""Roundings, of a loss, an update or parameters, by which a right step may always be off."""
ABOUT = 0.1
"""Relative distance for a constant factor, which compounds over several steps."""


def named_update(span: SpanRecord, right: ReferenceSteps, wrong: list[str]) -> str:
    """Name the mistake that explains the update of `wrong` parameters; empty if none does."""
    start, end = flat(span.before.params), flat(span.after.params)
    update, whole = vector(end, start), vector(flat(right.end.params), start)
    if not update.any():
        return "the parameters do not change"
    if still := [path for path in wrong if np.array_equal(end[path], start[path])]:
        return unchanged(still)
    factor = multiple_of(update, whole)
    scaled = factor * whole
    far = abs(factor - 1) > ABOUT and close(update, scaled, ABOUT)
    nearer = np.linalg.norm(update - scaled) <= NEARER * np.linalg.norm(update - whole)
    if far or (nearer and close(update, scaled, NEAR)):
        return f"the update is about {factor:.3g} times what it should be"
    return ""


def unexplained(span: SpanRecord, right: ReferenceSteps, wrong: list[str]) -> str:
    """Describe an update of `wrong` parameters that no known mistake explains."""
    own = flat(span.after.params)
    end, wanted = vector(own), vector(flat(right.end.params))
    factor = max(0.0, multiple_of(end, wanted))
    each = factor ** (1 / span.steps)
    rest, whole = np.linalg.norm(end - factor * wanted), np.linalg.norm(end - wanted)
    if each and abs(each - 1) > NEAR and rest <= NEARER * whole:
        return f"the parameters are multiplied by about {each:.3g} in each step"
    where = f" in {some(wrong)}" if len(wrong) < len(own) else ""
    return f"the update is wrong{where}, and no known mistake explains it"


def why_not_finite(span: SpanRecord) -> str:
    """Name what is NaN or infinite after a span: its loss, parameters and model state.

    Model state may keep an infinity, as a mask does.
    """
    found = [] if np.isfinite(span.loss) else [f"the loss is {span.loss}"]
    after, old = span.after, leaves_by_path(span.before.model_state)
    for tree, before in (after.params, {}), (after.model_state, old):
        for path, leaf in leaves_by_path(tree).items():
            if (wrong := not_finite(leaf, before.get(path, 0.0))).any():
                number = count(int(wrong.sum()), "element")
                found.append(f"{path} is NaN or infinite in {number}")
    return "; ".join(found[:FEW])


def left_out(gate: Gate, start: HostState, end: HostState, steps: int) -> int:
    """Count the updates skipped between two states of an arm; 0 if their number is not certain.

    It is certain if the reference is there after fewer steps, in both orders of summation.
    """
    found = set()
    for apart in (False, True):
        at = gate.reference.placed(start)
        from_end, from_start = [], []
        for _ in range(steps):
            at = gate.reference.run(gate.timed_batches[:1], at, apart=apart).end
            from_end.append(_distance(at.params, end.params))
            from_start.append(_distance(at.params, start.params))
        far, moved = np.array(from_end, np.float64), np.array(from_start, np.float64)
        nearest = int(far.argmin())
        whole = np.linalg.norm(vector(flat(start.params)))
        blur = max(FLOOR * gate.timed_eps, NEAR) * moved.max() + FLOOR * 2.0**-23 * whole
        near = far[nearest] <= NEAR * moved[nearest] and far[nearest] <= NEARER * far[-1]
        if not (near and far[-1] > blur):
            return 0
        found.add(steps - 1 - nearest)
    return found.pop() if len(found) == 1 else 0


_distance = jax.jit(lambda ours, theirs: optax.tree.norm(optax.tree.sub(ours, theirs)))


def named_loss(span: SpanRecord, right: float) -> str:
    """State the wrong loss, an earlier step that had exactly the same, and the right loss."""
    earlier = (
        f", exactly that of step {steps},"
        for steps, loss in span.arm.losses[:-1]
        if steps < span.first_step and not loss.is_deleted() and float(loss) == span.loss
    )
    return f"the loss is {span.loss:.6g}{next(earlier, '')} and should be {right:.6g}"
