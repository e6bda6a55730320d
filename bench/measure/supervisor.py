"""One block in workers of its own, until every planned cell has ended.

A worker is one process, or several that share the mesh. Its death or delay costs the one cell that
it is blamed on: the block is run again without it. Each retry removes at least one cell, so this
ends. Imports no jax.
"""

from __future__ import annotations

import re
import signal
import time
import uuid
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, cast

from bench.analyse.verdicts import look_rounds
from bench.measure.hosts import Hosts, Order, ThisHost
from bench.measure.processes.ask import signal_name
from bench.measure.processes.group import Group
from bench.plan.presets import SILENCE_S
from bench.records.cells import Block, Cell
from bench.records.host import load_average
from bench.records.messages import (
    ENOUGH,
    MORE,
    PHASES_AFTER_ROUNDS,
    Job,
    PhaseEvent,
    WorkerSettings,
)
from bench.records.printable import readable
from bench.records.rows import BlockRow, CellRow, LossRow, SampleRow, TraceRow, block_fields
from bench.records.statuses import Status
from bench.records.variants import Variant

_PEER_S = 30.0
"""If one process fails at an implementation, the others that do have so long to say so."""

_REASON_LINES = 5
_OUT_OF_MEMORY = re.compile(
    r"RESOURCE_EXHAUSTED|out of memory|std::bad_alloc|MemoryError", re.IGNORECASE
)
_KILLERS = {
    True: ", as the kernel does for want of memory: its count of such kills has risen",
    False: ", and not by the kernel for want of memory: its count of such kills has not risen",
    None: ", by the kernel for want of memory or by somebody else: no count of such kills is there",
}
"""By whether the kernel is known to have killed for want of memory."""
_BEFORE_ARMS = ("", "start", "truth")
"""Phases in which every arm would fail alike: running each alone would only repeat the failure."""


@dataclass(frozen=True)
class Settings:
    """What every block of a run shares."""

    platform: str
    baseline: str
    worker: WorkerSettings
    """What every worker is told."""
    timeout_s: float | None = None
    """Most time of one worker process."""
    silence_s: float = SILENCE_S
    variants: Mapping[str, Variant] = field(default_factory=dict)
    """Other environments, by name."""
    hosts: Hosts = field(default_factory=ThisHost)
    """Where worker processes are started."""
    program_cache: str | None = None
    """Folder of compiled programs that the launches share."""


@dataclass(frozen=True)
class Launch:
    """Which of a block's launches this is, and what earlier ones leave it to do."""

    number: int = 0
    proved: tuple[str, ...] = ()
    """Implementations with a stored float64 proof."""
    more: Callable[[list[SampleRow]], bool] = lambda _: True
    """Asked at every look, with the samples of the launch so far: go on?"""


@dataclass(frozen=True)
class Attempt:
    """What one worker process contributed: rows that are stored together."""

    samples: tuple[SampleRow, ...]
    cells: tuple[CellRow, ...]
    block: BlockRow
    traces: tuple[TraceRow, ...]
    losses: tuple[LossRow, ...] = ()


@dataclass
class _Report:
    """What a worker said, and how it ended."""

    phase: str = ""
    arm: str = ""
    cells: dict[str, CellRow] = field(default_factory=dict)
    samples: list[SampleRow] = field(default_factory=list)
    traces: list[TraceRow] = field(default_factory=list)
    losses: list[LossRow] = field(default_factory=list)
    block: BlockRow | None = None
    status: Status = "ok"
    """`ok` where the worker finished; else how the cell it is blamed on ended."""
    reason: str = ""
    failures: dict[str, dict[int, CellRow]] = field(default_factory=dict)
    """Failed cells as each of its processes told, by implementation and rank."""
    first_told: dict[str, float] = field(default_factory=dict)
    """When the first of them did, on the monotonic clock."""
    failed_alone: CellRow | None = None
    """A cell that one process failed at while the others waited for it."""

    def told_failure(self, rank: int, row: CellRow) -> None:
        """A process has failed at a cell. The others, which do the same, are expected to."""
        name = row["implementation"]
        self.failures.setdefault(name, {})[rank] = row
        self.first_told.setdefault(name, time.monotonic())

    def overdue(self, late: str, count: int) -> str:
        """Why a launch is to be cut; empty if it may go on.

        Args:
          late: which deadline has passed; empty if none has.
          count: of processes. If one failed alone, the others may wait for it for ever.
        """
        for name, rows in self.failures.items():
            waited_s = time.monotonic() - self.first_told[name]
            if len(rows) < count and (late or waited_s > _PEER_S):
                rank, self.failed_alone = next(iter(rows.items()))
                told = self.failed_alone["reason"]
                return f"process {rank} of {count} failed where others did not: {told}"
        return late


def run_block(
    block: Block,
    implementations: Sequence[str],
    settings: Settings,
    progress: Callable[[PhaseEvent], None] = lambda _: None,
    launch: Launch = Launch(),
) -> list[Attempt]:
    """Prove and measure one block, once.

    Returns:
      The attempts to store; together they hold exactly one row for each cell.
    """
    return _BlockRun(block, settings, progress, launch).run(list(implementations))


class _BlockRun:
    def __init__(
        self,
        block: Block,
        settings: Settings,
        progress: Callable[[PhaseEvent], None],
        launch: Launch,
    ) -> None:
        self.block = block
        self.settings = settings
        self.progress = progress
        self.launch = launch
        self.without_ceilings = False
        """Set once a worker has ended while it measured them: that must cost no cell."""

    def run(self, implementations: list[str]) -> list[Attempt]:
        ended: dict[str, CellRow] = {}
        """Cells that did not end ok, and stay so."""
        squeezed: dict[str, CellRow] = {}
        """Cells that ran out of memory beside others."""
        attempts: list[Attempt] = []
        pending = implementations
        last: BlockRow | None = None
        while pending:
            attempt, load_before = uuid.uuid4().hex[:12], load_average()
            started_at = datetime.now(UTC).isoformat(timespec="seconds")
            report = self._launch(attempt, pending, alone=False)
            if report.status != "ok" and report.phase == "ceilings":
                self.without_ceilings = True
                continue
            last = self._block_row(report.block, attempt, started_at, load_before)
            failed = {name: row for name, row in report.cells.items() if row["status"] != "ok"}
            if report.status != "ok" and report.arm in pending and report.arm not in failed:
                failed[report.arm] = self._row(attempt, report.arm, report.status, report.reason)
            for name, row in failed.items():
                # Others were alive beside it, if only the baseline's twin; but none was while the
                # gate's truth was computed, which would not fit for a lone cell either.
                beside = row["status"] == "oom" and report.phase not in _BEFORE_ARMS
                (squeezed if beside else ended)[name] = row
            if report.status == "ok":
                for name in squeezed:
                    report.cells.pop(name, None)
                if report.cells or ended:
                    attempts.append(self._attempt(report, ended, last))
                break
            pending = [name for name in pending if name not in failed]
            if not failed:
                status, reason = report.status, report.reason
                rows = {name: self._row(attempt, name, status, reason) for name in pending}
                # Together they do not fit, and none is to blame: each gets the memory to itself.
                apart = status == "oom" and report.phase not in _BEFORE_ARMS and len(pending) > 1
                (squeezed if apart else ended).update(rows)
                pending = []
        if not attempts and ended and last is not None:
            unmeasured: BlockRow = {**last, "baseline": "", "rounds": 0, "steps": 0}
            attempts.append(self._attempt(_Report(), ended, unmeasured))
        attempts += [self._alone(name) for name in implementations if name in squeezed]
        return attempts

    def _alone(self, name: str) -> Attempt:
        attempt, load_before = uuid.uuid4().hex[:12], load_average()
        started_at = datetime.now(UTC).isoformat(timespec="seconds")
        report = self._launch(attempt, [name], alone=True)
        block = self._block_row(report.block, attempt, started_at, load_before)
        row = report.cells.get(name)
        if report.status != "ok" and (row is None or row["status"] == "ok"):
            row = self._row(attempt, name, report.status, report.reason)
        assert row is not None, "_launch gives every cell of a finished worker a row"  # noqa: S101
        report.cells = {}
        if row["status"] != "ok":
            report.samples = []
        row["interleaved"] = False
        return self._attempt(report, {name: row}, block)

    def _attempt(self, report: _Report, ended: Mapping[str, CellRow], block: BlockRow) -> Attempt:
        """Rows of earlier, cut-off workers join the attempt that is stored."""
        cells = {**report.cells, **ended}
        rows = [cast("CellRow", {**row, "attempt": block["attempt"]}) for row in cells.values()]
        traces, losses = tuple(report.traces), tuple(report.losses)
        return Attempt(tuple(report.samples), tuple(rows), block, traces, losses)

    def _row(self, attempt: str, name: str, status: Status, reason: str) -> CellRow:
        return {
            "cell": Cell(self.block, name).name,
            **block_fields(self.block, attempt, self.launch.number),
            "implementation": name,
            "status": status,
            "reason": reason,
        }

    def _block_row(
        self, row: BlockRow | None, attempt: str, started_at: str, load_before: float
    ) -> BlockRow:
        """The worker's row, or one that says that nothing was measured; with the host's load."""
        if row is None:
            row = {
                **block_fields(self.block, attempt, self.launch.number),
                "baseline": "",
                "rounds": 0,
                "looks": [],
                "steps": 0,
                "started_at": started_at,
                "seconds": {},
                "ceilings": None,
                "load_before": 0.0,
                "load_after": 0.0,
            }
        return {**row, "load_before": load_before, "load_after": load_average()}

    def _job(self, attempt: str, implementations: list[str], *, alone: bool) -> Job:
        settings = self.settings
        baseline = settings.baseline
        job: Job = {
            **settings.worker,
            **self.block.fields,
            "attempt": attempt,
            "launch": self.launch.number,
            "implementations": implementations,
            "baseline": baseline if baseline in implementations else implementations[0],
            "proved": [name for name in implementations if name in self.launch.proved],
            # A cell that runs alone has nothing to be compared with.
            "looks": [] if alone else look_rounds(settings.worker["rounds"]),
            "ceilings": self.launch.number == 0 and not alone and not self.without_ceilings,
            # Every block has its own order of arms, and a run that is repeated has the same.
            "seed": zlib.crc32(f"{self.block.name}/{self.launch.number}".encode()),
            "alone": alone,
        }
        if alone:  # what did not fit beside others has no room for more
            job["inputs"] = []
        if self.launch.number:
            job["phases"] = {}
        if settings.program_cache is not None:
            # What an arm compiles in one block must not spare it compiling in another.
            block = re.sub(r"[^\w.=-]", "_", self.block.name)
            job["program_cache"] = str(Path(settings.program_cache, block))
        return job

    def _launch(self, attempt: str, implementations: list[str], *, alone: bool) -> _Report:
        settings, count = self.settings, self.block.options.processes
        job = self._job(attempt, implementations, alone=alone)
        order = Order(
            job=job,
            platform=settings.platform,
            devices=self.block.mesh.size // count,
            processes=count,
            variant=settings.variants.get(self.block.options.variant),
        )
        report, deadlines = _Report(), _Deadlines(settings)
        coordinator = settings.hosts.coordinator() if count > 1 else ""
        with Group(partial(settings.hosts.start, order, coordinator), count) as group:
            end = group.follow(
                partial(self._hear, report, group),
                lambda silence_s: report.overdue(deadlines.passed(silence_s), count),
            )
        turn, held_s = group.turn()
        if report.phase == "measure" and (
            not deadlines.overdue or held_s > settings.worker["seconds"]
        ):
            # A worker that was only slow had to end in somebody's turn; it is to blame where the
            # turn alone took longer than all rounds should.
            report.arm = turn
        during = f" during {report.phase}" if report.phase else ""
        if report.block is not None and (report.phase in PHASES_AFTER_ROUNDS or end.code == 0):
            # A worker that died after the rounds has told before what it measured.
            self._complete(report, attempt, implementations)
        elif report.failed_alone is not None and end.late:
            report.arm = report.failed_alone["implementation"]
            report.status, report.reason = report.failed_alone["status"], end.late
        elif end.late:
            held = "".join(f"; process {rank} was stopped" for rank in end.stopped)
            report.status, report.reason = "timeout", end.late + during + held
        else:
            who = "the worker" if count == 1 else f"process {end.rank} of {count}"
            report.status, report.reason = _diagnose(
                who, end.code, during, group.tail(end.rank), group.killed_by_kernel(end.rank)
            )
        return report

    def _complete(self, report: _Report, attempt: str, implementations: list[str]) -> None:
        """Hold a worker that finished to its word: a row for each cell, samples for each ok one."""
        measured = {row["arm"] for row in report.samples}
        for name in implementations:
            row = report.cells.get(name)
            if row is None:
                reason = "the worker ended without a result for it"
            elif row["status"] == "ok" and name not in measured:
                reason = "the worker ended without samples of it"
            else:
                continue
            report.cells[name] = self._row(attempt, name, "crashed", reason)

    def _hear(self, report: _Report, group: Group, rank: int, event: dict[str, Any]) -> None:
        if event["event"] == "cell" and event["row"]["status"] != "ok":
            report.told_failure(rank, event["row"])
        if rank:
            return  # rank 0 speaks for all
        match event["event"]:
            case "look":
                group.answer(MORE if self.launch.more(event["rows"]) else ENOUGH)
            case "phase":
                report.phase, report.arm = event["phase"], event["arm"]
                self.progress(cast("PhaseEvent", event))
            case "cell":
                report.cells[event["row"]["implementation"]] = event["row"]
            case "samples":
                report.samples = event["rows"]
            case "trace":
                report.traces.append(event["row"])
            case "losses":
                report.losses.append(event["row"])
            case "block":
                report.block = event["row"]


class _Deadlines:
    """When a launch that has begun now takes too long."""

    def __init__(self, settings: Settings) -> None:
        self._started = time.monotonic()
        self._settings = settings
        self.overdue = False
        """Whether the limit of the whole launch has passed, which may have been getting on."""

    def passed(self, silence_s: float) -> str:
        """Which limit has passed, given the seconds without an event; empty if none has."""
        took, limit = time.monotonic() - self._started, self._settings.timeout_s
        if limit is not None and took > limit:
            self.overdue = True
            return f"the worker took over {took:.0f} s"
        if silence_s > self._settings.silence_s:
            return f"the worker showed no progress for {self._settings.silence_s:g} s"
        return ""


def _diagnose(
    who: str, code: int, during: str, tail: Sequence[str], by_kernel: bool | None
) -> tuple[Status, str]:
    """Status and reason of the cell that is blamed for the end of a worker's process.

    Args:
      who: ended.
      code: as of subprocess: below 0 for a signal.
      during: the phase.
      tail: the last lines that it wrote.
      by_kernel: whether the kernel killed a process for want of memory meanwhile; None if unknown.
    """
    last = readable("\n".join(tail[-_REASON_LINES:]))
    if code < 0:
        how = f"{who} was killed by {signal_name(-code)}"
    elif code:
        how = f"{who} ended with exit code {code}"
    else:
        how = f"{who} ended before its block was complete"
    killer = _KILLERS[by_kernel] if code == -signal.SIGKILL else ""
    reason = f"{how}{during}{killer}" + (f"; its last lines:\n{last}" if last else "")
    killed = code == -signal.SIGKILL and by_kernel is not False
    memory = killed or (code != 0 and _OUT_OF_MEMORY.search(last))
    return ("oom" if memory else "crashed"), reason
