"""Checks of steps in the rounds, at moments that the step cannot foresee.

A proof that ends before the clock starts says nothing about a step that changes later. So an arm
runs a short extra span now and then, which it cannot tell from a timed one: in the first round,
after the last, and in rounds between that chance chooses as they come. What its state held before
and after is copied to the host, and compared after the round with the reference's steps from that
very state.

How many checks there are follows from what they cost: those between the first and the last take
place only while an arm's checks take at most SHARE of its time in the rounds.
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import jax

from bench.records.numbers import count
from bench.records.proof_rows import ProofCheck
from bench.worker import process_exchange
from bench.worker.prove.completion import check_completion, is_late, settle
from bench.worker.prove.failures import WrongStepError, failure
from bench.worker.prove.gate import AS_TIMED, ROUNDINGS, Gate, describe
from bench.worker.prove.held_state import StateReader, counters
from bench.worker.prove.kept_spans import Kept, Moment, reference_steps
from bench.worker.prove.relative_errors import rms, update_errors
from bench.worker.prove.replica_drift import find_drift
from bench.worker.prove.span_diagnosis import named_loss, named_update
from bench.worker.prove.timed_reference import Stepped
from bench.worker.prove.trajectory import Flat, by_path, flat, vector
from bench.worker.time.clock import Arm, ExtraSpan

SHARE = 0.05
MOST = 4
"""Checks of an arm in a launch."""
SPANS = (2, 3)
"""Fewest and most steps of a check. Several, because a fault may skip every second step."""
NAME = "in the rounds"
FLOOR = 8
"""Roundings of the first loss and the first update that are always allowed."""
DRIFT = 1e-2
"""Replicas that differ by rounding stay this near to each other, relative to all that changed."""


@dataclass
class _Watched:
    reader: StateReader
    counted: list[int]
    """The optimizer's counters when the rounds began."""
    steps: int
    """Steps that the arm had run by then."""
    due: list[int] = field(default_factory=lambda: [0])
    """Rounds from which on the arm's next turn is checked."""
    done: int = 0
    suspected: int = 0
    """Checks in a row that were off by more than rounding, and by less than a certain fault."""
    cost_s: float = 0.0


class SpotChecks:
    """Checks the arms of a block while they are timed.

    Args:
      gate: has the reference; without one nothing is checked.
      rounds: planned.
      seconds: that the rounds should take.
    """

    def __init__(self, gate: Gate | None, rounds: int, seconds: float) -> None:
        self._gate = gate
        self.chance = random.Random(process_exchange.from_main(secrets.randbits(64)))
        self.rounds, self.seconds = rounds, seconds
        self.reasons: dict[str, str] = {}
        """What is wrong, by the arm's name."""
        self.checks: dict[str, ProofCheck] = {}
        """The largest errors, by the arm's name."""
        self.spent_s = 0.0
        self._watched: dict[str, _Watched] = {}
        self._kept: list[Kept] = []
        self._before: Moment | None = None

    @property
    def gate(self) -> Gate:
        """The gate, where there is one."""
        assert self._gate is not None, "nothing is checked without a gate"  # noqa: S101
        return self._gate

    def begin(self, arms: Iterable[Arm], turn_of: Callable[[str], None]) -> None:
        """Look at the states from which the rounds start, which also compiles what reading needs.

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
        """Choose whether an arm's turn in a round has an extra span; `None` is after the last."""
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

        # One where the optimizer's state is not known: the second loss would depend on it.
        steps = self.chance.randint(*SPANS) if watched.reader.whole else 1
        return ExtraSpan(
            self.chance.random() < 0.5,  # noqa: PLR2004 - either is as likely
            steps,
            self.chance.random() < 0.5,  # noqa: PLR2004
            before,
            after,
        )

    def finish(self, arms: Iterable[Arm], turn_of: Callable[[str], None]) -> None:
        """Check the last spans, and that nothing goes on after them."""
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
        """Copy what an arm's state holds, and compare its replicas."""
        assert arm.train_step is not None, "its steps are checked"  # noqa: S101
        mask = self.gate.expected(AS_TIMED).mask
        drift = find_drift(by_path(arm.train_step.params(arm.state)), mask)
        return Moment(reader.read(arm.state), drift)

    def verify(self, turn_of: Callable[[str], None]) -> None:
        """Check what was kept since the last call; `turn_of` is told whose step is looked at."""
        for kept in self._kept:
            name, began = kept.arm.name, time.monotonic()
            turn_of(name)
            watched = self._watched[name]
            try:
                why = self._why_wrong(kept, watched)
            except Exception as error:
                if failure(error)[0] != "oom":
                    raise
                why = ""  # no memory to spare for the reference: it is proved before the rounds
            # All processes have to agree on who is checked.
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
        """Choose the rounds of the checks between the first and the last, by what one costs."""
        affordable = int(SHARE * self.seconds / len(self._watched) / cost_s)
        between = min(MOST, affordable, self.rounds) - 2
        if between > 0 and self.rounds > between:
            watched.due = sorted(self.chance.sample(range(1, self.rounds), between))

    def _why_wrong(self, kept: Kept, watched: _Watched) -> str:
        """Compare a span with the reference's steps from the same state."""
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
        stateless = not jax.tree.leaves(
            jax.eval_shape(self.gate.timed.optimizer.init, before.params)
        )
        known = before.opt_state is not None or stateless
        why = self._why_wrong_steps if known else self._why_wrong_without_state
        return self._why_drifting(kept) or why(kept)

    def _why_wrong_steps(self, kept: Kept) -> str:
        """Compare the last loss and the whole update with the reference's."""
        gate, start = self.gate, flat(kept.before.held.params)
        end, right = flat(kept.after.held.params), reference_steps(gate, kept)
        eps, expected = gate.timed_eps, gate.expected(AS_TIMED)
        loss_tolerance, update_tolerance = expected.tolerance
        # Near a minimum nothing but rounding is left of losses and gradients.
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
            return ""  # one rounding may flip a ReLU: two moments in a row do not
        wrong = [path for path, error in updates.items() if error > update_tolerance]
        unknown = "the update is wrong, in no way that is known here" if wrong else ""
        reasons = [named_update(gate, kept, right, wrong, watched.reader) or unknown]
        if loss_error > loss_tolerance:
            reasons.append(named_loss(gate, kept, right.losses[-1]))
        return f"{'; '.join(filter(None, reasons))} ({describe(check)})"

    def _why_wrong_without_state(self, kept: Kept) -> str:
        """Check what a single step shows without the optimizer's state: its loss, and a change."""
        start, end = flat(kept.before.held.params), flat(kept.after.held.params)
        losses = [
            float(self.gate.reference.gradients(kept.before.held.params, batch, apart=apart)[0])
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

    def _why_drifting(self, kept: Kept) -> str:
        """Compare how far replicas are apart with before the span, and with right updates."""
        start, end = flat(kept.before.held.params), flat(kept.after.held.params)
        expected = self.gate.expected(AS_TIMED)
        allowed = expected.tolerance[1] * rms(vector(end, start))
        whole = DRIFT * rms(vector(end, expected.truth.start))
        for name, size in kept.after.drift.sizes.items():
            # Replicas that differ by rounding may do so in every step.
            if size > min(whole, allowed + 2 * kept.before.drift.sizes.get(name, 0.0)):
                return kept.after.drift.where
        return ""


def _share(check: ProofCheck) -> float:
    """The larger error of a check, as a share of what is allowed."""
    return max(
        check["loss_error"] / check["loss_tolerance"],
        check["update_error"] / check["update_tolerance"],
    )
