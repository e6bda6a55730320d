"""The clock: spans of steps, taken in interleaved rounds."""

import gc
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Self

import jax
import numpy as np
from jaxlib.xla_client import ArrayImpl, batched_block_until_ready

from bench.contract import TrainStep
from bench.records.numbers import percent
from bench.records.row_parts import BoardState, Energy
from bench.records.rows import HostSlot, InputWait, Turn
from bench.worker import process_exchange
from bench.worker.prove.failures import WrongStepError
from bench.worker.read.compilation import CompilationLog
from bench.worker.time.moved_states import MOVED_EVERY, is_rebuilt, moved
from bench.worker.time.turn_order import Orders
from bench.worker.time.turn_slots import HostWatch

now, _leaves, _wait_for_all = time.perf_counter_ns, jax.tree.leaves, batched_block_until_ready
wait_for, _is_ready = ArrayImpl.block_until_ready, ArrayImpl.is_ready
"""Bound before any step is loaded, so that a step cannot replace the clock that times it, not even
for a moment."""

WARM_UP_STEPS = 3
CALIBRATION_STEPS = 3
MAX_STEPS = 1000
OUTSIDE_SHARE = 0.25
FIRST_STEPS = 8
HIDDEN_NS = 2_000_000
FEWEST_TURNS = 8
"""An arm is not trusted if the work between its spans exceeds OUTSIDE_SHARE of them, or if its
wash-out step takes as long as FIRST_STEPS others; both only above HIDDEN_NS, and in each of at
least FEWEST_TURNS turns, because a busy host delays any step. Flattening a large state takes a few
percent of a turn, and a wash-out step 1.2 times as long as others."""
LATENCY_SHARE = 0.25
"""Length of the latency span as a share of the throughput span, on which verdicts are based."""


def done_at(state: Any, loss: Any) -> int:
    """Wait until a step's loss and state are ready; return when they were, by `now`.

    Flattening the state is the harness's own work: it does not count if all arrays were ready when
    the loss was, and otherwise overlaps with waiting for them. WrongStepError if the loss is no
    array.
    """
    if type(loss) is not ArrayImpl:
        raise WrongStepError(f"the loss becomes a {type(loss).__name__} while it is timed")
    wait_for(loss)
    end = now()
    leaves = _leaves(state)
    arrays = [leaf for leaf in leaves if type(leaf) is ArrayImpl]
    # Arrays of PRNG keys have no is_ready, but can be waited for.
    keys = [x for x in leaves if type(x) is not ArrayImpl and isinstance(x, jax.Array)]
    if keys or not all(map(_is_ready, arrays)):
        _wait_for_all(arrays)
        for key in keys:
            key.block_until_ready()
        end = now()
    return end


@dataclass
class Arm:
    """A step with its state and one placed batch, ready to run."""

    name: str
    step: Callable[[Any, Any], tuple[Any, jax.Array]]
    state: Any
    batch: Any
    steps: int = 0
    """Steps run so far."""
    losses: list[tuple[int, jax.Array]] = field(default_factory=list)
    """For each span, the number of steps run by its end, and its last loss. Losses stay on the
    devices, so that nothing waits for them."""
    train_step: TrainStep | None = None
    """The train step of the arm; None if its steps are not checked in the rounds."""
    turns_ns: list[tuple[float, float, int, int]] = field(default_factory=list)
    """For each turn, the nanoseconds of the wash-out step, of a step of the throughput span, of all
    spans, and of the time between these."""
    waited: InputWait | None = None
    """Waits for input in the last span without a wait for each step; None if it takes no input."""
    rebuilds_state: bool = False
    """Whether each step makes the containers of its state anew; known once the arm is warm."""

    def run(self, steps: int, *, wait_each: bool = False) -> int:
        """Run steps and wait until the devices are done.

        Return the nanoseconds. With `wait_each`, each step starts once the previous step's loss is
        ready, as in a training loop that reads its loss. After the last step, loss and state are
        both waited for.
        """
        start = now()
        state, loss = self.launch(steps, wait_each=wait_each)
        end = done_at(state, loss)
        self.state = state
        self.steps += steps
        self.losses.append((self.steps, loss))
        return end - start

    def run_spans(self, spans: Sequence[tuple[int, bool]]) -> list[int]:
        """Run spans of these steps, which wait for each step or not; return their nanoseconds."""
        began, took = now(), []
        for steps, wait_each in spans:
            took.append(self.run(steps, wait_each=wait_each) if steps else 0)
        if len(spans) > 1:
            each = [ns / steps for ns, (steps, _) in zip(took, spans, strict=True) if steps]
            self.turns_ns.append((each[0], each[1], sum(took), now() - began - sum(took)))
        return took

    def launch(self, steps: int, *, wait_each: bool) -> tuple[Any, jax.Array]:
        """Run steps, and wait for every loss or for none; return the last state and loss."""
        step, state, batch = self.step, self.state, self.batch
        for _ in range(steps):
            state, loss = step(state, batch)
            if wait_each:
                wait_for(loss)
        return state, loss

    def warm_up(self) -> Self:
        """Run the arm until nothing compiles any more."""
        for _ in range(WARM_UP_STEPS):
            before = self.state
            self.run(1)
        self.rebuilds_state = is_rebuilt(before, self.state)
        return self

    def begin_rounds(self) -> None:
        """Forget what the arm's own processes did so far; an arm in the worker has none."""

    def children_cpu_s(self) -> float:
        """CPU seconds of the arm's own processes so far; an arm in the worker has none."""
        return 0.0

    def why_untrusted(self) -> str:
        """Describe how the arm broke the rules of the rounds; empty if it did not.

        Code of its file that runs outside of the spans, as in the flattening of a class of its own,
        or in the step before them, may do the work of the steps that are timed.
        """
        if len(self.turns_ns) < FEWEST_TURNS:
            return ""
        turns = np.array(self.turns_ns)
        (first, *_, outside), (_, step, spans, _) = turns.min(0), np.median(turns, 0)
        if outside > max(HIDDEN_NS, OUTSIDE_SHARE * spans):
            part = percent(outside / (spans + outside))
            return f"{part} of its turns is work between its spans, which is not timed"
        if first > max(HIDDEN_NS, FIRST_STEPS * step):
            many = f"as long as {first / step:.0f} others"
            return f"the step before its spans, which is not timed, takes {many}"
        return ""


def steps_per_span(
    arms: list[Arm], rounds: int, seconds: float, turn_of: Callable[[str], None] = lambda _arm: None
) -> int:
    """Choose the steps of a throughput span so that all rounds together take about `seconds`.

    All arms use the same number. Unequal numbers would bias comparisons of microsecond steps,
    because the fixed cost of a span would be spread over a different number of steps.
    """
    each = []
    for arm in arms:
        turn_of(arm.name)
        each.append(statistics.median([arm.run(1) for _ in range(CALIBRATION_STEPS)]))
    turn_of("")
    turn = seconds * 1e9 / rounds / sum(each)
    steps = max(1, min(MAX_STEPS, int((turn - 1) / (1 + LATENCY_SHARE))))  # 1 is the wash-out
    return process_exchange.from_main(steps)


def latency_steps(steps: int) -> int:
    """Return the steps of a latency span; none beside a single step, whose time is a latency."""
    return 0 if steps == 1 else max(1, round(LATENCY_SHARE * steps))


@dataclass(frozen=True)
class CheckedSpan:
    """Spans that are checked as a whole: a turn's own, or an extra, untimed one."""

    first: bool
    """Whether an extra span is the first of its turn; otherwise it is the last."""
    steps: int
    """Steps of the extra span; 0 if the turn's own spans are checked together."""
    wait_each: bool
    check: AbstractContextManager[None]
    """A context of the spans, which reads the states before and after."""


def _move(number: int, arms: Iterable[Arm], turn_of: Callable[[str], None]) -> None:
    """Move the arms' states after every MOVED_EVERY-th round."""
    if (number + 1) % MOVED_EVERY == 0:
        for arm in arms:
            turn_of(arm.name)
            arm.state = moved(arm.state, rebuilt=arm.rebuilds_state)
        turn_of("")


Readings = tuple[BoardState | None, Energy | None, HostSlot]
"""The boards, the energy and the host's activity of a turn."""


def take_turn(
    arm: Arm,
    spans: Sequence[tuple[int, bool]],
    checked: CheckedSpan | None,
    log: CompilationLog,
    read: Callable[[], Readings],
) -> tuple[list[int], int, Readings]:
    """Run an arm's spans, each given by its number of steps and whether to wait for each step.

    All spans run from the same line of code, so that the step cannot distinguish a check's own.
    Return the nanoseconds of the timed spans, the number of programs that they compiled, and the
    result of `read`: the boards, and the energy and the host's activity since its last call.
    """
    groups = [(spans, checked is not None and not checked.steps)]
    if checked is not None and checked.steps:
        groups.insert(0 if checked.first else 1, ([(checked.steps, checked.wait_each)], True))
    for group, is_checked in groups:
        with checked.check if checked is not None and is_checked else nullcontext():
            if checked is not None:
                read()  # what is done for a check counts for no turn
            programs = log.programs
            took = arm.run_spans(group)
            if group is spans:
                found = took, log.programs - programs, read()
    if checked is not None:
        read()
    return found


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Keep Python's cyclic collector from running inside a span.

    Objects that are alive now are frozen, so that collecting between rounds, which then finds only
    garbage of the rounds, takes negligible time.
    """
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


def measure(
    arms: list[Arm],
    steps: int,
    seed: int,
    log: CompilationLog,
    after_round: Callable[[list[Turn]], Sequence[str] | None],
    turn_of: Callable[[str], None] = lambda _arm: None,
    used: Callable[[], Energy | None] = lambda: None,
    checked_span: Callable[[Arm, int | None, int], CheckedSpan | None] = lambda *_: None,
    boards: Callable[[], BoardState | None] = lambda: None,
) -> tuple[list[Turn], dict[str, int]]:
    """Time all arms in interleaved rounds; docs/design/measuring.md explains the turns.

    Arms that have left the rounds return in every REENTRY-th, so that a later drift shows.

    Args:
      arms: warm arms with distinct names.
      steps: number of steps in a throughput span.
      seed: seed of the order of arms.
      log: an open log, which detects compilation.
      after_round: maps all turns so far to the arms that continue; an empty sequence ends the
        rounds, and None changes nothing.
      turn_of: called with the arm's name before each turn, and with "" after a round's last.
      used: returns the energy since its last call.
      checked_span: chooses what is checked of an arm's turn in a round of this number, or after
        the last round (None); the last argument is the number of steps in a turn.
      boards: returns the state of the GPUs.

    Returns:
      All turns, and the number of programs that each arm compiled inside spans, if any; the times
      of such arms are invalid.
    """
    by_name = {arm.name: arm for arm in arms}
    turns: list[Turn] = []
    compiled = Counter[str]()
    waited_steps = latency_steps(steps)
    spans = [(1, False), (steps, False), (waited_steps, True)]
    in_turn = sum(number for number, _ in spans)

    def read() -> Readings:
        return boards(), used(), watch.slot()

    host = HostWatch(more_cpu_s=lambda: sum(arm.children_cpu_s() for arm in arms))
    with without_garbage_collection(), host as watch:
        orders = Orders(list(by_name), seed)
        for number, order in enumerate(orders):
            watch.slot()  # activity between rounds belongs to no turn
            used()
            for name in order:
                arm = by_name[name]
                turn_of(name)
                gc.disable()  # a step may have enabled it
                at, checked = time.time(), checked_span(arm, number, in_turn)
                (wash_out, throughput, latency), programs, (board, energy, slot) = take_turn(
                    arm, spans, checked, log, read
                )
                compiled[name] += programs
                turn = Turn(
                    arm=name,
                    round=number,
                    at=round(at, 6),
                    steps=steps,
                    throughput_ns=throughput,
                    latency_steps=waited_steps,
                    latency_ns=latency,
                    wash_out_ns=wash_out,
                    host=slot,
                )
                known = {"energy": energy, "boards": board, "input": arm.waited}
                turn.update({k: v for k, v in known.items() if v is not None})  # type: ignore[typeddict-item]
                if checked is not None:
                    turn["checked"] = True
                turns.append(turn)
            turn_of("")
            gc.collect()
            going_on = after_round(turns)
            if going_on is not None:
                if not going_on:
                    break
                orders.keep(going_on)
            _move(number, [by_name[name] for name in order], turn_of)
        for arm in arms:
            turn_of(arm.name)
            if (checked := checked_span(arm, None, in_turn)) is not None:
                take_turn(arm, spans[:1] if checked.steps else spans, checked, log, read)
        turn_of("")
    return turns, dict(+compiled)
