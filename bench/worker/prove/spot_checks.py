"""Spot checks of steps in the rounds, at moments that the step cannot foresee.

A proof that ends before the clock starts says nothing about a step that changes later. Each arm
therefore runs a short extra span, which it cannot distinguish from a timed one, in the first round,
after the last, and in randomly chosen rounds between. The state before and after is copied to the
host, and compared after the round with the reference's steps from that very state.

The number of checks depends on their cost: those between the first and the last are limited to
SHARE of an arm's time in the rounds.
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from hashlib import blake2b

import jax
import numpy as np

from bench.contract import Params
from bench.records.numbers import count
from bench.records.proof_rows import AS_TIMED, ProofCheck
from bench.worker import process_exchange
from bench.worker.prove.carried_state import leaves_of, model_state_of, named_state, state_errors
from bench.worker.prove.completion import check_completion, is_late, settle
from bench.worker.prove.diagnosis import describe
from bench.worker.prove.failures import WrongStepError, failure
from bench.worker.prove.gate import ROUNDINGS, Gate
from bench.worker.prove.held_state import StateReader, counters
from bench.worker.prove.kept_spans import Kept, Moment, reference_steps
from bench.worker.prove.relative_errors import rms, update_errors
from bench.worker.prove.replica_drift import find_drift
from bench.worker.prove.span_diagnosis import named_loss, named_update
from bench.worker.prove.timed_reference import Stepped
from bench.worker.prove.trajectory import Flat, by_path, flat, state_by_path, vector
from bench.worker.time.clock import Arm, ExtraSpan

SHARE = 0.05
MOST = 4
"""Most checks of an arm in a launch."""
SPANS = (2, 3)
"""Fewest and most steps of a check; more than one, because a fault may skip every second step."""
NAME = "in the rounds"
FLOOR = 8
"""Roundings, of the first loss and of the first update, by which a check may always be off."""
DRIFT = 1e-2
"""Largest distance of replicas that differ by rounding, relative to the change since the start."""


@dataclass
class _Watched:
    reader: StateReader
    counted: list[int]
    """The optimizer's counters when the rounds began."""
    steps: int
    """Steps that the arm had run when the rounds began."""
    due: list[int] = field(default_factory=lambda: [0])
    """Earliest rounds of the next checks, in ascending order."""
    done: int = 0
    suspected: int = 0
    """Consecutive checks that were off by more than rounding."""
    last_step: int = 0
    left: bytes = b""
    """Digest of the parameters after the last check, which ended with that step."""


class SpotChecks:
    """Checks the arms of a block while they are timed.

    Args:
      gate: holds the reference; if None, nothing is checked.
      rounds: planned number of rounds.
      seconds: planned duration of the rounds.
    """

    def __init__(self, gate: Gate | None, rounds: int, seconds: float) -> None:
        self._gate = gate
        self.chance = random.Random(process_exchange.from_main(secrets.randbits(64)))
        self.rounds, self.seconds = rounds, seconds
        self.reasons: dict[str, str] = {}
        """What is wrong with an arm, by its name."""
        self.checks: dict[str, ProofCheck] = {}
        """The passed check with the largest errors, by the arm's name."""
        self.spent_s = 0.0
        self._watched: dict[str, _Watched] = {}
        self._kept: list[Kept] = []
        self._before: Moment | None = None
        self._stateless = gate is not None and not jax.tree.leaves(
            jax.eval_shape(gate.timed.optimizer.init, gate.reference.start)
        )
        """Whether the optimizer has no state."""

    @property
    def gate(self) -> Gate:
        """The gate; there must be one."""
        assert self._gate is not None, "nothing is checked without a gate"  # noqa: S101
        return self._gate

    def begin(self, arms: Iterable[Arm], turn_of: Callable[[str], None]) -> None:
        """Read the arms' states before the first round, which also compiles the reading programs.

        Raises:
          Exception: whatever an implementation's `params` raises.
        """
        for arm in arms if self._gate is not None else ():
            turn_of(arm.name)
            if arm.train_step is not None:
                reader = StateReader(arm.train_step, self.gate.timed, arm.state)
                held = self.moment(arm, reader).held
                self._watched[arm.name] = _Watched(reader, counters(held.opt_state), arm.steps)
        turn_of("")
        for order in (False, True) if self._watched else ():
            self.gate.reference.run(
                self.gate.timed.optimizer, [self.gate.timed_batches[0]], apart=order
            )

    def extra_span(self, arm: Arm, number: int | None) -> ExtraSpan | None:
        """Return the extra span of an arm's turn, if any; number None is after the last round."""
        watched = self._watched.get(arm.name)
        if watched is None or arm.name in self.reasons:
            return None
        if number is not None:
            if not watched.due or number < watched.due[0]:
                return None
            watched.due.pop(0)
        where = "after the last round" if number is None else f"in round {number + 1}"

        def before(arm: Arm) -> None:
            self._started = time.monotonic()
            self._before = self.moment(arm, watched.reader)

        def after(arm: Arm) -> None:
            assert self._before is not None, "an extra span has begun"  # noqa: S101
            done = self.moment(arm, watched.reader)
            loss, took_s = float(arm.losses[-1][1]), time.monotonic() - self._started
            kept = Kept(arm, where, arm.steps - steps + 1, steps, self._before, done, loss, took_s)
            self._kept.append(kept)

        # One step if the optimizer's state is unknown, because the second loss depends on it.
        steps = self.chance.randint(*SPANS) if watched.reader.whole else 1
        return ExtraSpan(
            self.chance.random() < 0.5,  # noqa: PLR2004 - either is as likely
            steps,
            self.chance.random() < 0.5,  # noqa: PLR2004
            before,
            after,
        )

    def finish(self, arms: Iterable[Arm], turn_of: Callable[[str], None]) -> None:
        """Check the last spans, and that no work continues after them."""
        self.verify(turn_of)
        if self._gate is None or not is_late():
            return
        for arm in arms:
            turn_of(arm.name)
            settle(arm)
            try:
                check_completion(arm)
            except WrongStepError as error:
                self.reasons.setdefault(arm.name, f"after the last round, {error}")
        turn_of("")

    def moment(self, arm: Arm, reader: StateReader) -> Moment:
        """Copy an arm's state to the host, and compare its replicas."""
        assert arm.train_step is not None, "its steps are checked"  # noqa: S101
        mask = self.gate.expected(AS_TIMED).mask
        model_state = model_state_of(self.gate.timed, arm.train_step, arm.state)
        held = state_by_path(model_state)
        drift = find_drift(by_path(arm.train_step.params(arm.state)) | held, mask)
        return Moment(reader.read(arm.state), drift)

    def verify(self, turn_of: Callable[[str], None]) -> None:
        """Check the spans kept since the last call; `turn_of` gets each arm's name, and then ""."""
        for kept in self._kept:
            name, began = kept.arm.name, time.monotonic()
            turn_of(name)
            watched = self._watched[name]
            try:
                why = self._why_wrong(kept, watched)
            except Exception as error:
                if failure(error)[0] != "oom":
                    raise
                why = ""  # too little memory for the reference: the proof before the rounds must do
            # All processes must agree on which arms are checked.
            why = next(filter(None, process_exchange.gather(why)), "")
            if any(process_exchange.gather(watched.suspected == 1)):
                watched.due.insert(0, 0)
            if why:
                last = kept.first_step + kept.steps - 1
                self.reasons[name] = f"steps {kept.first_step} to {last}, {kept.where}: {why}"
            spent_s = kept.took_s + time.monotonic() - began
            self.spent_s += spent_s
            watched.done += 1
            if watched.done == 1:
                self._plan(watched, process_exchange.from_main(spent_s))
        self._kept.clear()
        turn_of("")

    def _plan(self, watched: _Watched, cost_s: float) -> None:
        """Choose the rounds of the checks between the first and the last by a check's cost."""
        affordable = int(SHARE * self.seconds / len(self._watched) / cost_s)
        between = min(MOST, affordable, self.rounds) - 2
        if between > 0 and self.rounds > between:
            watched.due = sorted(self.chance.sample(range(1, self.rounds), between))

    def _why_wrong(self, kept: Kept, watched: _Watched) -> str:
        """Compare a span with the reference's steps from the same state; empty if it is right."""
        after, before = kept.after.held, kept.before.held
        counted = counters(after.opt_state)
        updates = kept.first_step + kept.steps - 1 - watched.steps
        for start, end in zip(watched.counted, counted, strict=True):
            if end - start != updates:
                return (
                    f"the optimizer counts {count(end - start, 'update')} in the "
                    f"{count(updates, 'step')} since the rounds began: updates were left out, or "
                    "its state was made anew"
                )
        between = kept.first_step - 1 - watched.last_step
        unmoved = _digest(before.params) == watched.left
        watched.last_step, watched.left = kept.first_step + kept.steps - 1, _digest(after.params)
        if between and unmoved and _moves(before.params, after.params):
            return (
                f"the parameters do not change in the {count(between, 'step')} before: updates "
                "are left out where the step believes itself unchecked"
            )
        if why := self._why_drifting(kept):
            return why
        if before.opt_state is None and not self._stateless:
            return self._why_wrong_without_state(kept)
        right = reference_steps(self.gate, kept)
        return self._why_wrong_state(kept, right) or self._why_wrong_steps(kept, right)

    def _why_wrong_steps(self, kept: Kept, right: Stepped) -> str:
        """Compare the last loss and the whole update with the reference's."""
        gate, start = self.gate, flat(kept.before.held.params)
        end = flat(kept.after.held.params)
        eps, expected = gate.timed_eps, gate.expected(AS_TIMED)
        loss_tolerance, update_tolerance = expected.tolerance
        # Near a minimum, losses and gradients are pure rounding.
        loss_floor = FLOOR * eps * abs(gate.first_loss)
        truth = expected.truth
        size = rms(vector(flat(right.params[-1]), start))
        floor = FLOOR * (
            2.0**-23 * rms(vector(start)) + eps * rms(vector(truth.first, truth.start))
        )

        def errors(theirs: Stepped, ours: Flat, loss: float) -> tuple[float, dict[str, float]]:
            off = max(0.0, abs(loss - theirs.losses[-1]) - loss_floor)
            updates = update_errors(ours, flat(theirs.params[-1]), start, expected.mask)
            far = {path: max(0.0, error - floor / size) for path, error in updates.items()}
            return off / (abs(theirs.losses[-1]) or 1.0), far

        def is_right(theirs: Stepped) -> bool:
            loss_error, updates = errors(theirs, end, kept.loss)
            return loss_error <= loss_tolerance and max(updates.values()) <= update_tolerance

        def within(wide: tuple[float, float]) -> bool:
            more = loss_tolerance - expected.tolerance[0], update_tolerance - expected.tolerance[1]
            return loss_error <= wide[0] + more[0] and max(updates.values()) <= wide[1] + more[1]

        if not size:  # a minimum, where no update shows anything
            return ""
        loss_error, updates = errors(right, end, kept.loss)
        check = ProofCheck(
            name=NAME,
            loss_error=loss_error,
            loss_tolerance=loss_tolerance,
            update_error=max(updates.values()),
            update_tolerance=update_tolerance,
        )
        if not is_right(right):
            other = reference_steps(gate, kept, apart=True)
            apart = errors(right, flat(other.params[-1]), other.losses[-1])
            loss_tolerance = check["loss_tolerance"] = loss_tolerance + ROUNDINGS * apart[0]
            more = ROUNDINGS * max(apart[1].values())
            update_tolerance = check["update_tolerance"] = update_tolerance + more
        watched = self._watched[kept.arm.name]
        if is_right(right):
            watched.suspected = 0
            worst = self.checks.setdefault(kept.arm.name, check)
            if _share(check) > _share(worst):
                self.checks[kept.arm.name] = check
            return ""
        watched.suspected += 1
        if watched.suspected == 1 and within(expected.wide):
            return ""  # one rounding may flip a ReLU, but hardly in two checks in a row
        wrong = [path for path, error in updates.items() if error > update_tolerance]
        unknown = "the update is wrong, and no known mistake explains it" if wrong else ""
        reasons = [named_update(gate, kept, right, wrong, watched.reader) or unknown]
        if loss_error > loss_tolerance:
            reasons.append(named_loss(gate, kept, right.losses[-1]))
        return f"{'; '.join(filter(None, reasons))} ({describe(check)})"

    def _why_wrong_without_state(self, kept: Kept) -> str:
        """Check a single step without optimizer state: its loss, and that parameters change."""
        before = kept.before.held
        start, end = flat(before.params), flat(kept.after.held.params)
        losses = [
            float(
                self.gate.reference.gradients(
                    before.params, before.model_state, batch, apart=apart
                )[0]
            )
            for batch in self.gate.timed_batches[:1]
            for apart in (False, True)
        ]
        allowed = self.gate.expected(AS_TIMED).wide[0] * abs(losses[0])
        allowed += ROUNDINGS * abs(losses[0] - losses[1])
        allowed += FLOOR * self.gate.timed_eps * abs(self.gate.first_loss)
        if abs(kept.loss - losses[0]) > allowed:
            return named_loss(self.gate, kept, losses[0])
        if not vector(end, start).any():
            return "the parameters do not change"
        return ""

    def _why_wrong_state(self, kept: Kept, right: Stepped) -> str:
        """Compare the model state after a span with the reference's."""
        start, end, theirs = (
            leaves_of(state)
            for state in (
                kept.before.held.model_state,
                kept.after.held.model_state,
                right.states[-1],
            )
        )
        allowed = self.gate.expected(AS_TIMED).state
        if not named_state(end, theirs, start, allowed):
            return ""
        other = leaves_of(reference_steps(self.gate, kept, apart=True).states[-1])
        allowed += ROUNDINGS * max(state_errors(other, theirs, start).values())
        return named_state(end, theirs, start, allowed)

    def _why_drifting(self, kept: Kept) -> str:
        """Compare the drift of replicas with that before the span and with the update's size."""
        start, end = flat(kept.before.held.params), flat(kept.after.held.params)
        expected = self.gate.expected(AS_TIMED)
        allowed = expected.tolerance[1] * rms(vector(end, start))
        whole = DRIFT * rms(vector(end, expected.truth.start))
        for name, size in kept.after.drift.sizes.items():
            # Rounding may add to the drift of replicas in every step.
            if size > min(whole, allowed + 2 * kept.before.drift.sizes.get(name, 0.0)):
                return kept.after.drift.where
        return ""


def _digest(params: Params) -> bytes:
    digest = blake2b()
    for leaf in jax.tree.leaves(params):
        digest.update(np.ascontiguousarray(leaf).view(np.uint8).data)
    return digest.digest()


def _moves(before: Params, after: Params) -> bool:
    """Whether parameters change by more than a few roundings, so that an earlier step must too."""
    start = flat(before)
    return rms(vector(flat(after), start)) > FLOOR * 2.0**-23 * rms(vector(start))


def _share(check: ProofCheck) -> float:
    """Return the larger error of a check, as a share of its tolerance."""
    return max(
        check["loss_error"] / check["loss_tolerance"],
        check["update_error"] / check["update_tolerance"],
    )
