"""Programs of larger meshes than are compiled, from smaller ones. Imports no jax.

One axis of the mesh grows, the others stay. Under weak scaling the global batch grows with it, and
a shard's batch stays; under strong scaling the global batch stays. Every figure of a device's
program then is

    figure(n) = constant + divided / n

of the axis's size n, because a device's share of any array is either whole, whatever n is, or an
nth of it: parameters are replicated or divided over the axis, and activations are of a device's
part of the batch, which is constant under weak scaling, and an nth of the global batch under strong
scaling. FLOPs and memory are sums over operations on such shares, and a
collective's payload is one. How many collectives there are is a matter of the program's structure,
which does not depend on n. The members of a collective along the axis grow with it.

That is a claim about a program, which need not hold: a parameter of 768 rows can be divided by 256,
and is replicated over 512. So two compiled sizes give the constants, and all others are checks.
What is more than TOLERANCE off, or has other collectives, is not extrapolated.
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
"""Devices of the meshes that are compiled, where the mesh's other axes let them: the constants are
from the first two."""

Scaling = Literal["weak", "strong"]

_FIGURES = ("flops", "memory_bytes", "state_bytes")

_ROUNDING = 1e-9
"""Of a constant, relative to the largest figure it was made of: less is nothing."""


@dataclass(frozen=True)
class Term:
    """A figure by the size n of the axis: constant + divided / n."""

    constant: float
    divided: float

    def at(self, size: int) -> float:
        """The figure at this size."""
        return self.constant + self.divided / size


@dataclass(frozen=True)
class Check:
    """A figure of a compiled program beside what the formula says of it."""

    size: int
    """Of the axis."""
    figure: str
    """`flops`, or a collective: `payload_bytes of all-reduce over data of f32`."""
    predicted: float
    compiled: float

    @property
    def error(self) -> float:
        """Relative to what was compiled."""
        if self.predicted == self.compiled:
            return 0.0
        return abs(self.predicted - self.compiled) / self.compiled if self.compiled else math.inf


class FormulaError(Exception):
    """A program does not follow the formula; the message says in what.

    Attributes:
      checks: figures that were compared, as far as that could be done.
    """

    def __init__(self, message: str, checks: Sequence[Check] = ()) -> None:
        super().__init__(message)
        self.checks = tuple(checks)


@dataclass(frozen=True)
class Formula:
    """A cell's program by the size of one axis; `fit` makes it."""

    smallest: Program
    """The smallest of the compiled ones."""
    axis: str
    scaling: Scaling
    fitted: tuple[int, int]
    """Sizes that the constants are from."""
    terms: Mapping[str, Term]
    """By names of figures, as in checks."""
    checks: tuple[Check, ...]
    """At all other compiled sizes."""

    def at(self, size: int) -> Program:
        """The program at a size of the axis.

        Raises:
          ValueError: the global batch does not divide into so many shards.
          FormulaError: a figure would not be positive, or be so small that what its checks were off
            is more than TOLERANCE of it; or a shard would be of a single sample, and was not where
            it was compiled: then arrays lose a dimension, and other operations fuse.
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
        below = [name for name, value in figures.items() if value < 0]
        if below:
            raise FormulaError(f"at {self.axis}={size}, {', '.join(below)} would be below 0")
        # What is divided shrinks with the size, and an error of what is constant does not.
        for check in self.checks:
            off = abs(check.predicted - check.compiled)
            if size > check.size and off > TOLERANCE * figures[check.figure]:
                raise FormulaError(
                    f"at {self.axis}={size}, {check.figure} would be {figures[check.figure]:.6g}, "
                    f"of which {off:.3g}, the error at {self.axis}={check.size}, is more than "
                    f"{TOLERANCE:.0%}"
                )
        return replace(
            self.smallest,
            mesh=cell.block.mesh,
            batch=cell.block.batch,
            flops=figures["flops"],
            accessed_bytes=None,
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
    """The cell with another size of an axis of its mesh.

    Args:
      cell: whose mesh has the axis.
      axis: `data` or `fsdp`, which the batch is split over.
      size: of the axis.
      scaling: whether the batch of a shard stays, or the global batch.

    Raises:
      ValueError: the mesh lacks the axis, or the batch is not split over it, or the global batch
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
    """The cells to compile for a formula: of LADDER's devices, where the mesh and batch can be so.

    Raises:
      ValueError: see `grown`.
    """
    beside = cell.block.mesh.size // cell.block.mesh.axis(axis)
    found = []
    for devices in LADDER:
        size = devices // beside
        if devices % beside or size < 2:  # noqa: PLR2004 - one device along it has no collectives
            continue
        try:
            found.append(grown(cell, axis, size, scaling))
        except ValueError:
            # A mesh whose size does not divide the batch can be asked for, and not compiled.
            if scaling == "weak":
                raise
    return found


def fit(programs: Sequence[Program], axis: str) -> Formula:
    """The formula of programs that differ by the size of one axis alone.

    Args:
      programs: compiled, of three sizes at least, each of 2 or more: the smallest two give the
        constants, the others are compared with them.
      axis: whose size they differ in.

    Raises:
      ValueError: they are not that.
      FormulaError: they do not follow it.
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
        raise FormulaError(
            f"{first.cell.name}: at {axis}={worst.size}, {worst.figure} is {worst.compiled:.6g} as "
            f"compiled, and {worst.predicted:.6g} by what {axis}={sizes[0]} and {axis}={sizes[1]} "
            f"have, which is more than {TOLERANCE:.0%} off"
            + (f"; and so are {len(wrong) - 1} other figures" if len(wrong) > 1 else ""),
            checks,
        )
    return Formula(first, axis, scaling, sizes, terms, checks)


def _scaling(ordered: Sequence[Program], axis: str) -> Scaling:
    """Raises ValueError where programs cannot be compared."""
    sizes = [program.mesh.axis(axis) for program in ordered]
    if len(set(sizes)) < 3 or len(set(sizes)) < len(sizes) or sizes[0] < 2:  # noqa: PLR2004
        raise ValueError(
            f"a formula takes three different sizes of {axis}, of 2 at least, and has "
            f"{', '.join(map(str, sizes)) or 'none'}"
        )
    largest = ordered[-1].mesh.size
    if largest > MOST_DEVICES or any(program.read != "compiled" for program in ordered):
        raise ValueError("a formula is made of compiled programs")
    cell = ordered[0].cell
    scalings: tuple[Scaling, Scaling] = ("weak", "strong")
    for scaling in scalings:
        if all(
            program.cell == _grown_or_none(cell, axis, size, scaling)
            for program, size in zip(ordered, sizes, strict=True)
        ):
            return scaling
    names = ", ".join(program.cell.name for program in ordered)
    raise ValueError(f"these differ by more than {axis} and the batch that goes with it: {names}")


def _grown_or_none(cell: Cell, axis: str, size: int, scaling: Scaling) -> Cell | None:
    try:
        return grown(cell, axis, size, scaling)
    except ValueError:
        return None


def _same_structure(first: Program, other: Program, axis: str) -> None:
    """Raises FormulaError where two programs do not communicate in the same way."""
    growth = other.mesh.axis(axis) / first.mesh.axis(axis)
    rows = [{_name(row): row for row in program.communication} for program in (first, other)]
    at = f"{first.cell.name}: at {axis}={other.mesh.axis(axis)}"
    if rows[0].keys() != rows[1].keys():
        more = sorted(rows[0].keys() ^ rows[1].keys())
        raise FormulaError(
            f"{at} and {axis}={first.mesh.axis(axis)}, not the same is communicated: only one has "
            + "; ".join(more)
        )
    for name, row in rows[0].items():
        if not row["axes"]:
            raise FormulaError(f"{at}, a collective is along no axis of the mesh: {name}")
        own, expected = (
            (one["count"], one["members"]) for one in (rows[1][name], _grown_row(row, axis, growth))
        )
        if own != expected:
            raise FormulaError(
                f"{at}, a step has {own[0]} of {_what(row)} among {own[1]} members, where "
                f"{expected[0]} among {expected[1]} were expected"
            )
    if first.bubble != other.bubble:
        raise FormulaError(f"{at}, the bubble is {other.bubble:.3g} and not {first.bubble:.3g}")


def _values(program: Program) -> dict[str, float]:
    """Its figures by their names."""
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
    """What tells a row of a program's communication from its others."""
    return f"payload_bytes of {_what(row)}"


def _what(row: Communication) -> str:
    """`all-gather over data of f32`."""
    axes = ", ".join(row["axes"]) or "no axis"
    returned = ", returned" if row.get("returned") else ""
    return f"{row['kind']} over {axes} of {', '.join(row['dtypes'])}{returned}"


def _grown_row(row: Communication, axis: str, growth: float) -> Communication:
    """The row with as many members as the axis has. A collective-permute is between two."""
    members = row["members"]
    if axis in row["axes"] and row["kind"] != "collective-permute":
        members = round(members * growth)
    return {**row, "members": members}


def _with_payload(row: Communication, payload: float) -> Communication:
    wire = payload * bus_factor(row["kind"], row["members"])
    return {**row, "payload_bytes": round(payload), "wire_bytes": wire}
