"""The work of one device in a cell's step, according to a compiler.

Child processes compile the steps without running them (see bench/worker/answer/compile_only.py),
and a cache keeps their reports. Virtual CPU devices stand in for meshes of any size. The program is
then XLA:CPU's: another backend may combine collectives, choose other kinds of them or fuse more,
which affects counts and accessed bytes more than FLOPs and payloads. For meshes of devices that
this machine has, the devices' own compiler can be used.
"""

import itertools
import json
import operator
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Literal, cast

import psutil
from rich.console import Console

from bench.measure.environment import compiling_environment, relevant_variables
from bench.measure.processes.guarded import Child
from bench.plan.content_keys import Contents, read_files
from bench.plan.option_values import BadInput
from bench.present.terminal import counter
from bench.records import user_cache
from bench.records.cells import Cell
from bench.records.files import digest
from bench.records.host import usable_cores
from bench.records.mesh import MeshShape
from bench.records.messages import (
    Catalogue,
    CompiledAnswer,
    CompiledFigures,
    CompileRequest,
    Lack,
    cell_request,
)
from bench.records.paths import ROOT, module_command
from bench.records.rows import CellRow

MOST_DEVICES = 1024
"""Devices of the largest mesh that is compiled."""

TIMEOUT_S = 900.0
"""Limit for one cell."""


@dataclass(frozen=True, kw_only=True)
class Program(CompiledFigures):
    """The work of one device in a cell's step."""

    cell: Cell
    read: Literal["compiled", "formula"]
    """Whether it was compiled for this mesh, rather than extrapolated by a formula from smaller
    ones."""

    @property
    def mesh(self) -> MeshShape:
        """The mesh of its cell."""
        return self.cell.block.mesh


@dataclass(frozen=True)
class NoProgram:
    """A cell without an available program, and the reason."""

    cell: Cell
    reason: str
    lack: Lack = "failed"


Read = Callable[[Sequence[Cell]], Sequence[Program | NoProgram]]
"""A compiler of cells, such as `programs`."""

COMPILER = ROOT / "bench/worker/answer/compile_only.py"

ROOM = 2 << 30
"""Bytes of free host memory required for each child."""

_devices = operator.attrgetter("block.mesh.size")


def entry_names(catalogue: Catalogue, *, here: bool) -> Callable[[Cell], str]:
    """Return a function that names a cell's answer in the user's cache, by what it depends on.

    The function raises BadInput if one of the cell's files cannot be read.
    """
    contents = Contents(catalogue)
    variables = relevant_variables(compiling_environment(catalogue["platform"], 1, here=here))
    shared = [sorted(read_files(COMPILER).hashes.items()), variables]

    def name(cell: Cell) -> str:
        return f"programs/{digest(json.dumps([contents.key(cell), shared]).encode(), 32)}.json"

    return name


@contextmanager
def compiling(catalogue: Catalogue, console: Console) -> Iterator[Read]:
    """Yield a compiler of steps that shows its progress and, if interrupted, what is kept."""
    try:
        with counter(console, "compiling steps", "compiled {} of {} steps") as progress:
            yield partial(programs, catalogue=catalogue, progress=progress)
    except KeyboardInterrupt:
        kept = "what was compiled is kept, and the same command continues from there"
        console.print(f"interrupted: {kept}", soft_wrap=True)
        raise


def programs(
    cells: Sequence[Cell],
    catalogue: Catalogue,
    *,
    here: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> list[Program | NoProgram]:
    """Compile the steps of cells without running them; the results have the cells' order.

    `here` compiles for this machine's own devices instead of virtual ones; a mesh may have up to
    MOST_DEVICES of either. `progress` is called from another thread with the number of cells
    answered and their total. A cell whose compilation ends its process has no program.
    """
    if not here:
        virtual = {**catalogue, "platform": "cpu", "device_kind": "compile-only"}
        catalogue = cast("Catalogue", virtual)
    platform, entry_name = catalogue["platform"], entry_names(catalogue, here=here)
    results = {cell: _known(cell, catalogue, entry_name) for cell in dict.fromkeys(cells)}
    unknown = sorted((cell for cell, known in results.items() if known is None), key=_devices)
    done, lock = itertools.count(1), Lock()

    def answered(cell: Cell, answer: CompiledAnswer) -> None:
        with lock:
            results[cell] = _result(cell, answer)
            if answer["lack"] not in ("oom", "failed"):
                user_cache.write(entry_name(cell), json.dumps(answer).encode())
            if progress is not None:
                progress(next(done), len(unknown))

    def start(part: deque[Cell]) -> Child:
        requests = (
            CompileRequest(**cell_request(cell, catalogue), elsewhere=not here) for cell in part
        )
        return Child(
            module_command("bench.worker.answer.compile_only"),
            "\n".join(map(json.dumps, requests)),
            compiling_environment(platform, _devices(part[0]), here=here),
            lambda line: answered(part.popleft(), json.loads(line)),
        )

    for _, group in itertools.groupby(unknown, key=_devices):
        left = [*group]
        # An accelerator's compiler needs the accelerators, so only one child runs.
        room = psutil.virtual_memory().available // ROOM if platform == "cpu" else 1
        at_once = max(1, min(usable_cores(), room, len(left)))
        while left:
            parts = [deque(left[first::at_once]) for first in range(at_once)]
            with ExitStack() as children:
                running = [children.enter_context(start(part)) for part in parts]
                endings = [child.answer(TIMEOUT_S) for child in running]
            if parts[0] and at_once == 1:
                reason = f"the process that compiled it {endings[0].blame}"
                failed = CompiledAnswer(row=None, reason=reason, lack="failed")
                answered(parts[0].popleft(), failed)
            # Children that ended early may have exhausted the host's memory together, so one alone
            # compiles the cells that they left.
            left, at_once = [cell for part in parts for cell in part], 1
    return [cast("Program | NoProgram", results[cell]) for cell in cells]


def _known(
    cell: Cell, catalogue: Catalogue, entry_name: Callable[[Cell], str]
) -> Program | NoProgram | None:
    """Return what is known about a cell without compilation; None if it has to be compiled."""
    if reason := _why_not(cell, catalogue):
        return NoProgram(cell, reason)
    try:
        answer = user_cache.read(entry_name(cell))
    except BadInput as error:
        return NoProgram(cell, "; ".join(error.faults))
    return None if answer is None else _result(cell, json.loads(answer))


def from_row(row: CellRow) -> Program | NoProgram:
    """Return the program of a stored run's ok cell, from the figures stored with its measurement.

    Its state's size is that of its donated buffers, or else of all arguments including the batch.
    """
    cell = Cell.of(row)
    mesh = cell.block.mesh
    communication, memory = row.get("communication"), row.get("memory")
    flops = max(row.get("traced_flops") or 0.0, row.get("product_flops") or 0.0)
    if communication is None or memory is None or not flops:
        return NoProgram(cell, "its stored row lacks figures of the compiled step")
    if mesh.size > 1 and not communication:
        return NoProgram(cell, "its programs contain none of the communication between its devices")
    return Program(
        cell=cell,
        flops=flops / mesh.size,
        memory_bytes=memory["total_bytes"],
        state_bytes=memory["alias_bytes"] or memory["argument_bytes"],
        communication=communication,
        model_flops=row["model_flops"],
        units=row["units_per_step"],
        unit=row["unit"],
        read="compiled",
    )


def _why_not(cell: Cell, catalogue: Catalogue) -> str:
    """Return why a cell cannot be compiled; empty if it can."""
    block = cell.block
    if "@" in cell.implementation:
        return "it is of another version or revision, and only present steps are compiled"
    for kind, name, entries in (
        ("implementation", cell.implementation, catalogue["implementations"]),
        ("workload", block.workload, catalogue["workloads"]),
    ):
        errors = {entry["name"]: entry["error"] for entry in entries}
        if name not in errors:
            return f"there is no {kind} {name}; there are {', '.join(errors)}"
        if errors[name]:
            return f"the {kind} {name} cannot be imported: {errors[name]}"
    sizes = {entry["name"]: entry["sizes"] for entry in catalogue["workloads"]}[block.workload]
    if block.size not in sizes:
        return f"{block.workload} has no size {block.size}; there are {', '.join(sizes)}"
    if block.mesh.size > MOST_DEVICES:
        return f"{block.mesh} has more than {MOST_DEVICES:,} devices, the most to compile for"
    return ""


def _result(cell: Cell, answer: CompiledAnswer) -> Program | NoProgram:
    if answer["row"] is None:
        return NoProgram(cell, answer["reason"], answer["lack"])
    return Program(cell=cell, **answer["row"], read="compiled")
