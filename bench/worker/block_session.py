"""The state that a worker's parts share while it measures one block, and its events."""

import datetime as dt
import os
import random
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple, cast

from jax.sharding import Mesh

from bench.contract import Implementation, Problem
from bench.records.cells import Block, Cell
from bench.records.messages import Event, Job, PhaseEvent, RowEvent
from bench.records.rows import BlockRow, CellRow, block_fields
from bench.records.statuses import Status
from bench.worker.file_loader import base_modules, implementation_files, load
from bench.worker.file_threads import FileThreads
from bench.worker.foreign.foreign_module import ForeignModule, foreign_module
from bench.worker.process_guard import HeldFunctions, ProcessSettings
from bench.worker.prove.failures import WrongStepError
from bench.worker.time.clock import Arm

PROGRESS_S = 1.0
"""Seconds between progress reports of a phase."""


class Proved(NamedTuple):
    """A proved implementation, and the executables that its step compiled."""

    implementation: Implementation
    programs: list[Any]


class BlockSession:
    """The state of one block in one worker process, and its channel to the supervisor.

    `emit` sends an event, and `programs` is the folder of the compilation cache.
    """

    mesh: Mesh
    """Set, like the problem, once the worker has its devices and has loaded the workload."""
    problem: Problem
    functions: HeldFunctions
    threads: FileThreads
    settings: ProcessSettings
    """The process's settings, recorded like functions and threads before implementations load."""

    def __init__(self, job: Job, emit: Callable[[Event], None], programs: Path) -> None:
        self.job = job
        self.emit = emit
        self.programs = programs
        self.block = Block.of(job)
        self.fields = block_fields(self.block, job["attempt"], job["launch"])
        self.row = BlockRow(
            **self.fields,
            baseline="",
            rounds=0,
            looks=[],
            steps=0,
            started_at=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
            seconds={},
            ceilings=None,
        )
        """The block's row so far."""
        self.cells: dict[str, CellRow] = {}
        self._sent: dict[str, CellRow] = {}
        self.proved: dict[str, Proved] = {}
        self.arms: list[Arm] = []
        """All timed arms: of proved implementations, the twin, input arms and ablated arms."""
        self.chance = random.Random(job["seed"])
        self.changed: defaultdict[str, set[str]] = defaultdict(set)
        """Settings of the process that each implementation's file has changed."""
        self.approximate: dict[str, str] = {}
        """How each implementation's step differs from the problem's; empty if it is exact."""
        self.reasons: dict[str, str] = {}
        """Reasons against implementations that have replaced functions of the process."""
        self.foreign: dict[str, ForeignModule] = {}
        """Implementations that run in processes of their own, which are watched by other means."""
        self._process = os.getpid()
        self._lap_began = time.monotonic()
        self._reported = 0.0

    def announce(self, phase: str, arm: str = "", done: int = 0, of: int = 0) -> None:
        """Report the beginning or the progress of a phase."""
        self._reported = time.monotonic()
        self.emit(PhaseEvent(event="phase", phase=phase, arm=arm, done=done, of=of))

    def report_progress(self, phase: str, arm: str, done: int, of: int) -> None:
        """Report a phase's progress every PROGRESS_S at most: reading takes CPU time from turns."""
        if not done or time.monotonic() > self._reported + PROGRESS_S:
            self.announce(phase, arm, done, of)

    def end_lap(self, phase: str) -> None:
        """Add the wall time since the last lap to a phase."""
        now = time.monotonic()
        seconds = self.row["seconds"]
        seconds[phase] = seconds.get(phase, 0.0) + now - self._lap_began
        self._lap_began = now

    def send_rows(self) -> None:
        """Send the block's row so far, and the rows of cells that are new or changed."""
        for name, row in self.cells.items():
            if self._sent.get(name) != row:
                self._sent[name] = row.copy()
                self.emit(RowEvent(event="cell", row=row))
        self.emit(RowEvent(event="block", row=self.row))

    def fail(self, name: str, status: Status, reason: str) -> None:
        """End a cell without a time, and report it at once, because a later crash would hide it."""
        row = self.cell_row(name, status, reason)
        if "threads_s" in (before := self.cells.get(name, row)):
            row["threads_s"] = before["threads_s"]
        self.cells[name], self._sent[name] = row, row.copy()
        self.emit(RowEvent(event="cell", row=row))

    def cell_row(self, name: str, status: Status, reason: str) -> CellRow:
        """Make a cell's row without the figures of a measured cell."""
        row = CellRow(
            cell=Cell(self.block, name).name,
            **self.fields,
            implementation=name,
            status=status,
            reason=reason,
            model_flops=self.problem.model_flops,
            unit=self.problem.unit,
            units_per_step=self.problem.units_per_step,
            interleaved=self.job["interleaved"],
        )
        if why := self.approximate.get(name):
            row["approximate"] = why
        return row

    def admit(self, row: CellRow, arm: Arm, proved: Proved) -> None:
        """Let a proved implementation take part in the rounds."""
        name = row["implementation"]
        self.proved[name], self.cells[name] = proved, row
        self.arms.append(arm)

    def ok_arms(self) -> list[Arm]:
        """Return the arms of ok cells."""
        ok = {name for name, row in self.cells.items() if row["status"] == "ok"}
        return [arm for arm in self.arms if arm.name in ok]

    def implementation_file(self, name: str) -> Path:
        """Return the file of an implementation."""
        if base := self.job["base_files"].get(name):
            return Path(base["path"])
        return implementation_files(self.job["implementation_paths"])[name]

    def start_children(self) -> None:
        """Start the processes of foreign arms early: importing their packages takes time."""
        for name in () if self.mesh.is_multi_process else self.job["implementations"]:
            with suppress(Exception):  # the proof reports what is wrong
                if module := self.foreign_module(name):
                    module.children(self.mesh)

    def foreign_module(self, name: str) -> ForeignModule | None:
        """Return the module of an implementation with its own processes; None for any other."""
        isolated = name in self.job["isolated"]
        return foreign_module(self.implementation_file(name).resolve(), isolated=isolated)

    def implementation(self, name: str) -> Implementation:
        """Import an implementation's file, unless it runs in a process of its own."""
        module = self.foreign_module(name) or load(self.implementation_file(name))
        self.functions.hold_contract(module)
        if isinstance(module, ForeignModule):
            self.foreign[name] = module
            module.known_figures = self.job["launch"] > 0 and name in self.job["proved"]
        return cast("Implementation", module)

    def put_back(self, name: str, *, whole: bool = True) -> None:
        """Undo, and record, what an implementation's file has changed for the whole process.

        With `whole`, the code of functions is compared too, which is too slow between turns.
        """
        if os.getpid() != self._process:
            os._exit(1)  # a child, forked by a step, must not go on as a second worker
        self.changed[name] |= self.settings.put_back()
        replaced = self.functions.put_back(codes=whole)
        for what, file in replaced.items():
            files = {str(self.implementation_file(n)): n for n in self.job["implementations"]}
            if owner := files.get(file, name):
                self.reasons[owner] = (
                    f"{self.implementation_file(owner).name} replaces {what} for the whole "
                    "process, including the clock and all other arms; it was restored"
                )

    def found_after_rounds(self) -> dict[str, str]:
        """Return the reasons against arms that have emerged only in the rounds, by arm."""
        return self.threads.reasons()

    def check_process(self, name: str) -> None:
        """Call `put_back` after a file's code has run; WrongStepError if it replaced functions."""
        self.put_back(name)
        self.threads.look("" if name in self.foreign else name)
        if name in self.reasons:
            raise WrongStepError(self.reasons[name])

    def modules_of(self, name: str) -> AbstractContextManager[object]:
        """Return a context in which an implementation imports its own revision's modules."""
        if (base := self.job["base_files"].get(name)) is None:
            return nullcontext()
        return base_modules(Path(base["worktree"]), Path(base["repository"]))
