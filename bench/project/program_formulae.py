"""Programs along a curve: compiled, or extrapolated from smaller compiled ones.

Compiling takes seconds per mesh, and is impossible beyond MOST_DEVICES. For a curve with more
meshes than a formula needs, only the formula's meshes are compiled. Every figure of a device's
program follows

    figure(n) = constant + divided / n

in the size n of the growing axis, because a device's share of any array is either the whole array
for every n or an nth of it. FLOPs and memory are sums over operations on such shares, and the
payload of a collective is one such share; the number of collectives does not depend on n.

A real program may break this rule: a parameter of 768 rows can be sharded over 256 devices, and is
replicated over 512. If compiled sizes are off by more than TOLERANCE, or collectives differ, the
meshes are compiled one by one, as far as possible.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, cast

from bench.project.compiled_programs import NoProgram, Program, Read
from bench.records.cells import Block, Cell
from bench.records.collective_kinds import bus_factor
from bench.records.mesh import MeshShape
from bench.records.step_programs import Communication

LADDER = (8, 64, 256, 1024)
"""Device counts of the meshes compiled for a formula, if the other axes allow it; its constants
come from the first two."""

Scaling = Literal["weak", "strong"]


@dataclass(frozen=True)
class Curve:
    """One step on meshes that differ in their first axis."""

    block: Block
    """The step, with one member along the first axis of its mesh. Its batch is the global one
    (strong scaling) or that of a shard (weak scaling)."""
    implementation: str
    scaling: Scaling

    @classmethod
    def through(cls, cell: Cell, scaling: Scaling) -> Self:
        """Return the curve that contains a cell."""
        block, ((first, _), *rest) = cell.block, cell.block.mesh.axes
        batch = block.batch // block.mesh.batch_shards if scaling == "weak" else block.batch
        block = replace(block, mesh=MeshShape(((first, 1), *rest)), batch=batch)
        return cls(block, cell.implementation, scaling)

    @property
    def first(self) -> str:
        """The axis that grows."""
        return self.block.mesh.axes[0][0]

    @property
    def mesh(self) -> str:
        """`data=N,model=2`."""
        return str(self.block.mesh).replace("=1", "=N", 1)

    def cell(self, chips: int) -> Cell | None:
        """Return the step on this many chips; None if they do not divide into mesh or batch."""
        size, rest = divmod(chips, self.block.mesh.size)
        mesh = MeshShape(((self.first, size), *self.block.mesh.axes[1:]))
        batch = self.block.batch * (mesh.batch_shards if self.scaling == "weak" else 1)
        if rest or batch % (mesh.batch_shards * self.block.options.microbatches):
            return None
        return Cell(replace(self.block, mesh=mesh, batch=batch), self.implementation)

    def ladder(self) -> list[Cell]:
        """Return the cells to compile for a formula: those of LADDER that mesh and batch allow."""
        if self.first not in ("data", "fsdp"):
            return []
        cells = [cell for devices in LADDER if (cell := self.cell(devices)) is not None]
        # Without members along the axis, there are no collectives.
        return [cell for cell in cells if cell.block.mesh.axis(self.first) > 1]


def step_on_hardware(cell: Cell, precision: str | None) -> Cell:
    """Return a run's cell in the plain environment and one process; None keeps its precision."""
    options = cell.block.options
    options = replace(options, precision=precision or options.precision, variant="", processes=1)
    return replace(cell, block=replace(cell.block, options=options))


TOLERANCE = 0.01
"""Largest relative error of a figure."""

_FIGURES = ("flops", "memory_bytes", "state_bytes")

_ROUNDING = 1e-9
"""A constant below this share of the figures that determine it is rounding error."""


@dataclass(frozen=True)
class Formula:
    """The programs of a curve as a function of the axis's size; `fit` creates it."""

    curve: Curve
    programs: tuple[Program, ...]
    """The compiled programs, smallest first; the first two determine the constants."""
    off: Mapping[tuple[int, str], float]
    """Absolute error of each figure at each of the other compiled sizes, by size and name: `flops`,
    or for a collective `payload_bytes of all-reduce over data of f32`."""
    error: float
    """The largest of these errors, relative to the compiled figure."""

    def at(self, cell: Cell) -> Program:
        """Return the program of a cell of the curve.

        Raises ValueError if a figure would be negative, or so small that its error where it was
        checked exceeds TOLERANCE of it; or if a shard would hold a single sample although none did
        where the formula was checked: arrays then lose a dimension, and other operations fuse.
        """
        axis, smallest, largest = self.curve.first, self.programs[0], self.programs[-1]
        size = cell.block.mesh.axis(axis)
        if _rows(cell) == 1 < _rows(largest.cell):
            raise ValueError(
                f"{cell.block.name}: a shard would compute one sample at a time, and no program "
                f"that does so was compiled ({axis}={largest.mesh.axis(axis)} at most)"
            )
        figures = _figures(self.programs, axis, size)
        if negative := [name for name, value in figures.items() if value < 0]:
            raise ValueError(f"at {axis}={size}, {', '.join(negative)} would be below 0")
        # The divided part shrinks as the axis grows; an error of the constant part does not.
        for (checked, name), off in self.off.items():
            if size > checked and off > TOLERANCE * figures[name]:
                raise ValueError(
                    f"at {axis}={size}, {name} would be {figures[name]:.6g}, and {off:.3g}, "
                    f"the error at {axis}={checked}, is more than {TOLERANCE:.0%} of that"
                )

        def grown(row: Communication) -> Communication:
            members = _members(row, axis, size / smallest.mesh.axis(axis))
            payload = figures[_name(row)]
            wire = payload * bus_factor(row["kind"], members)
            return {**row, "members": members, "payload_bytes": round(payload), "wire_bytes": wire}

        work = cell.block.batch / smallest.cell.block.batch
        return replace(
            smallest,
            cell=cell,
            **cast("Any", {name: figures[name] for name in _FIGURES}),
            communication=[grown(row) for row in smallest.communication],
            model_flops=smallest.model_flops * work,
            units=smallest.units * work,
            read="formula",
        )


def programs_along(
    curves: Sequence[Curve], chips: Sequence[int], read: Read
) -> tuple[dict[Curve, dict[int, Program | str]], dict[Curve, Formula | str]]:
    """Return the programs of distinct curves on ascending numbers of chips, and their formulae.

    A reason takes the place of a missing program, and of a formula that does not hold.
    """
    cells = {
        curve: {count: cell for count in chips if (cell := curve.cell(count)) is not None}
        for curve in curves
    }
    # Compiling a few small meshes is less work than compiling a formula's.
    few = len(chips) <= len(LADDER) and max(chips) <= LADDER[-1]
    ladders = {curve: [] if few or not cells[curve] else curve.ladder() for curve in curves}
    known: dict[Cell, Program | NoProgram] = {}

    def compile_all(wanted: Iterable[Cell]) -> None:
        if missing := [cell for cell in dict.fromkeys(wanted) if cell not in known]:
            known.update(zip(missing, read(missing), strict=True))

    # No check covers sizes below those that determine a formula.
    direct = [
        cell
        for curve, rungs in ladders.items()
        for count, cell in cells[curve].items()
        if not rungs or count < rungs[0].block.mesh.size
    ]
    compile_all(itertools.chain(direct, *ladders.values()))
    formulae = {
        curve: _formula(curve, [known[cell] for cell in rungs])
        for curve, rungs in ladders.items()
        if rungs
    }
    failed = [curve for curve, formula in formulae.items() if isinstance(formula, str)]
    compile_all(cell for curve in failed for cell in cells[curve].values())

    def program(curve: Curve, count: int) -> Program | str:
        cell, formula = cells[curve].get(count), formulae.get(curve, "")
        if cell is None:
            return "other axes do not divide the chips, or shards and microbatches the batch"
        if cell in known or isinstance(formula, str):
            found = known[cell]
            return found.reason if isinstance(found, NoProgram) else found
        try:
            return formula.at(cell)
        except ValueError as error:
            return str(error)

    return {curve: {count: program(curve, count) for count in chips} for curve in curves}, formulae


def _formula(curve: Curve, compiled: Sequence[Program | NoProgram]) -> Formula | str:
    missing = [one.reason for one in compiled if isinstance(one, NoProgram)]
    try:
        return missing[0] if missing else fit(curve, cast("Sequence[Program]", compiled))
    except ValueError as error:
        return str(error)


def fit(curve: Curve, programs: Sequence[Program]) -> Formula:
    """Return the formula of a curve's compiled programs.

    The two smallest determine the constants, and the formula is checked against the others. Raises
    ValueError if there are fewer than three, or if they do not follow the formula.
    """
    axis = curve.first
    first, *larger = ordered = sorted(programs, key=lambda program: program.mesh.size)
    sizes = [program.mesh.axis(axis) for program in ordered]
    if len(sizes) < 3:  # noqa: PLR2004 (two to determine the constants, and one to check them)
        had = ", ".join(map(str, sizes))
        raise ValueError(f"a formula needs three sizes of {axis}, and has {had}")
    for program in larger:
        _same_structure(first, program, axis)
    off: dict[tuple[int, str], float] = {}
    errors: list[tuple[float, str]] = []
    for program, size in zip(ordered[2:], sizes[2:], strict=True):
        figures = _figures(ordered, axis, size)
        for name, value in _values(program).items():
            off[size, name] = gap = abs(figures[name] - value)
            detail = f"at {axis}={size}, {name} is {value:.6g} as compiled, and {figures[name]:.6g}"
            errors.append((gap and (gap / value if value else math.inf), detail))
    error, detail = max(errors, key=lambda each: each[0])
    if error > TOLERANCE:
        others = sum(each > TOLERANCE for each, _ in errors) - 1
        more = f"; {others} other figures are off as well" if others else ""
        raise ValueError(
            f"{first.cell.name}: {detail} by the formula from {axis}={sizes[0]} and "
            f"{axis}={sizes[1]}, which is more than {TOLERANCE:.0%} off{more}"
        )
    return Formula(curve, tuple(ordered), off, error)


def _rows(cell: Cell) -> int:
    """Return the number of samples that a device computes at a time."""
    return cell.block.batch // (cell.block.mesh.batch_shards * cell.block.options.microbatches)


def _same_structure(first: Program, other: Program, axis: str) -> None:
    """Raise ValueError if two programs do not communicate in the same way."""
    small, large = first.mesh.axis(axis), other.mesh.axis(axis)
    rows, others = (
        {_name(row): row for row in program.communication} for program in (first, other)
    )
    at = f"{first.cell.name}: at {axis}={large}"
    if different := "; ".join(sorted(rows.keys() ^ others.keys())):
        what = f"the communication differs: only one has {different}"
        raise ValueError(f"{at} and {axis}={small}, {what}")
    for name, row in rows.items():
        if not row["axes"]:
            raise ValueError(f"{at}, a collective is along no axis of the mesh: {name}")
        count, members = others[name]["count"], others[name]["members"]
        expected = row["count"], _members(row, axis, large / small)
        if (count, members) != expected:
            raise ValueError(
                f"{at}, a step has {count} of {_what(row)} among {members} members, "
                f"but {expected[0]} among {expected[1]} were expected"
            )


def _values(program: Program) -> dict[str, float]:
    own = {name: float(getattr(program, name)) for name in _FIGURES}
    return own | {_name(row): float(row["payload_bytes"]) for row in program.communication}


def _figures(programs: Sequence[Program], axis: str, size: int) -> dict[str, float]:
    """Return the figures at a size: on the line through those of the first two, in 1 / n."""
    small, large = (program.mesh.axis(axis) for program in programs[:2])
    first, second = map(_values, programs[:2])
    figures = {}
    for name, value in first.items():
        divided = (value - second[name]) / (1 / small - 1 / large)
        constant = second[name] - divided / large
        rounding = abs(constant) <= _ROUNDING * max(value, second[name])
        figures[name] = (0.0 if rounding else constant) + divided / size
    return figures


def _name(row: Communication) -> str:
    """Return the name of a collective's payload, which is unique within a program."""
    return f"payload_bytes of {_what(row)}"


def _what(row: Communication) -> str:
    """Return `all-gather over data of f32`."""
    axes = ", ".join(row["axes"]) or "no axis"
    returned = ", returned" if row.get("returned") else ""
    return f"{row['kind']} over {axes} of {', '.join(row['dtypes'])}{returned}"


def _members(row: Communication, axis: str, growth: float) -> int:
    """Return a collective's members as the axis grows. A collective-permute keeps its pairs."""
    grows = axis in row["axes"] and row["kind"] != "collective-permute"
    return round(row["members"] * growth) if grows else row["members"]
