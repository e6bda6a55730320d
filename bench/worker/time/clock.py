"""The clock: spans of steps, taken in interleaved rounds."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import jax

from bench.records.rows import Energy, InputWait, Turn
from bench.worker import process_exchange
from bench.worker.read.compilation import CompilationLog
from bench.worker.time.host_slots import HostWatch
from bench.worker.time.turn_order import balanced_orders

WARM_UP_STEPS = 3
CALIBRATION_STEPS = 3
MAX_STEPS = 1000
LATENCY_SHARE = 0.25
"""Length of the latency span as a share of the throughput span, which verdicts rest on."""


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
    """The number of steps run by the end of each span, and the span's last loss. Losses stay on the
    devices, so that nothing waits for them."""

    def run(self, steps: int, *, wait_each: bool = False) -> int:
        """Run steps and wait until the devices are done.

        With `wait_each`, each step starts once the loss of the step before is there, as in a
        training loop that looks at its loss. The last step is waited for as a whole, loss and
        state. Collecting the state's arrays is the harness's own work: it is left out of the time
        if they all were ready by the end of the span, and otherwise overlaps with waiting for them.

        Returns:
          Nanoseconds.
        """
        start = time.perf_counter_ns()
        state, loss = self.launch(steps, wait_each=wait_each)
        loss.block_until_ready()
        end = time.perf_counter_ns()
        arrays: list[Any] = [leaf for leaf in jax.tree.leaves(state) if isinstance(leaf, jax.Array)]
        # Arrays of PRNG keys cannot say whether they are ready, but can be waited for.
        if not all(hasattr(array, "is_ready") and array.is_ready() for array in arrays):
            jax.block_until_ready(arrays)
            end = time.perf_counter_ns()
        self.state = state
        self.steps += steps
        self.losses.append((self.steps, loss))
        return end - start

    def launch(self, steps: int, *, wait_each: bool) -> tuple[Any, jax.Array]:
        """Run steps, and wait for every loss or for none; return the last state and loss."""
        step, state, batch = self.step, self.state, self.batch
        if wait_each:
            for _ in range(steps):
                state, loss = step(state, batch)
                loss.block_until_ready()
        else:
            for _ in range(steps):
                state, loss = step(state, batch)
        return state, loss

    def waits(self) -> InputWait | None:
        """Time spent waiting for input since the last call; None if the arm takes no input."""
        return None


def steps_per_span(
    arms: list[Arm],
    rounds: int,
    seconds: float,
    turn_of: Callable[[str], None] = lambda _arm: None,
) -> int:
    """Choose the steps of a throughput span so that the rounds together take about `seconds`.

    All arms share the number. Unequal numbers would bias the comparison of microsecond steps: the
    cost of starting and ending a span would be shared by a different number of steps.
    """
    each = []
    for arm in arms:
        turn_of(arm.name)
        each.append(statistics.median(arm.run(1) for _ in range(CALIBRATION_STEPS)))
    turn_of("")
    turn = seconds * 1e9 / rounds / sum(each)
    wash_out = 1
    steps = max(1, min(MAX_STEPS, int((turn - wash_out) / (1 + LATENCY_SHARE))))
    return process_exchange.from_main(steps)


def latency_steps(steps: int) -> int:
    """Steps of the latency span beside a throughput span of `steps`; at least 1."""
    return max(1, round(LATENCY_SHARE * steps))


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Keep Python's cyclic collector from running inside a span.

    What is alive now is frozen, so that collecting between rounds, which only finds what the
    rounds left, takes no time worth mentioning.
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
    rounds: int,
    steps: int,
    seed: int,
    log: CompilationLog,
    after_round: Callable[[list[Turn]], bool],
    turn_of: Callable[[str], None] = lambda _arm: None,
    used: Callable[[], Energy | None] = lambda: None,
) -> tuple[list[Turn], dict[str, int]]:
    """Time all arms in interleaved rounds.

    In a round every arm has one turn: a discarded step, which takes the effect of the switch from
    its predecessor; a throughput span; a latency span.

    Args:
      arms: warm, each with a name of its own.
      rounds: at most.
      steps: of a throughput span.
      seed: of the order of arms.
      log: open, to notice compilation.
      after_round: is given all turns so far, and decides whether to go on.
      turn_of: is called with the arm's name before each turn, and with "" after a round's last.
      used: gives the energy since its last call.

    Returns:
      All turns, and for every arm that compiled programs inside a span, how many: its times are
      useless.
    """
    by_name = {arm.name: arm for arm in arms}
    turns: list[Turn] = []
    compiled: dict[str, int] = {}
    predecessor, waited_steps = "", latency_steps(steps)
    with without_garbage_collection(), HostWatch() as watch:
        for number, order in enumerate(balanced_orders(list(by_name), rounds, seed)):
            watch.slot()  # what happened between rounds belongs to no turn
            used()
            for position, name in enumerate(order):
                arm = by_name[name]
                turn_of(name)
                programs, at = log.programs, time.time()
                wash_out = arm.run(1)
                arm.waits()
                throughput = arm.run(steps)
                latency = arm.run(waited_steps, wait_each=True)
                energy = used()
                if log.programs > programs:
                    compiled[name] = compiled.get(name, 0) + log.programs - programs
                turn = Turn(
                    arm=name,
                    round=number,
                    position=position,
                    predecessor=predecessor,
                    at=round(at, 3),
                    steps=steps,
                    throughput_ns=throughput,
                    latency_steps=waited_steps,
                    latency_ns=latency,
                    wash_out_ns=wash_out,
                    host=watch.slot(),
                )
                if energy is not None:
                    turn["energy"] = energy
                if (waits := arm.waits()) is not None:
                    turn["input"] = waits
                turns.append(turn)
                predecessor = name
            turn_of("")
            gc.collect()
            if not after_round(turns):
                break
    return turns, compiled
