"""One step on meshes of growing size.

One mesh axis grows and the others stay fixed. Under weak scaling, the global batch grows with the
mesh and the batch per shard is fixed; under strong scaling, the global batch is fixed.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal, Self

from bench.records.cells import Block, Cell, StepOptions
from bench.records.mesh import MeshShape

LADDER = (8, 64, 256, 1024)
"""Device counts of the meshes compiled for a formula, if the other axes allow it; its constants
come from the first two."""

Scaling = Literal["weak", "strong"]


@dataclass(frozen=True)
class Curve:
    """One step on meshes that differ in their first axis."""

    workload: str
    size: str
    options: StepOptions
    implementation: str
    family: tuple[tuple[str, int], ...]
    """The mesh axes after the first."""
    first: str
    """The axis that grows."""
    batch: int
    """Global batch (strong scaling) or batch per shard (weak scaling)."""
    scaling: Scaling

    @classmethod
    def through(cls, cell: Cell, scaling: Scaling) -> Self:
        """Return the curve that contains a cell."""
        block, ((first, _), *rest) = cell.block, cell.block.mesh.axes
        batch = block.batch // block.mesh.batch_shards if scaling == "weak" else block.batch
        step = block.workload, block.size, block.options, cell.implementation
        return cls(*step, tuple(rest), first, batch, scaling)

    @property
    def subject(self) -> str:
        """`gpt2-nano, bf16`."""
        return f"{self.workload}-{self.size}, {self.options}"

    @property
    def mesh(self) -> str:
        """`data=N,model=2`."""
        return ",".join([f"{self.first}=N", *(f"{name}={size}" for name, size in self.family)])

    def cell(self, chips: int) -> Cell | None:
        """Return the step on this many chips; None if they do not divide into mesh or batch."""
        size, rest = divmod(chips, math.prod(size for _, size in self.family))
        mesh = MeshShape(((self.first, size), *self.family))
        batch = self.batch * mesh.batch_shards if self.scaling == "weak" else self.batch
        if rest or batch % (mesh.batch_shards * self.options.microbatches):
            return None
        block = Block(self.workload, self.size, mesh, batch, self.options)
        return Cell(block, self.implementation)

    def ladder(self) -> list[Cell]:
        """Return the cells to compile for a formula: those of LADDER that mesh and batch allow."""
        if self.first not in ("data", "fsdp"):
            return []
        cells = [cell for devices in LADDER if (cell := self.cell(devices)) is not None]
        # Without members along the axis, there are no collectives.
        return [cell for cell in cells if cell.block.mesh.axis(self.first) > 1]


def step_elsewhere(cell: Cell, precision: str | None) -> Cell:
    """Return a run's cell for other hardware: in the plain environment, and in one process.

    A `precision` of None keeps the cell's own.
    """
    options = cell.block.options
    options = replace(options, precision=precision or options.precision, variant="", processes=1)
    return replace(cell, block=replace(cell.block, options=options))
