"""What one device does in a cell's step, as a compiler says. Imports no jax."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from bench.cells import Block, Cell, StepOptions
from bench.mesh import MeshShape
from bench.rows import CellRow, Communication


@dataclass(frozen=True)
class Program:
    """What one device does in a step, as compiled."""

    implementation: str
    workload: str
    size: str
    mesh: MeshShape
    batch: int
    """Global batch."""
    options: StepOptions
    flops: float
    """Of one device's matrix products and convolutions, loops multiplied."""
    accessed_bytes: float
    """Of one device, XLA's count: every operand and result of every operation."""
    memory_bytes: float
    """Of one device: arguments, outputs and temporaries, less what is donated."""
    state_bytes: float
    """Of one device: parameters and optimizer state."""
    communication: tuple[Communication, ...]
    """Of one step and one device."""
    model_flops: float
    """Of the whole step, by the workload's formula."""
    units: float
    """Samples or tokens of a step."""
    unit: str
    bubble: float
    """Idle share of a pipeline's schedule."""
    read: Literal["compiled", "formula"]
    """From programs compiled for this mesh, or from a formula fitted to smaller ones."""

    @property
    def cell(self) -> Cell:
        """What it is the program of."""
        block = Block(self.workload, self.size, self.mesh, self.batch, self.options)
        return Cell(block, self.implementation)


@dataclass(frozen=True)
class Unread:
    """A cell whose program could not be had."""

    cell: Cell
    reason: str


def programs(
    cells: Sequence[Cell],
    implementation_paths: Sequence[str] = (),
    workload_paths: Sequence[str] = (),
) -> list[Program | Unread]:
    """Compile cells' steps, without running them; one result a cell, in their order.

    Args:
      cells: of any meshes up to 1,024 devices; they need not be measured anywhere.
      implementation_paths: files outside implementations/.
      workload_paths: files outside bench/workloads/.
    """
    raise NotImplementedError


def from_row(row: CellRow) -> Program | Unread:
    """The program of a stored run's cell, whose figures were read when it was measured."""
    raise NotImplementedError
