"""Programs of one step on meshes of growing size: compiled, or by formula. Imports no jax.

Compiling takes seconds a mesh. Of a curve of more meshes than the formula needs, only these are
compiled, and the formula, which the larger of them check, gives the others. Where it does not hold,
meshes are compiled one by one, as far as they can be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bench.project.compiled_programs import Program, Unread
from bench.project.program_formulae import (
    LADDER,
    Formula,
    FormulaError,
    Scaling,
    fit,
    ladder,
)
from bench.records.cells import Block, Cell, StepOptions
from bench.records.mesh import MeshShape

Read = Callable[[Sequence[Cell]], Sequence[Program | Unread]]
"""What compiles cells: bench.project.compiled_programs.programs."""


@dataclass(frozen=True)
class Curve:
    """The same step on meshes that differ in their first axis."""

    workload: str
    size: str
    options: StepOptions
    implementation: str
    family: tuple[tuple[str, int], ...]
    """Axes of the mesh behind the first."""
    first: str
    """The axis that grows."""
    batch: int
    """Of all devices (strong), or of one shard of the batch (weak)."""

    @property
    def subject(self) -> str:
        """`gpt2-nano, bf16`."""
        return f"{self.workload}-{self.size}, {self.options}"

    @property
    def mesh(self) -> str:
        """`data=N,model=2`."""
        return ",".join([f"{self.first}=N", *(f"{name}={size}" for name, size in self.family)])

    def cell(self, chips: int, scaling: Scaling) -> Cell | None:
        """The step on so many chips; None where the mesh or the batch does not divide."""
        others = math.prod(size for _, size in self.family)
        if chips % others:
            return None
        mesh = MeshShape(((self.first, chips // others), *self.family))
        batch = self.batch * mesh.batch_shards if scaling == "weak" else self.batch
        if batch % (mesh.batch_shards * self.options.microbatches):
            return None
        block = Block(self.workload, self.size, mesh, batch, self.options)
        return Cell(block, self.implementation)


@dataclass(frozen=True)
class FormulaOf:
    """A curve's formula, or why it has none."""

    curve: Curve
    formula: Formula | None
    reason: str = ""

    @property
    def error(self) -> float:
        """The largest of its checks; 0 where there are none."""
        return max((check.error for check in self.formula.checks), default=0) if self.formula else 0


def programs(
    curves: Sequence[Curve], chips: Sequence[int], scaling: Scaling, read: Read
) -> tuple[dict[Curve, dict[int, Program | Unread | None]], list[FormulaOf]]:
    """What each curve's step does on each number of chips.

    Args:
      curves: each once.
      chips: how many.
      scaling: along the curves.
      read: what compiles cells.

    Returns:
      Programs by curve and number of chips, None where the mesh or the batch does not divide; and
      the formulae that some of them are by.
    """
    ladders = {curve: _ladder(curve, chips, scaling) for curve in curves}
    direct = [
        cell
        for curve in curves
        for count in chips
        # No check is of sizes below those that the formula is from.
        if count < min((cell.block.mesh.size for cell in ladders[curve]), default=math.inf)
        and (cell := curve.cell(count, scaling)) is not None
    ]
    known = _compiled([*direct, *(cell for cells in ladders.values() for cell in cells)], read)
    formulae = [
        _formula(curve, [known[cell] for cell in cells])
        for curve, cells in ladders.items()
        if cells
    ]
    failed = [one.curve for one in formulae if one.formula is None]
    again = [curve.cell(count, scaling) for curve in failed for count in chips]
    missing = [cell for cell in again if cell is not None and cell not in known]
    known |= _compiled(missing, read)
    by_formula = {one.curve: one.formula for one in formulae}
    return {
        curve: {
            count: _program(curve.cell(count, scaling), curve, by_formula.get(curve), known)
            for count in chips
        }
        for curve in curves
    }, formulae


def _ladder(curve: Curve, chips: Sequence[int], scaling: Scaling) -> list[Cell]:
    """The cells that a formula is fitted to; none where compiling all is less, or it has none."""
    cells = [cell for count in chips if (cell := curve.cell(count, scaling)) is not None]
    if not cells or (len(chips) <= len(LADDER) and max(chips) <= LADDER[-1]):
        return []
    try:
        return ladder(cells[-1], curve.first, scaling)
    except ValueError:
        return []


def _compiled(cells: Sequence[Cell], read: Read) -> dict[Cell, Program | Unread]:
    each = list(dict.fromkeys(cells))
    return dict(zip(each, read(each), strict=True)) if each else {}


def _formula(curve: Curve, found: Sequence[Program | Unread]) -> FormulaOf:
    unread = next((one for one in found if isinstance(one, Unread)), None)
    if unread is not None:
        return FormulaOf(curve, None, unread.reason)
    try:
        return FormulaOf(curve, fit([p for p in found if isinstance(p, Program)], curve.first))
    except (FormulaError, ValueError) as error:
        return FormulaOf(curve, None, str(error))


def _program(
    cell: Cell | None,
    curve: Curve,
    formula: Formula | None,
    known: Mapping[Cell, Program | Unread],
) -> Program | Unread | None:
    if cell is None or cell in known:
        return None if cell is None else known[cell]
    if formula is None:
        return Unread(cell, "it was not compiled, and has no formula")
    try:
        return formula.at(cell.block.mesh.axis(curve.first))
    except (FormulaError, ValueError) as error:
        return Unread(cell, str(error))
