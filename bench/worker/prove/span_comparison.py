"""The comparison of a span in the rounds with the reference's steps from the same state."""

from __future__ import annotations

from math import inf

from bench.records.row_parts import AS_TIMED, ProofCheck
from bench.worker.prove.carried_state import leaves_of, named_state, state_errors
from bench.worker.prove.diagnosis import describe
from bench.worker.prove.gate import FEW, ROUNDINGS, Gate
from bench.worker.prove.held_state import StateReader, moments
from bench.worker.prove.kept_spans import Kept
from bench.worker.prove.relative_errors import rms, update_errors
from bench.worker.prove.span_diagnosis import FLOOR, named_loss, named_update
from bench.worker.prove.timed_reference import Stepped
from bench.worker.prove.trajectory import Flat, flat, vector

NAME = "in the rounds"
DRIFT = 1e-2
"""Largest distance of replicas that differ by rounding, relative to the change since the start."""


class Comparison:
    """The last loss and the whole update of a span, compared with the reference's.

    Where the reference does not move, the arm must not move either, and the moments of its
    optimizer, which may accumulate gradients for a later update, are compared instead.
    """

    def __init__(self, gate: Gate, kept: Kept, right: Stepped) -> None:
        self._gate, self._kept, self._right = gate, kept, right
        self._expected = gate.expected(AS_TIMED)
        before, after, truth = kept.before.held, kept.after.held, self._expected.truth
        start = flat(before.params)
        self._moving = bool(vector(flat(right.params[-1]), start).any())
        step = gate.timed_eps * rms(vector(truth.first, truth.start))
        self._floor = FLOOR * (2.0**-23 * rms(vector(start)) + step)
        strayed = 0.0 if self._moving else rms(vector(flat(after.params), start))
        self._strays = strayed > self._floor
        if not self._moving:
            start = moments(before.opt_state)
            self._floor = FLOOR * 2.0**-23 * rms(vector(start)) if start else 0.0
        self._start = start
        ours = flat(after.params) if self._moving else moments(after.opt_state)
        loss_error, self._updates = self._errors(right, ours, kept.loss)
        self.check = ProofCheck(
            name=NAME,
            loss_error=loss_error,
            loss_tolerance=self._expected.tolerance[0],
            update_error=inf if self._strays else max(self._updates.values(), default=0.0),
            update_tolerance=self._expected.tolerance[1],
        )
        self._more = 0.0, 0.0
        if not self.is_right:
            other = kept.stepped(gate, apart=True)
            loss, updates = self._errors(right, self._seen(other), other.losses[-1])
            self._more = ROUNDINGS * loss, ROUNDINGS * max(updates.values(), default=0.0)
            self.check["loss_tolerance"] += self._more[0]
            self.check["update_tolerance"] += self._more[1]

    def _seen(self, steps: Stepped) -> Flat:
        return flat(steps.params[-1]) if self._moving else moments(steps.opt_state)

    def _errors(self, theirs: Stepped, ours: Flat, loss: float) -> tuple[float, dict[str, float]]:
        """Return the errors of a loss and of each parameter's update, less what is rounding."""
        # Near a minimum, losses and gradients are pure rounding.
        blur = FLOOR * self._gate.timed_eps * abs(self._gate.first_loss)
        off = max(0.0, abs(loss - theirs.losses[-1]) - blur)
        made, mask = self._seen(theirs), self._expected.mask if self._moving else None
        floor = self._floor / (rms(vector(made, self._start)) or 1.0) if made else 0.0
        updates = update_errors(ours, made, self._start, mask) if made else {}
        far = {path: max(0.0, error - floor) for path, error in updates.items()}
        return off / (abs(theirs.losses[-1]) or 1.0), far

    def _within(self, loss_tolerance: float, update_tolerance: float) -> bool:
        check = self.check
        return check["loss_error"] <= loss_tolerance and check["update_error"] <= update_tolerance

    @property
    def is_right(self) -> bool:
        """Whether both are within their tolerances."""
        return self._within(self.check["loss_tolerance"], self.check["update_tolerance"])

    @property
    def is_within_wide(self) -> bool:
        """Whether both are within the wider tolerances, which one unlucky rounding may reach."""
        loss, update = self._expected.wide
        return self._within(loss + self._more[0], update + self._more[1])

    def why(self, reader: StateReader) -> str:
        """Say what is wrong."""
        gate, kept, check = self._gate, self._kept, self.check
        allowed = check["update_tolerance"]
        wrong = [path for path, error in self._updates.items() if error > allowed]
        reasons: list[str] = []
        if self._strays:
            reasons = ["the parameters change after steps that owe no update"]
        elif self._moving and wrong:
            named = named_update(gate, kept, self._right, wrong, reader)
            reasons = [named or "the update is wrong, and no known mistake explains it"]
        elif wrong:
            some = ", ".join(wrong[:FEW])
            reasons = [f"what the optimizer accumulates for a later update is wrong, in {some}"]
        if check["loss_error"] > check["loss_tolerance"]:
            reasons.append(named_loss(gate, kept, self._right.losses[-1]))
        return f"{'; '.join(reasons)} ({describe(check)})"


def why_wrong_state(gate: Gate, kept: Kept, right: Stepped) -> str:
    """Compare the model state after a span with the reference's."""
    states = kept.before.held.model_state, kept.after.held.model_state, right.states[-1]
    start, end, theirs = map(leaves_of, states)
    allowed = gate.expected(AS_TIMED).state
    if not named_state(end, theirs, start, allowed):
        return ""
    other = leaves_of(kept.stepped(gate, apart=True).states[-1])
    allowed += ROUNDINGS * max(state_errors(other, theirs, start).values())
    return named_state(end, theirs, start, allowed)


def why_drifting(gate: Gate, kept: Kept) -> str:
    """Compare the drift of replicas with that before the span and with the update's size."""
    if not kept.after.drift.sizes:
        return ""
    start, end = flat(kept.before.held.params), flat(kept.after.held.params)
    expected = gate.expected(AS_TIMED)
    allowed = expected.tolerance[1] * rms(vector(end, start))
    whole = DRIFT * rms(vector(end, expected.truth.start))
    for name, size in kept.after.drift.sizes.items():
        # Rounding may add to the drift of replicas in every step.
        if size > min(whole, allowed + 2 * kept.before.drift.sizes.get(name, 0.0)):
            return kept.after.drift.where
    return ""
