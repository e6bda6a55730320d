"""Spot checks of steps in the rounds, at moments that the step cannot foresee.

Each arm is checked in the first round, after the last, and in randomly chosen rounds between, whose
number depends on their cost. A turn of a few steps is checked as a whole; in a longer one, the arm
runs a short extra span. The state before and after is copied to the host, and compared after the
round with the reference's steps from that very state. See docs/design/proving.md, "Proved while it
is timed".
"""

import random
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property

import jax

from bench.contract import Params
from bench.records.messages import FIRST_LOOK
from bench.records.numbers import count
from bench.records.row_parts import AS_TIMED
from bench.worker import process_exchange
from bench.worker.prove.arm_checks import check_completion, is_late, settle
from bench.worker.prove.carried_state import flat, private
from bench.worker.prove.due_updates import DueUpdates, LastCheck
from bench.worker.prove.failures import WrongStepError, failure
from bench.worker.prove.gate import Gate
from bench.worker.prove.relative_errors import ROUNDINGS, distance, length
from bench.worker.prove.repeated_turns import can_be_repeated, why_other
from bench.worker.prove.span_comparison import (
    Comparison,
    reads_rightly,
    why_drifting,
    why_lost,
    why_wrong_state,
)
from bench.worker.prove.span_diagnosis import FLOOR, left_out, named_loss, why_not_finite
from bench.worker.prove.span_records import SpanRecord, pending, read_moment
from bench.worker.prove.state_reader import HostState, StateCopy, StateReader, digest_of, scalars
from bench.worker.prove.statistical_proof import why_not_training
from bench.worker.time.clock import Arm, CheckedSpan

SHARE = 0.05
"""Largest share of the rounds' time for all checks; the first and the last are made regardless."""
MOST = 4
"""Most checks of an arm in a launch."""
SPANS = (2, 3)
"""Fewest and most steps of an extra span; more than one, because a fault may skip every second
step."""
CLEARED = 3
"""Clean checks that clear a suspicion: one alone would often clear a fault of every second step."""
WHOLE = 4
"""Most steps of a turn that is checked as a whole, which costs no further steps."""


@dataclass
class _WatchedArm:
    reader: StateReader
    left: LastCheck
    repeats: int
    """Round from which on a turn is to be repeated."""
    due: list[int] = field(default_factory=lambda: [0])
    """Earliest rounds of the next checks, in ascending order."""
    suspected: int = 0
    """Clean checks that are still needed since one was off by more than rounding."""


class SpotChecks:
    """Checks the arms of a block while they are timed; without a gate, it checks nothing.

    `rounds` and `seconds` are those planned; `approximate` names the arms with approximate steps.
    """

    def __init__(
        self, gate: Gate | None, rounds: int, seconds: float, approximate: Collection[str] = ()
    ) -> None:
        self._gate = gate
        self._approximate = approximate
        self.chance = random.Random(process_exchange.from_main(secrets.randbits(64)))
        self.rounds, self.seconds = rounds, seconds
        self.reasons: dict[str, str] = {}
        """What is wrong with an arm, by its name."""
        self.spent_s = 0.0
        self._watched: dict[str, _WatchedArm] = {}
        self._kept: list[SpanRecord] = []
        self._planned = False
        self._stateless = gate is not None and not jax.tree.leaves(
            jax.eval_shape(gate.timed.optimizer.init, gate.reference.start)
        )
        """Whether the optimizer has no state."""
        self._step_s = self._budget_s = 0.0
        """Duration of a reference step, and the most time for an arm's checks."""
        self._in_turn = 0
        """Steps of a turn."""

    @property
    def gate(self) -> Gate:
        """The gate; there must be one."""
        assert self._gate is not None, "nothing is checked without a gate"  # noqa: S101
        return self._gate

    @cached_property
    def _due(self) -> DueUpdates:
        return DueUpdates(self.gate.timed.optimizer, self.gate.reference.start)

    def begin(self, arms: Iterable[Arm], turn_of: Callable[[str], None]) -> None:
        """Read the arms' states before the first round, so that programs for this are compiled."""
        began, most = time.monotonic(), max(1, min(FIRST_LOOK, self.rounds) - 2)
        for arm in arms if self._gate is not None else ():
            turn_of(arm.name)
            if arm.train_step is not None:
                reader = StateReader(arm.train_step, self.gate.timed, arm.state)
                if reader.guesses and not reads_rightly(self.gate, reader, arm):
                    reader.optimizer = None
                held, _ = read_moment(self.gate, reader, arm.state)
                left, repeats = self._left(arm.steps, held), 1 + secrets.randbelow(most)
                self._watched[arm.name] = _WatchedArm(reader, left, repeats)
        turn_of("")
        self._budget_s = SHARE * self.seconds / max(1, len(self._watched))
        self.spent_s = time.monotonic() - began

    def _left(
        self, step: int, held: HostState, start: tuple[int, HostState] | None = None
    ) -> LastCheck:
        """Record the state after `step` steps; `start` is an earlier one, with moments."""
        start = (step, held) if self._stateless else start
        return LastCheck(step, digest_of(held.params), scalars(held.opt_state), start)

    def _can_repeat(self, steps: int) -> bool:
        """Whether the reference is fast enough to repeat so many steps, in two orders."""
        return steps * self._step_s <= self._budget_s / 4

    def checked_span(self, arm: Arm, number: int | None, in_turn: int) -> CheckedSpan | None:
        """Return the check of an arm's turn of `in_turn` steps; None if it is not checked.

        `number` is that of the round, or None after the last.
        """
        watched = self._watched.get(arm.name)
        if watched is None or arm.name in self.reasons:
            return None
        if number is not None:
            if not watched.due or number < watched.due[0]:
                return self._repetition(arm, number, in_turn)
            watched.due.pop(0)
        where = "after the last round" if number is None else f"in round {number + 1}"

        @contextmanager
        def check() -> Iterator[None]:
            began = time.monotonic()
            before = pending(self.gate, watched.reader, arm.state)
            read_at = time.monotonic()
            yield
            # A turn that is taken anyway is not the check's time.
            began += taken_anyway * (time.monotonic() - read_at)
            states = before, pending(self.gate, watched.reader, arm.state)
            loss = float(private(arm.losses[-1][1]))
            first_step, took_s = arm.steps - steps + 1, time.monotonic() - began
            kept = SpanRecord(self.gate, arm, where, first_step, steps, states, loss, took_s)
            self._kept.append(kept)

        first, wait_each = self.chance.choices((True, False), k=2)
        steps = self.chance.randint(*SPANS)
        self._in_turn = in_turn
        known = watched.reader.optimizer is not None and arm.name not in self._approximate
        if whole := known and in_turn <= WHOLE:
            steps = in_turn
        elif not known:
            steps = 1  # the second loss depends on what is unknown, such as the optimizer's state
        taken_anyway = whole and number is not None
        return CheckedSpan(first, 0 if whole else steps, wait_each, check())

    def _repetition(self, arm: Arm, number: int, in_turn: int) -> CheckedSpan | None:
        """Repeat a long turn in one round, from a copy of its state; None in other rounds."""
        watched = self._watched[arm.name]
        if number < watched.repeats or in_turn <= WHOLE or arm.name in self._approximate:
            return None
        watched.repeats = self.rounds

        @contextmanager
        def check() -> Iterator[None]:
            start = StateCopy(arm.state, replicas=False)
            yield
            if why := why_other(arm, start, in_turn):
                steps = _named(arm.steps - in_turn + 1, in_turn)
                self.reasons[arm.name] = f"{steps}, in round {number + 1}: {why}"

        return CheckedSpan(True, 0, False, check()) if can_be_repeated(arm) else None

    def finish(self, arms: Iterable[Arm], turn_of: Callable[[str], None]) -> None:
        """Check the last spans, and suspected arms again; then check that no work continues."""
        self.verify(turn_of)
        if self._gate is None:
            return
        for _ in range(CLEARED):  # there are no later rounds for that
            for arm in arms:
                watched = self._watched.get(arm.name)
                if not any(process_exchange.gather(watched is not None and watched.suspected > 0)):
                    continue
                if (checked := self.checked_span(arm, None, self._in_turn)) is not None:
                    turn_of(arm.name)
                    with checked.check:
                        arm.run_spans([(checked.steps or self._in_turn, checked.wait_each)])
            self.verify(turn_of)
        for arm in arms if is_late() else ():
            turn_of(arm.name)
            settle(arm)
            try:
                check_completion(arm)
            except WrongStepError as error:
                self.reasons.setdefault(arm.name, f"after the last round, {error}")
        turn_of("")

    def verify(self, turn_of: Callable[[str], None]) -> None:
        """Check the spans kept since the last call; `turn_of` gets each arm's name, and then ""."""
        if not self._kept:
            return
        began = time.monotonic()
        for kept in self._kept:
            turn_of(kept.arm.name)
            kept.read()
        for kept in self._kept:
            name, watched = kept.arm.name, self._watched[kept.arm.name]
            turn_of(name)
            try:
                why = self._why_wrong(kept, watched)
            except Exception as error:
                if failure(error)[0] != "oom":
                    raise
                why = ""  # too little memory for the reference: the proof before the rounds must do
            # All processes must agree on which arms are checked.
            why = next(filter(None, process_exchange.gather(why)), "")
            if any(process_exchange.gather(watched.suspected > 0)):
                watched.due.insert(0, 0)
            if why:
                steps = _named(kept.first_step, kept.steps)
                self.reasons[name] = f"{steps}, {kept.where}: {why}"
        turn_of("")
        cost_s = sum(kept.took_s for kept in self._kept) + time.monotonic() - began
        if not self._planned:
            self._plan(process_exchange.from_main(cost_s))
            self._planned = True
        self.spent_s += cost_s
        self._kept.clear()

    def _plan(self, cost_s: float) -> None:
        """Choose the rounds between the first and the last in which all arms are checked.

        Their number follows from the cost of checking all arms. Two are adjacent if the reference
        can repeat the few steps between them, or if the optimizer has no state that counts these.
        """
        between = min(MOST, int(SHARE * self.seconds / cost_s), self.rounds) - 2
        if between > 0 and self.rounds > between:
            due = sorted(self.chance.sample(range(1, self.rounds), between))
            if process_exchange.from_main(self._stateless or self._can_repeat(self._in_turn)):
                due[1:] = [number + 1 for number in due[:-1]]
            for watched in self._watched.values():
                watched.due += due

    def _why_wrong(self, kept: SpanRecord, watched: _WatchedArm) -> str:
        """Compare a span with the reference's steps from the same state; empty if it is right."""
        after, before, left = kept.after, kept.before, watched.left
        last = kept.first_step + kept.steps - 1
        keeps = before.opt_state is not None and self._can_repeat(self._in_turn)
        watched.left = self._left(last, after, (kept.first_step - 1, before) if keeps else None)
        is_approximate = kept.arm.name in self._approximate
        steps_since = why_not_training if is_approximate else self._why_left_out
        why = why_not_finite(kept) or self._due.why_miscounted(left, watched.left)
        why = why or steps_since(kept, left) or why_drifting(kept)
        if why or is_approximate:
            return why
        if before.opt_state is None and not self._stateless:
            return self._why_wrong_without_state(kept)
        began = time.monotonic()
        right = kept.stepped()
        self._step_s = (time.monotonic() - began) / kept.steps
        of_state = why_wrong_state(kept, right)
        found = Comparison(kept, right)
        if of_state or not found.is_right:
            # One rounding may flip a ReLU, but hardly in two of a few checks.
            unlucky = not watched.suspected and found.is_within_wide and not of_state
            watched.suspected = CLEARED
            return "" if unlucky else found.why(of_state)
        if lost := why_lost(kept, right):
            return lost
        watched.suspected = max(0, watched.suspected - 1)
        return ""

    def _why_left_out(self, kept: SpanRecord, left: LastCheck) -> str:
        """Describe updates skipped since the last check, as the parameters show; else empty."""
        steps, before = kept.first_step - 1 - left.step, kept.before
        if not steps:
            return ""
        if digest_of(before.params) == left.digest:
            if _moves(before.params, kept.after.params) and self._due.moves(left, steps):
                why = "before: the step skips updates when it is not checked"
                return f"the parameters do not change in the {count(steps, 'step')} {why}"
            return ""
        if left.start is None or not self._can_repeat(steps):
            return ""
        steps = kept.first_step - 1 - left.start[0]
        missing = left_out(self.gate, left.start[1], before, steps)
        why = "before are missing: the step skips updates when it is not checked"
        return f"{missing} of the {count(steps, 'update')} {why}" if missing else ""

    def _why_wrong_without_state(self, kept: SpanRecord) -> str:
        """Check a single step without optimizer state: its loss, and that parameters change."""
        before = kept.before
        start, end = flat(before.params), flat(kept.after.params)
        gradients, batch = self.gate.reference.gradients, self.gate.timed_batches[0]
        at = before.params, before.model_state, batch
        loss = float(gradients(*at)[0][0])
        allowed = self.gate.expected(AS_TIMED).wide[0] * abs(loss)
        allowed += FLOOR * self.gate.timed_eps * abs(self.gate.first_loss)
        if not abs(kept.loss - loss) <= allowed:
            allowed += ROUNDINGS * abs(loss - float(gradients(*at, apart=True)[0][0]))
        if not abs(kept.loss - loss) <= allowed:
            return named_loss(kept, loss)
        now = LastCheck(kept.first_step - 1, 0, None, None)
        if not distance(end, start) and self._due.moves(now, 1):
            return "the parameters do not change"
        return ""


def _named(first: int, steps: int) -> str:
    return f"step {first}" if steps == 1 else f"steps {first} to {first + steps - 1}"


def _moves(before: Params, after: Params) -> bool:
    """Whether parameters change by more than a few roundings, so that an earlier step must too."""
    start = flat(before)
    return distance(flat(after), start) > FLOOR * 2.0**-23 * length(start)
