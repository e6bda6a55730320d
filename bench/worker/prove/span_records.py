"""Spans of steps whose states before and after are kept for a comparison."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax

from bench.records.row_parts import AS_TIMED
from bench.worker.prove.carried_state import private
from bench.worker.prove.gate import Gate
from bench.worker.prove.replica_drift import Drift, find_drifts
from bench.worker.prove.state_reader import HostState, StateCopy, StateReader, same
from bench.worker.prove.timed_reference import ReferenceSteps
from bench.worker.prove.trajectory import by_path, state_by_path
from bench.worker.time.clock import Arm


class ArmSnapshot(NamedTuple):
    """An arm's state at one moment, and the arrays whose replicas differ, by name."""

    held: HostState
    drifts: dict[str, Drift]


def read_moment(
    gate: Gate, reader: StateReader, state: Any, *, moments: bool = True
) -> ArmSnapshot:
    """Copy a state to the host, with or without its optimizer's moments; compare its replicas."""
    params, model_state = jax.tree.map(private, reader.parts(state))
    mask = gate.expected(AS_TIMED).mask
    drifts = find_drifts(by_path(params) | state_by_path(model_state), mask)
    return ArmSnapshot(reader.read(state, (params, model_state), moments=moments), drifts)


class PendingSnapshot:
    """A state in the rounds, read at once if it is elsewhere or this calls no code of the file."""

    def __init__(self, gate: Gate, reader: StateReader, state: Any) -> None:
        self._read = partial(read_moment, gate, reader)
        self._moment: ArmSnapshot | None = None
        if reader.is_plain or reader.is_elsewhere:
            self._moment = self._read(state)
        else:
            self.copy = StateCopy(state, reader.places)

    def moment(self, later: Any) -> ArmSnapshot:
        """Return the snapshot, read now if not yet; `later` is a later state of the arm."""
        if self._moment is None:
            self._moment = self._read(self.copy.restored(later))
        return self._moment


@dataclass
class SpanRecord:
    """The record of a checked span."""

    gate: Gate
    reader: StateReader
    arm: Arm
    where: str
    first_step: int
    steps: int
    taken: tuple[PendingSnapshot, PendingSnapshot]
    """The states before and after."""
    loss: float
    took_s: float
    before: ArmSnapshot = field(init=False, repr=False)
    after: ArmSnapshot = field(init=False, repr=False)
    like: SpanRecord = field(init=False, repr=False)
    """The first span of the round that starts from an equal state: itself, if it is the first."""

    def __post_init__(self) -> None:
        self.like = self

    def read(self) -> None:
        """Read the states, which may call the file's functions; no span follows in this round."""
        self.before, self.after = (taken.moment(self.arm.state) for taken in self.taken)

    def starts_like(self, other: SpanRecord) -> bool:
        """Whether another span has as many steps, and starts from an equal state."""
        return self.steps == other.steps and same(self.before.held, other.before.held)

    def ends_like(self, other: SpanRecord) -> bool:
        """Whether another span has an equal loss, and ends in an equal state."""
        return self.loss == other.loss and same(self.after.held, other.after.held)

    def stepped(self, **how: Any) -> ReferenceSteps:
        """Run the reference over the span; `how` is passed to TimedReference.run."""
        timed, batches = self.gate.timed, self.steps * [self.gate.timed_batches[0]]
        start = placed(self.gate, self.before.held)
        return self.gate.reference.run(timed.optimizer, batches, start, **how)


def placed(gate: Gate, held: HostState) -> HostState:
    """Place an arm's state for the reference, with a new optimizer's state if none was found."""
    opt_state = held.opt_state
    if opt_state is None:
        opt_state = gate.timed.optimizer.init(held.params)
    return HostState(*gate.reference.place(held.params, opt_state), held.model_state)
