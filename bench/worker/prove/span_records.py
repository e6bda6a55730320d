"""Spans of steps whose states before and after are kept for a comparison."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax

from bench.records.row_parts import AS_TIMED
from bench.worker.prove.carried_state import private
from bench.worker.prove.gate import Gate
from bench.worker.prove.replica_drift import Drift, find_drifts
from bench.worker.prove.state_reader import HostState, StateCopy, StateReader
from bench.worker.prove.timed_reference import ReferenceSteps
from bench.worker.prove.trajectory import STATE, by_path
from bench.worker.time.clock import Arm

Moment = tuple[HostState, dict[str, Drift]]
"""An arm's state at one moment, and the arrays whose replicas differ, by name."""
Pending = Callable[[], Moment]
"""Reads a state after the round."""


def read_moment(gate: Gate, reader: StateReader, state: Any) -> Moment:
    """Copy a state to the host, and compare its replicas."""
    params, model_state = jax.tree.map(private, reader.parts(state))
    mask = gate.expected(AS_TIMED).mask
    drifts = find_drifts(by_path(params) | by_path(model_state, STATE), mask)
    return reader.read(state, (params, model_state)), drifts


def pending(gate: Gate, reader: StateReader, state: Any) -> Pending:
    """Take a state in the rounds: read it at once if that calls no code of a file, or a copy later.

    A state that is elsewhere is read at once, too.
    """
    if reader.is_plain or reader.is_elsewhere:
        moment = read_moment(gate, reader, state)
        return lambda: moment
    copy = StateCopy(state)
    return lambda: read_moment(gate, reader, copy.restored())


@dataclass
class SpanRecord:
    """The record of a checked span."""

    gate: Gate
    arm: Arm
    where: str
    first_step: int
    steps: int
    taken: tuple[Pending, Pending]
    """The states before and after."""
    loss: float
    took_s: float
    before: HostState = field(init=False, repr=False)
    after: HostState = field(init=False, repr=False)
    drifts: tuple[dict[str, Drift], dict[str, Drift]] = field(init=False, repr=False)
    """Arrays whose replicas differ before and after, by name."""

    def read(self) -> None:
        """Read the states, which may call the file's functions; no span follows in this round."""
        read = [taken() for taken in self.taken]
        (self.before, self.after), self.drifts = zip(*read, strict=True)

    def stepped(self, *, apart: bool = False) -> ReferenceSteps:
        """Run the reference over the span; see TimedReference.gradients for `apart`."""
        reference, batches = self.gate.reference, self.steps * [self.gate.timed_batches[0]]
        return reference.run(batches, reference.placed(self.before), apart=apart)
