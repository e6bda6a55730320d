"""Programs of one step on meshes of growing size: compiled, or by formula.

Compiling takes seconds per mesh. For a curve with more meshes than a formula needs, only the
formula's meshes are compiled, the larger of them check it, and it gives all others. If it does not
hold, the meshes are compiled one by one, as far as possible.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from bench.project.compiled_programs import Program, Read, Unread
from bench.project.program_formulae import LADDER, Formula, Scaling, fit, ladder
from bench.records.cells import Block, Cell, StepOptions
from bench.records.mesh import MeshShape


@dataclass(frozen=True)
class Curve:
    """The same step on meshes that differ in their first axis."""

    workload: str
    size: str
    options: StepOptions
    implementation: str
    family: tuple[tuple[str, int], ...]
    """The mesh axes after the first."""
    first: str
    """The axis that grows."""
    batch: int
    """Global batch (strong scaling), or batch of one shard (weak scaling)."""

    @property
    def subject(self) -> str:
        """`gpt2-nano, bf16`."""
        return f"{self.workload}-{self.size}, {self.options}"

    @property
    def mesh(self) -> str:
        """`data=N,model=2`."""
        return ",".join([f"{self.first}=N", *(f"{name}={size}" for name, size in self.family)])

    def cell(self, chips: int, scaling: Scaling) -> Cell | None:
        """The step on so many chips; None if they do not divide into the mesh, or the batch."""
        others = math.prod(size for _, size in self.family)
        if chips % others:
            return None
        mesh = MeshShape(((self.first, chips // others), *self.family))
        batch = self.batch * mesh.batch_shards if scaling == "weak" else self.batch
        if batch % (mesh.batch_shards * self.options.microbatches):
            return None
        block = Block(self.workload, self.size, mesh, batch, self.options)
        return Cell(block, self.implementation)


def programs(
    curves: Sequence[Curve], chips: Sequence[int], scaling: Scaling, read: Read
) -> tuple[dict[Curve, dict[int, Program | Unread | None]], dict[Curve, Formula | str]]:
    """The programs of each curve on each number of chips.

    Args:
      curves: each once.
      chips: numbers of chips, in order.
      scaling: along the curves.
      read: compiles cells.

    Returns:
      Programs by curve and number of chips, None where the mesh or the batch does not divide; and
      the formulae of curves, or the reasons why they have none.
    """
    ladders = {curve: _ladder(curve, chips, scaling) for curve in curves}
    direct = [
        cell
        for curve, rungs in ladders.items()
        for count in chips
        # No check covers sizes below those that the formula comes from.
        if count < min((cell.block.mesh.size for cell in rungs), default=math.inf)
        and (cell := curve.cell(count, scaling)) is not None
    ]
    known: dict[Cell, Program | Unread] = {}

    def compile_all(cells: Sequence[Cell]) -> None:
        missing = [cell for cell in dict.fromkeys(cells) if cell not in known]
        if missing:
            known.update(zip(missing, read(missing), strict=True))

    compile_all([*direct, *(cell for rungs in ladders.values() for cell in rungs)])
    formulae = {
        curve: _formula(curve, [known[cell] for cell in rungs])
        for curve, rungs in ladders.items()
        if rungs
    }
    failed = [curve for curve, formula in formulae.items() if isinstance(formula, str)]
    again = (curve.cell(count, scaling) for curve in failed for count in chips)
    compile_all([cell for cell in again if cell is not None])

    def program(curve: Curve, count: int) -> Program | Unread | None:
        cell = curve.cell(count, scaling)
        if cell is None:
            return None
        if cell in known:
            return known[cell]
        formula = formulae.get(curve, "")
        if isinstance(formula, str):
            return Unread(cell, "it was not compiled, and has no formula")
        try:
            return formula.at(cell.block.mesh.axis(curve.first))
        except ValueError as error:
            return Unread(cell, str(error))

    return {curve: {count: program(curve, count) for count in chips} for curve in curves}, formulae


def _ladder(curve: Curve, chips: Sequence[int], scaling: Scaling) -> list[Cell]:
    """The cells of a curve's formula; none if it can have none, or compiling all is less work."""
    cells = [cell for count in chips if (cell := curve.cell(count, scaling)) is not None]
    if not cells or (len(chips) <= len(LADDER) and max(chips) <= LADDER[-1]):
        return []
    try:
        return ladder(cells[-1], curve.first, scaling)
    except ValueError:
        return []


def _formula(curve: Curve, compiled: Sequence[Program | Unread]) -> Formula | str:
    """The formula of compiled programs, or the reason why there is none."""
    programs = [one for one in compiled if isinstance(one, Program)]
    unread = next((one for one in compiled if isinstance(one, Unread)), None)
    try:
        return unread.reason if unread else fit(programs, curve.first)
    except ValueError as error:
        return str(error)
