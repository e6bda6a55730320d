"""One block in worker processes of its own, until every planned cell has ended.

A worker's death or delay costs the one cell that it is blamed on: the block is run again without
it. Each retry removes at least one cell, so this ends. Imports no jax.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Self, cast

from bench.cells import Block, Cell
from bench.child import signal_name
from bench.environment import worker_cores, worker_environment
from bench.guard import Guard
from bench.host import load_average
from bench.oom_kills import killed_by_kernel, read_counters
from bench.protocol import ENOUGH, MORE, BaseFile, Job, JobOptions, PhaseEvent
from bench.readable import readable
from bench.rows import BlockRow, CellRow, SampleRow, Status, TraceRow, block_fields
from bench.turns import Turns
from bench.variants import Variant
from bench.verdicts import look_rounds

COMMAND: tuple[str, ...] = (sys.executable, "-m", "bench.worker")

SILENCE_S = 600.0
"""A worker that reports nothing for this long is taken to hang. Compiling is not reported on."""

_POLL_S = 0.2
_TAIL_LINES = 40
_REASON_LINES = 5
_LINE_CHARACTERS = 1 << 16
"""What a worker writes beside its events is read in pieces of this size: it may have no lines."""
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
    rounds: int
    """Most rounds of a launch."""
    seconds: float
    """Measuring time of so many rounds."""
    timeout_s: float | None = None
    """Most time of one worker process."""
    silence_s: float = SILENCE_S
    variants: Mapping[str, Variant] = field(default_factory=dict)
    """Other environments, by name."""
    implementation_paths: tuple[str, ...] = ()
    workload_paths: tuple[str, ...] = ()
    base_files: Mapping[str, BaseFile] = field(default_factory=dict)
    """Files of arms that are another revision of an implementation."""
    program_cache: str | None = None
    """Folder of compiled programs that the launches share."""
    profile_dir: str | None = None
    profile_run: str = ""
    profile_steps: int = 0


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


@dataclass
class _Report:
    """What a worker said, and how it ended."""

    phase: str = ""
    arm: str = ""
    cells: dict[str, CellRow] = field(default_factory=dict)
    samples: list[SampleRow] = field(default_factory=list)
    traces: list[TraceRow] = field(default_factory=list)
    block: BlockRow | None = None
    status: Status = "ok"
    """`ok` where the worker finished; else how the cell it is blamed on ended."""
    reason: str = ""


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
        return Attempt(tuple(report.samples), tuple(rows), block, tuple(report.traces))

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
                "load_before": 0.0,
                "load_after": 0.0,
            }
        return {**row, "load_before": load_before, "load_after": load_average()}

    def _job(self, attempt: str, implementations: list[str], *, alone: bool) -> Job:
        settings = self.settings
        baseline = settings.baseline
        job: Job = {
            "attempt": attempt,
            "launch": self.launch.number,
            "workload": self.block.workload,
            "size": self.block.size,
            "mesh": str(self.block.mesh),
            "batch": self.block.batch,
            "options": cast("JobOptions", asdict(self.block.options)),
            "implementations": implementations,
            "baseline": baseline if baseline in implementations else implementations[0],
            "proved": [name for name in implementations if name in self.launch.proved],
            "rounds": settings.rounds,
            # One that runs alone has nothing to be compared with.
            "looks": [] if alone else look_rounds(settings.rounds),
            "seconds": settings.seconds,
            # Every block has its own order of arms, and a run that is repeated has the same.
            "seed": zlib.crc32(f"{self.block.name}/{self.launch.number}".encode()),
            "alone": alone,
            "implementation_paths": list(settings.implementation_paths),
            "workload_paths": list(settings.workload_paths),
        }
        if settings.base_files:
            job["base_files"] = dict(settings.base_files)
        if settings.program_cache is not None:
            # What an arm compiles in one block must not spare it compiling in another.
            block = re.sub(r"[^\w.=-]", "_", self.block.name)
            job["program_cache"] = str(Path(settings.program_cache, block))
        if settings.profile_dir is not None and self.launch.number == 0:
            job["profile_dir"] = settings.profile_dir
            job["profile_run"] = settings.profile_run
            job["profile_steps"] = settings.profile_steps
        return job

    def _launch(self, attempt: str, implementations: list[str], *, alone: bool) -> _Report:
        report = _Report()
        platform, devices = self.settings.platform, self.block.mesh.size
        environment = worker_environment(platform, devices)
        variant = self.settings.variants.get(self.block.options.variant)
        if variant is not None:
            environment = variant.applied(environment)
        job = json.dumps(self._job(attempt, implementations, alone=alone))
        kills = read_counters()
        with _Worker(environment, job, worker_cores(platform, devices)) as worker:
            limit = self.settings.timeout_s
            deadline = time.monotonic() + limit if limit is not None else None
            end = worker.follow(
                lambda event: self._hear(report, event, worker), self.settings.silence_s, deadline
            )
            turn, held_s = worker.turn()
        if report.phase == "measure" and (not end.overdue or held_s > self.settings.seconds):
            # A worker that was only slow had to end in somebody's turn; it is to blame where the
            # turn alone took longer than all rounds should.
            report.arm = turn
        during = f" during {report.phase}" if report.phase else ""
        if report.block is not None and (report.phase == "trace" or end.code == 0):
            # A worker that died while it traced has told before what it measured.
            self._complete(report, attempt, implementations)
        elif end.late:
            report.status, report.reason = "timeout", end.late + during
        else:
            by_kernel = killed_by_kernel(kills, read_counters())
            report.status, report.reason = _diagnose(end.code, during, worker.tail(), by_kernel)
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

    def _hear(self, report: _Report, event: dict[str, Any], worker: _Worker) -> None:
        match event["event"]:
            case "look":
                worker.answer(MORE if self.launch.more(event["rows"]) else ENOUGH)
            case "phase":
                report.phase, report.arm = event["phase"], event["arm"]
                self.progress(cast("PhaseEvent", event))
            case "cell":
                report.cells[event["row"]["implementation"]] = event["row"]
            case "samples":
                report.samples = event["rows"]
            case "trace":
                report.traces.append(event["row"])
            case "block":
                report.block = event["row"]


@dataclass(frozen=True)
class _End:
    code: int
    late: str
    """Which deadline passed; empty if none did."""
    overdue: bool = False
    """Whether it was that of the whole worker, which may have been getting on."""


class _Worker:
    """A worker process and whatever it starts, all of which is gone when the context ends."""

    def __init__(self, environment: Mapping[str, str], job: str, cores: set[int] | None) -> None:
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._said: queue.Queue[str | None] = queue.Queue()
        self.answer(job)
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._guard, self._turns = Guard(), Turns()
        self._process = subprocess.Popen(  # noqa: S603 (our own command)
            COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**environment, **self._guard.environment, **self._turns.environment},
            pass_fds=(self._turns.descriptor,),
            text=True,
            errors="replace",
            start_new_session=True,
        )
        process = self._process
        self._guard.watch(process.pid)
        if cores is not None:
            # It reads its job first, and starts its threads, which inherit this, only then.
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(process.pid, cores)
        self._threads = [
            threading.Thread(target=self._feed, daemon=True),
            threading.Thread(target=self._read_out, args=(process.stdout,), daemon=True),
            threading.Thread(target=self._read_err, args=(process.stderr,), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()
        self._guard.dismiss()
        self._turns.close()
        self._said.put(None)
        for thread in self._threads:
            thread.join(timeout=5)

    def follow(
        self, hear: Callable[[dict[str, Any]], None], silence_s: float, deadline: float | None
    ) -> _End:
        """Pass events on until the worker ends or a deadline passes."""
        for event in self._events(silence_s, deadline):
            if isinstance(event, str):
                overdue = deadline is not None and time.monotonic() > deadline
                self._kill()
                return _End(self._process.returncode, event, overdue)
            hear(event)
        # The output is closed: the worker has ended, or is about to.
        try:
            return _End(self._process.wait(timeout=silence_s), "")
        except subprocess.TimeoutExpired:
            self._kill()
            return _End(self._process.returncode, f"did not end within {silence_s:g} s")

    def _events(self, silence_s: float, deadline: float | None) -> Iterator[dict[str, Any] | str]:
        started = heard = time.monotonic()
        while True:
            try:
                line = self._lines.get(timeout=_POLL_S)
            except queue.Empty:
                line = ""
                if self._process.poll() is not None:
                    # A child that it left behind may hold the pipe open: this ends the reading.
                    self._kill()
            if line is None:
                return
            event = _parse(line)
            now = time.monotonic()
            if event is not None:
                heard = now
                yield event
            elif line:
                self._tail.append(line.rstrip("\n"))
            if deadline is not None and now > deadline:
                yield f"the worker took over {now - started:.0f} s"
                return
            if now - heard > silence_s:
                yield f"the worker showed no progress for {silence_s:g} s"
                return

    def tail(self) -> list[str]:
        """The last lines that it wrote beside its events."""
        return [line for line in self._tail if line.strip()]

    def turn(self) -> tuple[str, float]:
        """Who had the turn in the rounds when it ended, and for how many seconds already."""
        return self._turns.read()

    def _kill(self) -> None:
        # Even if the worker itself is gone: it may have left children behind.
        self._guard.end_all()
        self._process.wait()

    def answer(self, line: str) -> None:
        """Send a line to its stdin, without waiting until it reads."""
        self._said.put(line)

    def _feed(self) -> None:
        stdin = self._process.stdin
        assert stdin is not None, "it is a pipe"  # noqa: S101
        # A worker that dies before it reads shows by its exit code.
        with contextlib.suppress(OSError), stdin:
            while (line := self._said.get()) is not None:
                stdin.write(f"{line}\n")
                stdin.flush()

    def _read_out(self, stdout: IO[str]) -> None:
        with contextlib.suppress(OSError, ValueError), stdout:
            for line in stdout:
                self._lines.put(line)
        self._lines.put(None)

    def _read_err(self, stderr: IO[str]) -> None:
        with contextlib.suppress(OSError, ValueError), stderr:
            for line in iter(lambda: stderr.readline(_LINE_CHARACTERS), ""):
                self._tail.append(line.rstrip("\n"))


def _parse(line: str) -> dict[str, Any] | None:
    """An event, or None for a line that is none."""
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and "event" in event else None


def _diagnose(
    code: int, during: str, tail: Sequence[str], by_kernel: bool | None
) -> tuple[Status, str]:
    """Status and reason of the cell that is blamed for a worker's end.

    Args:
      code: as of subprocess: below 0 for a signal.
      during: the phase.
      tail: the last lines that it wrote.
      by_kernel: whether the kernel killed a process for want of memory meanwhile; None if unknown.
    """
    last = readable("\n".join(tail[-_REASON_LINES:]))
    if code < 0:
        how = f"the worker was killed by {signal_name(-code)}"
        if code == -signal.SIGKILL:
            how += _KILLERS[by_kernel]
    elif code:
        how = f"the worker ended with exit code {code}"
    else:
        how = "the worker ended before its block was complete"
    reason = f"{how}{during}" + (f"; its last lines:\n{last}" if last else "")
    killed = code == -signal.SIGKILL and by_kernel is not False
    memory = killed or (code != 0 and _OUT_OF_MEMORY.search(last))
    return ("oom" if memory else "crashed"), reason
