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
import re
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby
from threading import Lock
from typing import Literal, cast

import psutil

from bench.measure.environment import compiling_environment, relevant_variables, worker_environment
from bench.measure.processes.guarded import Child
from bench.plan.content_keys import Contents, digest, read_files
from bench.plan.option_values import BadInput
from bench.records import user_cache
from bench.records.cells import Cell
from bench.records.host import usable_cores
from bench.records.mesh import MeshShape
from bench.records.messages import Catalogue, CompiledAnswer, CompileRequest, Lack, cell_request
from bench.records.paths import ROOT
from bench.records.rows import CellRow
from bench.records.step_programs import Communication

MOST_DEVICES = 1024
"""Devices of the largest mesh that is compiled."""

TIMEOUT_S = 900.0
"""Limit for one cell."""


@dataclass(frozen=True)
class Program:
    """The work of one device in a step."""

    cell: Cell
    flops: float
    """FLOPs of one device's matrix products and convolutions, counting every loop iteration."""
    accessed_bytes: float | None
    """XLA's count for one device: operands and results of every operation, with a loop's body
    counted once. None in programs by formula; no prediction uses it."""
    memory_bytes: float
    """Bytes on one device: arguments, outputs and temporaries, less donated buffers."""
    state_bytes: float
    """Bytes of parameters and optimizer state on one device."""
    communication: Sequence[Communication]
    """Collectives of one step on one device."""
    model_flops: float
    """FLOPs of the whole step, by the workload's formula."""
    units: float
    """Samples or tokens per step."""
    unit: str
    bubble: float
    """Idle share of the pipeline schedule."""
    read: Literal["compiled", "formula"]
    """Whether it was compiled for this mesh, rather than extrapolated by a formula from smaller
    ones."""

    @property
    def mesh(self) -> MeshShape:
        """The mesh of its cell."""
        return self.cell.block.mesh


@dataclass(frozen=True)
class Unread:
    """A cell without an available program, and the reason."""

    cell: Cell
    reason: str
    lack: Lack = "failed"


Read = Callable[[Sequence[Cell]], Sequence[Program | Unread]]
"""A compiler of cells, such as `programs`."""


COMPILER = ROOT / "bench/worker/answer/compile_only.py"

_RUNNING = re.compile(
    r"JAX_NUM_CPU_DEVICES$|NPROC$|OMP_|NCCL_|SLURM_NTASKS$|JAX_COMPILATION_CACHE_"
    r"|JAX_PERSISTENT_CACHE_|JAX_LOG"
)
"""Variables that affect how programs run, the number of devices (which the cell specifies), caching
or logging, but not compilation."""
_ACCELERATORS = re.compile(r"LIBTPU_|TPU_|CUDA_VISIBLE_DEVICES$|TF_GPU_")
"""Variables that affect only platforms other than `cpu`."""


COMMAND = (sys.executable, "-m", "bench.worker.answer.compile_only")

ROOM = 2 << 30
"""Bytes of free host memory required for each child."""

_devices = operator.attrgetter("block.mesh.size")


@dataclass(frozen=True)
class Compilers:
    """Child processes that compile cells on request."""

    platform: str
    """Whose compiler is used. An accelerator's needs the accelerators, so only one child runs."""
    request: Callable[[Cell], str]
    """The line that requests a cell from a child."""
    timeout_s: float
    """Limit for one cell."""
    answered: Callable[[Cell, CompiledAnswer], None]
    """Called with each answer as it arrives, from other threads."""

    def ask(self, cells: Sequence[Cell]) -> None:
        """Have every cell `answered`, compiling those with the fewest devices first."""
        for _, group in groupby(sorted(cells, key=_devices), key=_devices):
            room = min(usable_cores(), psutil.virtual_memory().available // ROOM)
            self._ask([*group], max(1, room) if self.platform == "cpu" else 1)

    def _ask(self, cells: Sequence[Cell], at_once: int) -> None:
        """Request cells with equal numbers of devices.

        If a child ends early, the cell that it was compiling is blamed, and another child gets the
        rest. If other children ran beside it, they may have exhausted the host's memory, so that
        cell is retried alone.
        """
        again: list[Cell] = []
        parts = [deque(cells[first::at_once]) for first in range(min(at_once, len(cells)))]
        while parts:
            with ExitStack() as children:
                running = [(part, children.enter_context(self._child(part))) for part in parts]
                for part, child in running:
                    ended = child.answer(self.timeout_s)
                    if part and at_once > 1:
                        again.append(part.popleft())
                    elif part:
                        reason = f"the process that compiled it {ended.blame}"
                        failed = CompiledAnswer(row=None, reason=reason, lack="failed")
                        self.answered(part.popleft(), failed)
            parts = [part for part in parts if part]
        if again:
            self._ask(again, 1)

    def _child(self, part: deque[Cell]) -> Child:
        """Start a child for some cells, and remove each cell from them when it answers."""

        def receive(line: str) -> None:
            self.answered(part.popleft(), json.loads(line))

        lines = "\n".join(map(self.request, part))
        return Child(COMMAND, lines, environment(self.platform, _devices(part[0])), receive)


def environment(platform: str, devices: int) -> dict[str, str]:
    """Return the environment variables of a process that compiles."""
    if platform == "cpu":
        return compiling_environment(devices)
    return worker_environment(platform, devices)


class CompileCache:
    """Cached compiler results for one platform."""

    def __init__(self, catalogue: Catalogue, platform: str) -> None:
        self._contents = Contents(catalogue)
        files = read_files(COMPILER).hashes
        self._shared = [sorted(files.items()), compiling_variables(platform)]

    def read(self, cell: Cell) -> CompiledAnswer | None:
        """Return the result for a cell; None if it is missing or its file is damaged.

        Raises:
          BadInput: one of the cell's files cannot be read.
        """
        answer = user_cache.read(self.name(cell))
        return None if answer is None else cast("CompiledAnswer", json.loads(answer))

    def write(self, cell: Cell, answer: CompiledAnswer) -> None:
        """Store a result; if the folder cannot be written, the next call compiles again."""
        user_cache.write(self.name(cell), json.dumps(answer).encode())

    def name(self, cell: Cell) -> str:
        """Return the path of a cell's result in the user's cache; raises BadInput like `read`."""
        key = digest(json.dumps([self._contents.key(cell), self._shared]).encode(), 32)
        return f"programs/{key}.json"


def compiling_variables(platform: str) -> dict[str, str]:
    """Return the environment variables that affect what a process compiles."""
    return {
        name: value
        for name, value in relevant_variables(environment(platform, devices=1)).items()
        if not _RUNNING.match(name) and (platform != "cpu" or not _ACCELERATORS.match(name))
    }


def programs(
    cells: Sequence[Cell],
    catalogue: Catalogue,
    *,
    timeout_s: float = TIMEOUT_S,
    here: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> list[Program | Unread]:
    """Compile the steps of cells without running them; the results have the cells' order.

    Args:
      cells: of meshes up to 1,024 devices.
      catalogue: the available implementations and workloads.
      timeout_s: limit for one cell.
      here: compile for this machine's own devices instead of virtual ones; a mesh then has at most
        as many devices as the machine.
      progress: called from another thread with the number of cells answered, and the total.
    """
    platform = catalogue["platform"] if here else "cpu"
    if not here:
        virtual = {**catalogue, "platform": "cpu", "device_kind": "compile-only"}
        catalogue = cast("Catalogue", virtual)
    cache = CompileCache(catalogue, platform)
    results = {cell: _known(cell, catalogue, cache) for cell in dict.fromkeys(cells)}
    unknown = [cell for cell, result in results.items() if result is None]
    done, lock = itertools.count(1), Lock()

    def request(cell: Cell) -> str:
        return json.dumps(CompileRequest(**cell_request(cell, catalogue), elsewhere=not here))

    def answered(cell: Cell, answer: CompiledAnswer) -> None:
        with lock:
            results[cell] = _result(cell, answer)
            if answer["lack"] not in ("oom", "failed"):
                cache.write(cell, answer)
            if progress is not None:
                progress(next(done), len(unknown))

    Compilers(platform, request, timeout_s, answered).ask(unknown)
    return [cast("Program | Unread", results[cell]) for cell in cells]


def _known(cell: Cell, catalogue: Catalogue, cache: CompileCache) -> Program | Unread | None:
    """Return what is known about a cell without compilation; None if it has to be compiled."""
    if reason := _why_not(cell, catalogue):
        return Unread(cell, reason)
    try:
        answer = cache.read(cell)
    except BadInput as error:
        return Unread(cell, "; ".join(error.faults))
    return None if answer is None else _result(cell, answer)


def from_row(row: CellRow) -> Program | Unread:
    """Return the program of a stored run's cell, from the figures stored with its measurement.

    Its state's size is that of its donated buffers, or else of all arguments including the batch.
    """
    cell = Cell.of(row)
    mesh = cell.block.mesh
    if row["status"] != "ok":
        return Unread(cell, f"{row['status']}: {row['reason']}")
    communication, memory, cost = row.get("communication"), row.get("memory"), row.get("cost")
    flops = max(row.get("traced_flops") or 0.0, row.get("product_flops") or 0.0)
    if communication is None or memory is None or cost is None or not flops:
        return Unread(cell, "its stored row lacks figures of the compiled step")
    if mesh.size > 1 and not communication:
        return Unread(cell, "its programs contain none of the communication between its devices")
    return Program(
        cell,
        flops=flops / mesh.size,
        accessed_bytes=cost["accessed_bytes"] / mesh.size,
        memory_bytes=memory["total_bytes"],
        state_bytes=memory["alias_bytes"] or memory["argument_bytes"],
        communication=communication,
        model_flops=row["model_flops"],
        units=row["units_per_step"],
        unit=row["unit"],
        bubble=row.get("bubble", 0.0),
        read="compiled",
    )


def _why_not(cell: Cell, catalogue: Catalogue) -> str:
    """Return why a cell cannot be compiled; empty if it can."""
    block = cell.block
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
    if block.options.variant:
        return "a variant sets the environment of a measuring process; leave the variant out"
    return ""


def _result(cell: Cell, answer: CompiledAnswer) -> Program | Unread:
    if answer["row"] is None:
        return Unread(cell, answer["reason"], answer["lack"])
    return Program(cell, **answer["row"], read="compiled")
