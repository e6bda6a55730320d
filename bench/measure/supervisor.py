"""The supervisor of a block, which runs it in workers until every planned cell has a result.

A worker is one process, or several that share the mesh. If it dies or hangs, only the cell to blame
is lost: the block runs again without it. Every retry removes at least one cell, so the retries end.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from bench.measure.processes.group import FORGED, Group, Hosts, Order
from bench.measure.suspicious_times import ROUNDS, compared, reasons_against, suspicious_winner
from bench.measure.worker_report import WorkerReport
from bench.plan.presets import SILENCE_S
from bench.records.arms import TWIN, implementation_of
from bench.records.cells import Block, Cell
from bench.records.git_files import shipped_implementations
from bench.records.messages import UNFINISHED, Job, LookEvent, PhaseEvent, Place, WorkerSettings
from bench.records.rows import BlockRow, Ceilings, CellRow, Cells, LossRow, SampleRow, block_fields
from bench.records.statuses import Status
from bench.records.step_programs import ProgramFigures
from bench.records.trace_rows import TraceRow
from bench.records.variants import Variant

_EXPECTED = ("unsupported", "oom")
"""Failures of shipped implementations that do not suggest that another file spoiled them."""
_BEFORE_ARMS = ("", "start", "truth")
"""Phases that do not depend on the arms, so that running an arm alone would not help."""


@dataclass(frozen=True)
class Attempt:
    """The rows of one worker, which are stored together."""

    samples: Sequence[SampleRow]
    cells: Sequence[CellRow]
    block: BlockRow
    traces: Sequence[TraceRow] = ()
    losses: Sequence[LossRow] = ()


@dataclass
class Launch:
    """One launch of a block, in as many workers as it takes."""

    block: Block
    platform: str
    baseline: str
    worker: WorkerSettings
    """The part of every job that is the same throughout the run."""
    timeout_s: float | None = None
    silence_s: float = SILENCE_S
    variants: Mapping[str, Variant] = field(default_factory=dict)
    hosts: Hosts = field(default_factory=Hosts)
    unsupported: Mapping[str, str] = field(default_factory=dict)
    """Known reasons, by implementation, why it cannot run the block; empty if it can."""
    program_cache: str | None = None
    """Compilation cache that the launches of a block share. Blocks do not share one, because that
    would shorten later blocks' compile times."""
    number: int = 0
    proved: Mapping[str, ProgramFigures] = field(default_factory=dict)
    """See Job.proved."""
    arms_to_continue: Callable[[LookEvent], Sequence[str]] = lambda event: (
        sorted({row["arm"] for row in event["rows"]}) if event["progress"] < 1 else []
    )
    """Chooses at every look the arms that need more rounds."""
    ceilings: Ceilings | None = None
    """The ceilings that an earlier launch of the block has measured."""
    repeated: frozenset[str] = frozenset()
    """Suspicious winners that an earlier launch has measured again in isolation."""
    progress: Callable[[PhaseEvent], None] = lambda _: None
    without_ceilings: bool = False
    """Set once a worker has died while it measured the ceilings, for which no cell is to blame."""

    def cell_row(self, name: str, status: Status, reason: str) -> CellRow:
        """Make the row of a cell without figures; `attempt` fills in the attempt."""
        return {
            "cell": Cell(self.block, name).name,
            **block_fields(self.block, "", self.number),
            "implementation": name,
            "status": status,
            "reason": reason,
        }

    def users_among(self, names: Iterable[str]) -> set[str]:
        """Return the implementations whose files were not shipped with Lockstep."""
        given = {Path(path).stem for path in self.worker["implementation_paths"]}
        return {*names} & given | {*names} - shipped_implementations()

    def attempt(self, report: WorkerReport, cells: Iterable[CellRow]) -> Attempt:
        """Make an attempt of a worker's rows and of cell rows, some perhaps from failed workers."""
        nothing = {"baseline": "", "rounds": 0, "steps": 0, "looks": [], "seconds": {}}
        block = {
            **block_fields(self.block, report.attempt, self.number),
            "started_at": report.started_at,
            "ceilings": None,
            **nothing,
            **(report.block or {}),
        }
        rows = [cast("CellRow", {**row, "attempt": report.attempt}) for row in cells]
        own = cast("BlockRow", block)
        return Attempt(report.samples, rows, own, report.traces, report.losses)

    def _work(
        self, names: list[str], *, alone: bool = False, isolated: bool = False
    ) -> WorkerReport:
        """Run a worker for some implementations, from its start to its end."""
        block, processes = self.block, self.block.options.processes
        report = WorkerReport(self.timeout_s, self.silence_s, processes)
        coordinator = self.hosts.coordinator() if processes > 1 else ""
        variant = self.variants.get(block.options.variant)
        order = Order(
            job=self._job(report.attempt, names, alone=alone or isolated, isolated=isolated),
            platform=self.platform,
            devices=block.mesh.size // processes,
            variables={} if variant is None else dict(variant.variables),
            place=Place(rank=0, processes=processes, coordinator=coordinator),
            ranks=[*range(processes)],
        )
        with Group(partial(self.hosts.start, order), processes, report.attempt) as group:
            end = group.follow(partial(self._on_event, report, group), report.overdue)
        report.finish(end, group, self.worker["seconds"])
        if report.status == "ok":
            self._complete(report, names)
        return report

    def _job(self, attempt: str, implementations: list[str], *, alone: bool, isolated: bool) -> Job:
        baseline, number, proved = self.baseline, self.number, self.proved
        job: Job = {
            **self.worker,
            **self.block.fields,
            "attempt": attempt,
            "launch": number,
            "implementations": implementations,
            "baseline": baseline if baseline in implementations else implementations[0],
            "proved": {name: proved[name] for name in implementations if name in proved},
            "ceilings": number == 0 and not alone and not self.without_ceilings,
            # The order of arms differs between blocks, but is the same in a repeated run.
            "seed": zlib.crc32(f"{self.block.name}/{number}".encode()),
            # A cell that runs alone is compared with nothing.
            "interleaved": not alone,
        }
        if alone:  # a cell that did not fit with others has no spare memory
            job |= {"inputs": [], "ablations": []}
        if isolated:  # each in a process of its own; what the worker has proved holds there too
            job |= {"isolated": implementations, "proved": {name: {} for name in implementations}}
            rounds = min(job["rounds"], ROUNDS)
            job |= {"rounds": rounds, "seconds": job["seconds"] * (rounds / job["rounds"])}
        if number or isolated:
            job["phases"] = {}
        if self.program_cache is not None:
            job["program_cache"] = self.program_cache
        return job

    def _on_event(
        self, report: WorkerReport, group: Group, rank: int, event: dict[str, Any]
    ) -> None:
        report.on_event(rank, event)
        if rank == 0 and event["event"] == "look":
            more = self.arms_to_continue(cast("LookEvent", event))
            group.processes[0].send_line(json.dumps(more))
        elif rank == 0 and event["event"] == "phase":
            self.progress(cast("PhaseEvent", event))

    def _complete(self, report: WorkerReport, implementations: list[str]) -> None:
        """Mark cells without a row, and ok cells without samples, as crashed."""
        cells, measured = report.cells, {row["arm"] for row in report.samples}
        for name in implementations:
            what = "a result" if name not in cells else "samples"
            if name not in cells or (cells[name]["status"] == "ok" and name not in measured):
                reason = f"the worker ended without {what} for it"
                cells[name] = self.cell_row(name, "crashed", reason)
        # Impossible times do not count; with those of the baseline, neither do its twin's.
        refused = reasons_against(*self._timed(report), report.rounds_s)
        self._withdraw(report, refused, "implausible")

    def _timed(
        self, report: WorkerReport
    ) -> tuple[BlockRow, Cells, Sequence[SampleRow], Ceilings | None]:
        """Return a complete block's row, the rows of its ok cells, its samples and ceilings."""
        block = report.block
        assert block is not None, "a worker that finished has sent it"  # noqa: S101
        right = {name: row for name, row in report.cells.items() if row["status"] == "ok"}
        return block, right, report.samples, block["ceilings"] or self.ceilings

    def _withdraw(self, report: WorkerReport, refused: Mapping[str, str], status: Status) -> None:
        """End ok cells whose times do not count, for the given reasons."""
        block, right, *_ = self._timed(report)
        for name, reason in refused.items():
            report.cells[name] = self.cell_row(name, status, reason)
        gone = {*refused, *([TWIN] if block["baseline"] in refused else [])}
        report.samples = [r for r in report.samples if implementation_of(r["arm"]) not in gone]
        if TWIN in gone:
            block["baseline"] = next((name for name in right if name not in gone), "")

    def _repeat_winner(self, report: WorkerReport) -> str:
        """Isolate a suspicious winner; return it if its times are withdrawn, else an empty name."""
        timed = self._timed(report)
        # A gate compares revisions in the worker, a TPU belongs to one process, and an isolated
        # process cannot join a mesh that several processes share.
        apart = self.worker["base_files"] or self.platform == "tpu"
        if apart or self.block.options.processes > 1:
            return ""
        found = suspicious_winner(*timed, self.users_among(timed[1]))
        if found is None or found.name in self.repeated:
            return ""
        names = list(filter(None, (found.finding["beside"], found.name)))
        again = self._work(names, isolated=True)
        if again.status != "ok":
            again.samples = []
            blamed = again.arm if again.arm in names else found.name
            again.cells[blamed] = self.cell_row(blamed, again.status, again.reason)
        isolation, wrong = compared(found, again.cells, again.samples)
        if wrong:
            self._withdraw(report, {found.name: wrong}, "wrong")
        report.cells[found.name]["isolation"] = isolation
        return found.name if wrong else ""

    def run(self, implementations: Sequence[str]) -> list[Attempt]:
        """Prove and measure the block; the attempts together hold one row for each cell."""
        if all(map(self.unsupported.get, implementations)):
            known = self.unsupported
            rows = [self.cell_row(name, "unsupported", known[name]) for name in implementations]
            return [self.attempt(WorkerReport(None, self.silence_s, 1), rows)]
        ended: dict[str, CellRow] = {}
        """Rows of cells that will not run again."""
        doubtful: set[str] = set()
        """Cells that will run alone: others may be to blame for how they ended, or a shipped
        implementation failed beside a file that was not shipped, which may have spoiled it."""
        pending = list(implementations)
        while pending:
            report = self._work(pending)
            if report.status != "ok" and report.phase == "ceilings" and not self.without_ceilings:
                self.without_ceilings = True
                continue
            failed = {name: row for name, row in report.cells.items() if row["status"] != "ok"}
            if report.status != "ok" and report.arm in pending and report.arm not in failed:
                failed[report.arm] = self.cell_row(report.arm, report.status, report.reason)
            doubtful |= (shared := self._shared(failed, report, pending))
            ended |= {name: row for name, row in failed.items() if name not in shared}
            if strangers := self._spoilers(failed, report, pending):
                pending = [name for name in pending if name not in strangers]
                ended = {name: row for name, row in ended.items() if name not in pending}
                doubtful = doubtful - {*pending} | strangers - failed.keys()
                continue
            spoiled = any(row.get("threads_s") for row in failed.values())
            if report.status == "ok" and not spoiled and (spoiler := self._repeat_winner(report)):
                failed[spoiler] = ended[spoiler] = report.cells[spoiler]
                spoiled = True
            # A spoiler may have slowed the others down, which therefore run again without it.
            if report.status == "ok" and not (spoiled and len(pending) > len(failed)):
                break
            pending = [name for name in pending if name not in failed]
            if not failed:
                # The cells do not fit together, and none of them is to blame: each runs alone.
                memory = report.status == "oom" and report.phase not in _BEFORE_ARMS
                alone = {*pending} if memory and len(pending) > 1 else set[str]()
                doubtful |= alone
                row = partial(self.cell_row, status=report.status, reason=report.reason)
                ended |= {name: row(name) for name in pending if name not in alone}
                pending = []
        else:  # nothing counts that the last worker has measured
            report = replace(report, block=None, cells={}, samples=[], traces=[], losses=[])
        cells = {n: row for n, row in report.cells.items() if n not in doubtful} | ended
        attempts = [self.attempt(report, cells.values())] if cells else []
        return attempts + [self._run_alone(name) for name in implementations if name in doubtful]

    def _shared(self, failed: Cells, report: WorkerReport, pending: Sequence[str]) -> set[str]:
        """Return the failed cells for which other arms may be to blame.

        At least the baseline's twin was in memory beside each of them, except while the reference
        was computed, which would not fit for a lone cell either. A file that was not shipped may
        have broken another arm in the rounds, or ended the process in that arm's turn; its threads
        look like late work of every arm.
        """
        if report.phase in _BEFORE_ARMS:
            return set()
        crashed = {name for name, row in failed.items() if row["status"] == "crashed"}
        late = {name for name, row in failed.items() if row["reason"].startswith(UNFINISHED)}
        broken = late | (crashed if report.phase == "measure" else set())
        users = self.users_among(pending) if broken else set()
        return {
            name
            for name, row in failed.items()
            if row["status"] == "oom"
            or row["reason"].startswith(FORGED)
            or (name in broken and users - {name})
        }

    def _spoilers(self, failed: Cells, report: WorkerReport, pending: Sequence[str]) -> set[str]:
        """Return the files that were not shipped, if a shipped one has failed only beside them.

        They are returned as well if the worker died and no arm is to blame.
        """
        suspect = {
            name
            for name, row in failed.items()
            if row["status"] not in _EXPECTED and "threads_s" not in row
        }
        nobody = not failed and report.status == "crashed"  # between two turns
        # In a gate, the base's files are no strangers.
        apart = report.phase in _BEFORE_ARMS or self.worker["base_files"]
        if apart or not (suspect or nobody):
            return set()
        users = self.users_among(pending)
        if nobody:
            return users if {*pending} - users else set()
        alone = (self._run_alone(name) for name in sorted(suspect - users) if users)
        return users if any(one.cells[0]["status"] == "ok" for one in alone) else set()

    def _run_alone(self, name: str) -> Attempt:
        report = self._work([name], alone=True)
        row = report.cells.get(name)
        if report.status != "ok" and (row is None or row["status"] == "ok"):
            row = self.cell_row(name, report.status, report.reason)
        assert row is not None, "a worker that finished has a row for every cell"  # noqa: S101
        if row["status"] != "ok":
            report.samples = []
        return self.attempt(report, [{**row, "interleaved": False}])
