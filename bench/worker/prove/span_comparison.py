"""The comparison of a span in the rounds with the reference's steps from the same state."""

from collections.abc import Mapping
from math import inf, isnan

from bench.records.grouping import grouped
from bench.records.row_parts import AS_TIMED, ProofCheck
from bench.worker import process_exchange
from bench.worker.prove.carried_state import Flat, flat, snapshot
from bench.worker.prove.gate import Gate
from bench.worker.prove.relative_errors import (
    ROUNDINGS,
    allowed,
    describe,
    differences,
    distance,
    length,
    named_state,
    rms,
    some,
    update_errors,
)
from bench.worker.prove.span_diagnosis import FLOOR, named_loss, named_update, unexplained
from bench.worker.prove.span_records import SpanRecord, pending
from bench.worker.prove.state_reader import StateReader, moments
from bench.worker.prove.timed_reference import ReferenceSteps
from bench.worker.time.clock import Arm

NAME = "in the rounds"
LOST = 0.5
"""Largest distance of moments from the right ones, relative to the largest right ones of their
kind. Rounding moves none so far."""
DRIFT = 1e-2
"""Largest distance of replicas that differ by rounding, relative to the change since the start."""


class Comparison:
    """The last loss and the whole update of a span, compared with the reference's.

    Where the reference does not move, the arm must not move either, and the moments of its
    optimizer, which may accumulate gradients for a later update, are compared instead.
    """

    def __init__(self, span: SpanRecord, right: ReferenceSteps) -> None:
        gate, self._kept, self._right = span.gate, span, right
        self._expected = gate.expected(AS_TIMED)
        states = span.before, span.after, right.end
        start, ours, theirs = (snapshot(state.params) for state in states)
        floor = FLOOR * (2.0**-23 * length(start) + gate.timed_eps * self._expected.truth.step)
        self._size = distance(theirs, start)
        self._moving = self._size != 0
        self._strays = not self._moving and not distance(ours, start) <= floor
        if not self._moving:
            start, ours, theirs = (moments(state.opt_state) for state in states)
            self._size = distance(theirs, start)
            floor = FLOOR * 2.0**-23 * length(start)
        self._start, self._theirs, self._floor = start, theirs, floor
        loss_error, self._updates = self._errors(ours, span.loss)
        self.check = ProofCheck(
            name=NAME,
            loss_error=loss_error,
            loss_tolerance=self._expected.tolerance[0],
            update_error=inf if self._strays else max(self._updates.values(), default=0.0),
            update_tolerance=self._expected.tolerance[1],
        )
        self._more = 0.0, 0.0
        if not self.is_right:
            other, end = span.stepped(apart=True)
            seen = snapshot(end.params) if self._moving else moments(end.opt_state)
            loss, updates = self._errors(seen, other)
            update, wide = max(updates.values(), default=0.0), self._expected.wide[1]
            if max(loss, update) < inf:  # NaN measures no rounding
                self._more = ROUNDINGS * loss, allowed(update, wide)
            self.check["loss_tolerance"] += self._more[0]
            self.check["update_tolerance"] += self._more[1]

    def _errors(self, ours: Flat, loss: float) -> tuple[float, dict[str, float]]:
        """Return the errors of a loss and of each parameter's update, beyond mere rounding."""
        # Near a minimum, losses and gradients are pure rounding.
        blur = FLOOR * self._kept.gate.timed_eps * abs(self._kept.gate.first_loss)
        mask = self._expected.mask if self._moving else None
        floor = self._floor / (self._size or 1.0)
        updates = update_errors(ours, self._theirs, self._start, mask, self._size)
        off = _beyond(abs(loss - self._right.loss), blur) / (abs(self._right.loss) or 1.0)
        return off, {path: _beyond(error, floor) for path, error in updates.items()}

    def _within(self, loss_tolerance: float, update_tolerance: float) -> bool:
        check = self.check
        return check["loss_error"] <= loss_tolerance and check["update_error"] <= update_tolerance

    @property
    def is_right(self) -> bool:
        """Whether the loss and all updates are within their tolerances."""
        return self._within(self.check["loss_tolerance"], self.check["update_tolerance"])

    @property
    def is_within_wide(self) -> bool:
        """Whether both are within the wider tolerances, which one unlucky rounding may reach."""
        loss, update = self._expected.wide
        return self._within(loss + self._more[0], update + self._more[1])

    def why(self, of_state: str) -> str:
        """Say what is wrong with the span; `of_state` describes the model state if it is wrong."""
        span, check = self._kept, self.check
        wrong = [p for p, error in self._updates.items() if error > check["update_tolerance"]]
        reasons = []
        if self._strays:
            reasons += ["the parameters change after steps that owe no update"]
        elif self._moving and wrong:
            named = named_update(span, self._right, wrong)
            reasons += [named or of_state or unexplained(span, self._right, wrong)]
        elif wrong:
            reasons = [
                f"what the optimizer accumulates for a later update is wrong, in {some(wrong)}"
            ]
        elif of_state:
            reasons += [of_state]
        if not check["loss_error"] <= check["loss_tolerance"]:
            reasons.append(named_loss(span, self._right.loss))
        return f"{'; '.join(reasons)} ({describe(check)})"


def reads_rightly(gate: Gate, reader: StateReader, arm: Arm) -> bool:
    """Whether the reference reproduces a step from the optimizer's state that a reader finds."""
    before = pending(gate, reader, arm.state)
    arm.run(1)
    states = before, pending(gate, reader, arm.state)
    span = SpanRecord(gate, arm, "", arm.steps, 1, states, float(arm.losses[-1][1]), 0.0)
    span.read()
    return all(process_exchange.gather(Comparison(span, span.stepped()).is_right))


def _beyond(error: float, floor: float) -> float:
    """Return by how much an error exceeds a floor: infinitely if it is NaN."""
    return inf if isnan(error) else max(0.0, error - floor)


def why_wrong_state(span: SpanRecord, right: ReferenceSteps) -> str:
    """Describe how the model state after a span differs from the reference's; else empty."""
    start, end, theirs = (flat(s.model_state) for s in (span.before, span.after, right.end))
    most = span.gate.expected(AS_TIMED).state
    return named_state(end, theirs, start, most, lambda: span.stepped(apart=True).end.model_state)


def why_lost(span: SpanRecord, right: ReferenceSteps) -> str:
    """Name the optimizer's moments that are far from those that the reference's steps leave.

    A distance counts if it exceeds LOST of the largest moments of its kind, and ROUNDINGS of the
    largest rounding of its kind: near a minimum, all moments are rounding, and that of a single
    parameter may be none by chance.
    """
    ours, theirs = map(moments, (span.after.opt_state, right.end.opt_state))
    off = {path: rms(differences(leaf, theirs[path])) for path, leaf in ours.items()}
    most = _by_kind({path: LOST * rms(leaf) for path, leaf in theirs.items()})
    far = [path for path in off if not off[path] <= most[path]]
    if far:
        other = moments(span.stepped(apart=True).end.opt_state)
        most = _by_kind(
            {path: ROUNDINGS * rms(differences(other[path], theirs[path])) for path in ours}
        )
        far = [path for path in far if not off[path] <= most[path]]
    why = "do not follow from the steps: they were lost or reinitialized"
    return f"the optimizer's {some(far)} {why}" if far else ""


def _by_kind(sizes: Mapping[str, float]) -> dict[str, float]:
    """Return the largest size of a kind of moments, such as `[0].mu`, by path."""
    kinds = grouped((path.partition("['")[0], path) for path in sizes).values()
    return {path: max(sizes[each] for each in kind) for kind in kinds for path in kind}


def why_drifting(span: SpanRecord) -> str:
    """Describe replicas that drift more than the update and their drift before allow."""
    earlier, drifts = span.drifts
    if not drifts:
        return ""
    start, end = flat(span.before.params), flat(span.after.params)
    expected = span.gate.expected(AS_TIMED)
    most = expected.tolerance[1] * distance(end, start)
    whole = DRIFT * distance(end, expected.truth.start)
    for name, drift in drifts.items():
        before = earlier.get(name)
        # Rounding may add to the drift of replicas in every step.
        if not drift.size <= min(whole, most + 2 * (before.size if before else 0.0)):
            return drift.where
    return ""
