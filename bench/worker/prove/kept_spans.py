"""Spans of steps whose states before and after are kept for a comparison."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bench.worker.prove.gate import Gate
from bench.worker.prove.held_state import Held, same
from bench.worker.prove.replica_drift import Drift
from bench.worker.prove.timed_reference import Stepped
from bench.worker.time.clock import Arm


class Moment(NamedTuple):
    """An arm's state and replica drift at one moment."""

    held: Held
    drift: Drift


@dataclass
class Kept:
    """The record of one extra span."""

    arm: Arm
    where: str
    first_step: int
    steps: int
    before: Moment
    after: Moment
    loss: float
    took_s: float
    like: Kept = field(init=False, repr=False)
    """The first span of the round that starts from an equal state: itself, if it is the first."""

    def __post_init__(self) -> None:
        self.like = self

    def starts_like(self, other: Kept) -> bool:
        """Whether another span has as many steps, and equal states before them."""
        return self.steps == other.steps and same(self.before.held, other.before.held)

    def ends_like(self, other: Kept) -> bool:
        """Whether another span has an equal loss, and equal states after it."""
        return self.loss == other.loss and same(self.after.held, other.after.held)

    def stepped(self, gate: Gate, **how: Any) -> Stepped:
        """Run the reference over the span; `how` is passed to TimedReference.run."""
        batches, start = self.steps * [gate.timed_batches[0]], readable(gate, self.before.held)
        return gate.reference.run(gate.timed.optimizer, batches, start, **how)


def readable(gate: Gate, held: Held) -> Held:
    """Place an arm's state for the reference, with a new optimizer's state if none was found."""
    opt_state = held.opt_state
    if opt_state is None:
        opt_state = gate.timed.optimizer.init(held.params)
    return Held(*gate.reference.place(held.params, opt_state), held.model_state)
