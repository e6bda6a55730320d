"""Programs of meshes that are too large to compile, extrapolated from smaller compiled ones.

One mesh axis grows and the others stay. Under weak scaling the global batch grows with it, and the
batch of a shard stays; under strong scaling the global batch stays. Every figure of a device's
program then follows

    figure(n) = constant + divided / n

in the axis's size n, because a device's share of any array is either the whole array for every n or
an nth of it: parameters are replicated or divided over the axis; activations have the size of a
device's part of the batch, which is constant under weak scaling and an nth of the global batch
under strong scaling. FLOPs and memory are sums over operations on such shares, and the payload of a
collective is one such share. The number of collectives depends on the program's structure, not on
n. The number of members of a collective along the axis grows with the axis.

A real program may break this rule: a parameter of 768 rows can be divided by 256, and is replicated
over 512 devices. Therefore two compiled sizes give the constants, and all others check them. A
program whose figures are off by more than TOLERANCE, or whose collectives differ, is not
extrapolated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from bench.project.compiled_programs import MOST_DEVICES, Program
from bench.records.cells import Cell
from bench.records.collective_kinds import bus_factor
from bench.records.mesh import MeshShape
from bench.records.rows import Communication

TOLERANCE = 0.01
"""Largest relative error of a figure."""

LADDER = (8, 64, 256, 1024)
"""Devices of the meshes that are compiled, if the other axes allow it; the constants come from the
first two."""

LEAST_SIZES = 3
"""Compiled sizes that a formula needs: two for its constants, and one to check them."""

Scaling = Literal["weak", "strong"]

_FIGURES = ("flops", "memory_bytes", "state_bytes")

_ROUNDING = 1e-9
"""A constant below this share of the figures that it comes from is rounding error."""


@dataclass(frozen=True)
class Term:
    """A figure as a function of the axis's size n: constant + divided / n."""

    constant: float
    divided: float

    def at(self, size: int) -> float:
        """The figure at this size."""
        return self.constant + self.divided / size


@dataclass(frozen=True)
class Check:
    """A figure of a compiled program, and the formula's value."""

    size: int
    """Size of the axis."""
    figure: str
    """`flops`, or a collective: `payload_bytes of all-reduce over data of f32`."""
    predicted: float
    compiled: float

    @property
    def error(self) -> float:
        """Relative to the compiled figure."""
        if self.predicted == self.compiled:
            return 0.0
        return abs(self.predicted - self.compiled) / self.compiled if self.compiled else math.inf


class FormulaError(ValueError):
    """A program does not follow the formula; the message says how.

    Attributes:
      checks: all figures that were compared, as far as that was possible.
    """

    def __init__(self, message: str, checks: Sequence[Check] = ()) -> None:
        super().__init__(message)
        self.checks = tuple(checks)


@dataclass(frozen=True)
class Formula:
    """A program as a function of the size of one axis; `fit` makes it."""

    smallest: Program
    """The smallest compiled program."""
    axis: str
    scaling: Scaling
    fitted: tuple[int, int]
    """Sizes that the constants come from."""
    terms: Mapping[str, Term]
    """By the names of figures, as in `checks`."""
    checks: tuple[Check, ...]
    """At all other compiled sizes."""

    @property
    def error(self) -> float:
        """The largest error of the checks."""
        return max(check.error for check in self.checks)

    def at(self, size: int) -> Program:
        """The program at a size of the axis.

        Raises:
          ValueError: the global batch does not divide into so many shards.
          FormulaError: a figure would be negative, or so small that the error of its checks exceeds
            TOLERANCE of it; or a shard would hold a single sample although none did where the
            formula was checked: arrays then lose a dimension, and other operations fuse.
        """
        cell = grown(self.smallest.cell, self.axis, size, self.scaling)
        checked = max(check.size for check in self.checks)
        if _rows(cell) == 1 < _rows(grown(cell, self.axis, checked, self.scaling)):
            raise FormulaError(
                f"{cell.block.name}: a shard would compute one sample at a time, and no program "
                f"that does so was compiled ({self.axis}={checked} at most)"
            )
        growth = size / self.smallest.mesh.axis(self.axis)
        work = growth if self.scaling == "weak" else 1.0
        figures = {name: term.at(size) for name, term in self.terms.items()}
        negative = [name for name, value in figures.items() if value < 0]
        if negative:
            raise FormulaError(f"at {self.axis}={size}, {', '.join(negative)} would be below 0")
        # The divided part of a figure shrinks as the axis grows; an error of its constant does not.
        for check in self.checks:
            off = abs(check.predicted - check.compiled)
            if size > check.size and off > TOLERANCE * figures[check.figure]:
                raise FormulaError(
                    f"at {self.axis}={size}, {check.figure} would be {figures[check.figure]:.6g}, "
                    f"and {off:.3g}, the error at {self.axis}={check.size}, is more than "
                    f"{TOLERANCE:.0%} of that"
                )
        return replace(
            self.smallest,
            mesh=cell.block.mesh,
            batch=cell.block.batch,
            accessed_bytes=None,
            flops=figures["flops"],
            memory_bytes=figures["memory_bytes"],
            state_bytes=figures["state_bytes"],
            communication=tuple(
                _with_payload(_grown_row(row, self.axis, growth), figures[_name(row)])
                for row in self.smallest.communication
            ),
            model_flops=self.smallest.model_flops * work,
            units=self.smallest.units * work,
            read="formula",
        )


def grown(cell: Cell, axis: str, size: int, scaling: Scaling) -> Cell:
    """The cell with another size of `data` or `fsdp`, and under weak scaling another batch.

    Raises:
      ValueError: the mesh lacks the axis, the axis does not divide the batch, or the global batch
        does not divide into the shards.
    """
    block, own = cell.block, dict(cell.block.mesh.axes)
    if axis not in own or axis not in ("data", "fsdp"):
        raise ValueError(f"{block.mesh} has no axis {axis!r} that a batch is split over")
    mesh = MeshShape(tuple((name, size if name == axis else n) for name, n in own.items()))
    growth = Fraction(size, own[axis]) if scaling == "weak" else Fraction(1)
    batch = block.batch * growth
    parts = mesh.batch_shards * block.options.microbatches
    if batch % parts:
        raise ValueError(f"{mesh}: a global batch of {batch} does not divide into {parts} parts")
    return replace(cell, block=replace(block, mesh=mesh, batch=int(batch)))


def _rows(cell: Cell) -> int:
    """Samples that a device computes at a time."""
    return cell.block.batch // (cell.block.mesh.batch_shards * cell.block.options.microbatches)


def ladder(cell: Cell, axis: str, scaling: Scaling) -> list[Cell]:
    """The cells to compile for a formula: those of LADDER that the mesh and the batch allow.

    Raises:
      ValueError: as `grown` does.
    """
    others = cell.block.mesh.size // cell.block.mesh.axis(axis)
    cells = []
    for devices in LADDER:
        size = devices // others
        if devices % others or size < 2:  # noqa: PLR2004 - a single device has no collectives
            continue
        try:
            cells.append(grown(cell, axis, size, scaling))
        except ValueError:
            # Under strong scaling, larger meshes may not divide the batch; the others suffice.
            if scaling == "weak":
                raise
    return cells


def fit(programs: Sequence[Program], axis: str) -> Formula:
    """The formula of compiled programs that differ only in the size of one axis.

    The two smallest sizes give the constants, and the formula is checked at the others. It needs at
    least three sizes of 2 or more.

    Raises:
      ValueError: the programs are not of that kind.
      FormulaError: the programs do not follow the formula.
    """
    ordered = sorted(programs, key=lambda program: program.mesh.axis(axis))
    scaling = _scaling(ordered, axis)
    first, second, *others = ordered
    for program in ordered[1:]:
        _same_structure(first, program, axis)
    sizes = first.mesh.axis(axis), second.mesh.axis(axis)
    values = (_values(first), _values(second))
    terms = {name: _term(sizes, (values[0][name], values[1][name])) for name in values[0]}
    checks = tuple(
        Check(size, name, terms[name].at(size), value)
        for program in others
        for size in [program.mesh.axis(axis)]
        for name, value in _values(program).items()
    )
    wrong = [check for check in checks if check.error > TOLERANCE]
    if wrong:
        worst = max(wrong, key=lambda check: check.error)
        more = f"; {len(wrong) - 1} other figures are off as well" if len(wrong) > 1 else ""
        raise FormulaError(
            f"{first.cell.name}: at {axis}={worst.size}, {worst.figure} is {worst.compiled:.6g} as "
            f"compiled, and {worst.predicted:.6g} by the formula from {axis}={sizes[0]} and "
            f"{axis}={sizes[1]}, which is more than {TOLERANCE:.0%} off{more}",
            checks,
        )
    return Formula(first, axis, scaling, sizes, terms, checks)


def _scaling(ordered: Sequence[Program], axis: str) -> Scaling:
    """The scaling along which the programs were compiled; raises ValueError if there is none."""
    sizes = [program.mesh.axis(axis) for program in ordered]
    if not LEAST_SIZES <= len(set(sizes)) == len(sizes) or sizes[0] < 2:  # noqa: PLR2004
        raise ValueError(
            f"a formula needs three different sizes of {axis}, each of 2 at least, and has "
            f"{', '.join(map(str, sizes)) or 'none'}"
        )
    largest = ordered[-1].mesh.size
    if largest > MOST_DEVICES or any(program.read != "compiled" for program in ordered):
        raise ValueError("a formula is made of compiled programs")
    cell = ordered[0].cell
    scalings: tuple[Scaling, Scaling] = ("weak", "strong")
    for scaling in scalings:
        if all(_is_grown(program, cell, axis, scaling) for program in ordered):
            return scaling
    names = ", ".join(program.cell.name for program in ordered)
    raise ValueError(f"these differ by more than {axis} and the batch that goes with it: {names}")


def _is_grown(program: Program, cell: Cell, axis: str, scaling: Scaling) -> bool:
    try:
        return program.cell == grown(cell, axis, program.mesh.axis(axis), scaling)
    except ValueError:
        return False


def _same_structure(first: Program, other: Program, axis: str) -> None:
    """Raise FormulaError if two programs do not communicate in the same way."""
    growth = other.mesh.axis(axis) / first.mesh.axis(axis)
    rows, others = (
        {_name(row): row for row in program.communication} for program in (first, other)
    )
    at = f"{first.cell.name}: at {axis}={other.mesh.axis(axis)}"
    if different := sorted(rows.keys() ^ others.keys()):
        raise FormulaError(
            f"{at} and {axis}={first.mesh.axis(axis)}, the communication differs: only one has "
            + "; ".join(different)
        )
    for name, row in rows.items():
        if not row["axes"]:
            raise FormulaError(f"{at}, a collective is along no axis of the mesh: {name}")
        own, expected = others[name], _grown_row(row, axis, growth)
        if (own["count"], own["members"]) != (expected["count"], expected["members"]):
            raise FormulaError(
                f"{at}, a step has {own['count']} of {_what(row)} among {own['members']} members, "
                f"but {expected['count']} among {expected['members']} were expected"
            )
    if first.bubble != other.bubble:
        raise FormulaError(f"{at}, the bubble is {other.bubble:.3g} and not {first.bubble:.3g}")


def _values(program: Program) -> dict[str, float]:
    """A program's figures by their names."""
    own = {name: float(getattr(program, name)) for name in _FIGURES}
    return own | {_name(row): float(row["payload_bytes"]) for row in program.communication}


def _term(sizes: tuple[int, int], values: tuple[float, float]) -> Term:
    """The line through two points, in 1 / n."""
    (small, large), (first, second) = sizes, values
    if first == second:
        return Term(first, 0.0)
    divided = (first - second) / (1 / small - 1 / large)
    constant = second - divided / large
    return Term(constant if abs(constant) > _ROUNDING * max(values) else 0.0, divided)


def _name(row: Communication) -> str:
    """The name of a collective's payload, which is unique within a program."""
    return f"payload_bytes of {_what(row)}"


def _what(row: Communication) -> str:
    """`all-gather over data of f32`."""
    axes = ", ".join(row["axes"]) or "no axis"
    returned = ", returned" if row.get("returned") else ""
    return f"{row['kind']} over {axes} of {', '.join(row['dtypes'])}{returned}"


def _grown_row(row: Communication, axis: str, growth: float) -> Communication:
    """The row with as many members as the grown axis has. A collective-permute keeps its pairs."""
    members = row["members"]
    if axis in row["axes"] and row["kind"] != "collective-permute":
        members = round(members * growth)
    return {**row, "members": members}


def _with_payload(row: Communication, payload: float) -> Communication:
    wire = payload * bus_factor(row["kind"], row["members"])
    return {**row, "payload_bytes": round(payload), "wire_bytes": wire}
