"""What one device does in a cell's step, as a compiler says. Imports no jax.

Steps are compiled by child processes and not run: see bench/worker/answer/compile_only.py. What was read
is kept: see kept.py. Meshes of any size are had as virtual CPU devices. It is then XLA:CPU's
program: another backend may combine collectives, choose other kinds of them or fuse more, which
shows in counts and in bytes accessed more than in FLOPs and payloads. Meshes that this machine's
accelerators have can be compiled by their own compiler.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Literal, cast

from bench.plan.matrix import BadInput
from bench.project.compile_cache import Kept
from bench.project.compile_children import Compilers
from bench.records.cells import Block, Cell, StepOptions
from bench.records.mesh import MeshShape
from bench.records.messages import (
    Catalogue,
    CompiledAnswer,
    CompiledRow,
    CompileRequest,
    Lack,
    cell_request,
)
from bench.records.rows import CellRow, Communication, cell_of

MOST_DEVICES = 1024
"""Virtual devices of the largest mesh that is compiled."""

TIMEOUT_S = 900.0
"""For one cell."""


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
    accessed_bytes: float | None
    """Of one device, XLA's count: every operand and result of every operation, and of the body of a
    loop once. None by formula, which has none: no prediction needs it."""
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
    lack: Lack = "failed"


def programs(
    cells: Sequence[Cell],
    catalogue: Catalogue,
    timeout_s: float = TIMEOUT_S,
    *,
    here: bool = False,
    told: Callable[[int, int], None] | None = None,
) -> list[Program | Unread]:
    """Compile cells' steps, without running them; one result a cell, in their order.

    Args:
      cells: of meshes up to 1,024 devices; they need not be measured anywhere.
      catalogue: the implementations and workloads that exist.
      timeout_s: seconds that one cell may take.
      here: compile for this machine's own devices instead of virtual ones, which stand for those of
        any kind; meshes are then of no more devices than there are.
      told: called with how many are answered, and of how many that had to be asked, whenever one
        is; in another thread.
    """
    platform = catalogue["platform"] if here else "cpu"
    if not here:
        virtual = {**catalogue, "platform": "cpu", "device_kind": "compile-only"}
        catalogue = cast("Catalogue", virtual)
    kept = Kept(catalogue, platform)
    found = _known(cells, catalogue, kept)
    asked = [cell for cell in dict.fromkeys(cells) if cell not in found]
    done, one_by_one = itertools.count(1), Lock()

    def request(cell: Cell) -> str:
        own = cell_request(cell, catalogue)
        return json.dumps(CompileRequest(**own, elsewhere=not here))

    def answered(cell: Cell, answer: CompiledAnswer) -> None:
        with one_by_one:
            found[cell] = _result(cell, answer)
            if answer["lack"] not in ("oom", "failed"):
                kept.keep(cell, answer)
            if told is not None:
                told(next(done), len(asked))

    Compilers(platform, request, timeout_s, answered).ask(asked)
    return [found[cell] for cell in cells]


def _known(cells: Sequence[Cell], catalogue: Catalogue, kept: Kept) -> dict[Cell, Program | Unread]:
    """What need not be asked."""
    found: dict[Cell, Program | Unread] = {}
    for cell in dict.fromkeys(cells):
        reason = _why_not(cell, catalogue)
        if reason:
            found[cell] = Unread(cell, reason)
            continue
        try:
            answer = kept.read(cell)
        except BadInput as error:
            found[cell] = Unread(cell, "; ".join(error.faults))
            continue
        if answer is not None:
            found[cell] = _result(cell, answer)
    return found


def from_row(row: CellRow) -> Program | Unread:
    """The program of a stored run's cell, whose figures were read when it was measured.

    What its state takes is what it donates, or else all of its arguments, the batch among them.
    """
    cell = cell_of(row)
    mesh = cell.block.mesh
    if row["status"] != "ok":
        return Unread(cell, f"{row['status']}: {row['reason']}")
    communication, memory, cost = row.get("communication"), row.get("memory"), row.get("cost")
    flops = max(row.get("traced_flops") or 0.0, row.get("product_flops") or 0.0)
    if communication is None or memory is None or cost is None or not flops:
        return Unread(cell, "its stored row lacks figures of the compiled step")
    if mesh.size > 1 and not communication:
        return Unread(cell, "what passes between its devices is in none of its programs")
    figures = CompiledRow(
        flops=flops / mesh.size,
        accessed_bytes=cost["accessed_bytes"] / mesh.size,
        memory_bytes=memory["total_bytes"],
        state_bytes=memory["alias_bytes"] or memory["argument_bytes"],
        communication=communication,
        model_flops=row["model_flops"],
        units=row["units_per_step"],
        unit=row["unit"],
        bubble=row.get("bubble", 0.0),
    )
    return _program(cell, figures)


def _why_not(cell: Cell, catalogue: Catalogue) -> str:
    """Why nobody need be asked about a cell; empty if somebody has to be."""
    block = cell.block
    implementations = {entry["name"]: entry for entry in catalogue["implementations"]}
    workloads = {entry["name"]: entry for entry in catalogue["workloads"]}
    for kind, name, entries in (
        ("implementation", cell.implementation, implementations),
        ("workload", block.workload, workloads),
    ):
        if name not in entries:
            return f"there is no {kind} {name}; there are {', '.join(entries)}"
        if entries[name]["error"]:
            return f"the {kind} {name} cannot be imported: {entries[name]['error']}"
    sizes = workloads[block.workload]["sizes"]
    if block.size not in sizes:
        return f"{block.workload} has no size {block.size}; there are {', '.join(sizes)}"
    if block.mesh.size > MOST_DEVICES:
        return f"{block.mesh} has more than the {MOST_DEVICES:,} devices that are compiled for"
    if block.options.variant:
        return "a variant's environment is that of a measuring process; leave the variant out"
    return ""


def _result(cell: Cell, answer: CompiledAnswer) -> Program | Unread:
    if answer["row"] is None:
        return Unread(cell, answer["reason"], answer["lack"])
    return _program(cell, answer["row"])


def _program(cell: Cell, row: CompiledRow) -> Program:
    return Program(
        implementation=cell.implementation,
        workload=cell.block.workload,
        size=cell.block.size,
        mesh=cell.block.mesh,
        batch=cell.block.batch,
        options=cell.block.options,
        flops=row["flops"],
        accessed_bytes=row["accessed_bytes"],
        memory_bytes=row["memory_bytes"],
        state_bytes=row["state_bytes"],
        communication=tuple(row["communication"]),
        model_flops=row["model_flops"],
        units=row["units"],
        unit=row["unit"],
        bubble=row["bubble"],
        read="compiled",
    )
