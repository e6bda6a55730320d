"""The report of a launch's worker: its events, how it ended, and which cell is to blame."""

import signal
import time
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, get_args

from bench.measure.processes.group import FORGED, End, Group, Process
from bench.measure.processes.oom_kills import OUT_OF_MEMORY
from bench.records.messages import Phase
from bench.records.printable import ending, readable
from bench.records.rows import BlockRow, CellRow, LossRow, SampleRow
from bench.records.statuses import Status
from bench.records.trace_rows import TraceRow

PEER_S = 30.0
"""Time for the other processes to report a failure that one process has reported."""

_REASON_LINES = 5
_KILLERS = {
    True: ", by the kernel's out-of-memory killer: its counter has risen",
    False: ", and not by the kernel's out-of-memory killer: its counter has not risen",
    None: ", by the kernel's out-of-memory killer or another process: this system has no counter",
}
"""The sender of a SIGKILL, by the result of `killed_by_kernel`."""


@dataclass
class WorkerReport:
    """The events of a worker so far, and how it ended."""

    timeout_s: float | None
    silence_s: float
    processes: int
    attempt: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    started_at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    phase: str = ""
    arm: str = ""
    cells: dict[str, CellRow] = field(default_factory=dict)
    samples: list[SampleRow] = field(default_factory=list)
    traces: list[TraceRow] = field(default_factory=list)
    losses: list[LossRow] = field(default_factory=list)
    block: BlockRow | None = None
    rounds_s: float = 0.0
    """Time from the announcement of the rounds to their samples, on this process's clock."""
    status: Status = "ok"
    """`ok` if the worker finished; otherwise the status of the cell to blame."""
    reason: str = ""
    _started: float = field(default_factory=time.monotonic)
    _phase_began: float = field(default_factory=time.monotonic)
    _timed_out: bool = False
    _failures: dict[str, tuple[float, dict[int, CellRow]]] = field(default_factory=dict)
    """The monotonic time of the first report of a failed cell, and its rows by process."""
    _failed_alone: CellRow | None = None
    """A cell that failed in one process while the others waited for that process."""

    def on_event(self, rank: int, event: dict[str, Any]) -> None:
        """Record an event. Only rank 0's count, except that any process may report a failure."""
        if event["event"] == "cell" and event["row"]["status"] != "ok":
            name = event["row"]["implementation"]
            self._failures.setdefault(name, (time.monotonic(), {}))[1][rank] = event["row"]
        if rank:
            return
        match event:
            case {"event": "phase", "phase": phase, "arm": arm}:
                if phase != self.phase:
                    self._phase_began = time.monotonic()
                self.phase, self.arm = phase, arm
            case {"event": "cell", "row": row}:
                self.cells[row["implementation"]] = row
            case {"event": "samples", "rows": rows}:
                self.samples, self.rounds_s = rows, time.monotonic() - self._phase_began
            case {"event": "trace", "row": row}:
                self.traces.append(row)
            case {"event": "losses", "row": row}:
                self.losses.append(row)
            case {"event": "block", "row": row}:
                self.block = row

    def overdue(self, silent_s: float) -> str:
        """Return why to abort the launch, after this long without an event; empty to continue."""
        late, took = "", time.monotonic() - self._started
        if self.timeout_s is not None and took > self.timeout_s:
            self._timed_out = True
            late = f"the worker took over {took:.0f} s"
        elif silent_s > self.silence_s:
            late = f"the worker showed no progress for {self.silence_s:g} s"
        for began, rows in self._failures.values():
            if len(rows) < self.processes and (late or time.monotonic() - began > PEER_S):
                rank, self._failed_alone = next(iter(rows.items()))
                reason = self._failed_alone["reason"]
                return f"process {rank} of {self.processes} failed where others did not: {reason}"
        return late

    def finish(self, end: End, group: Group, rounds_s: float) -> None:
        """Set status, reason and arm to blame; `rounds_s` is the planned time of all rounds."""
        if self.block is not None:
            known = self.block["seconds"]
            known["process"] = max(0.0, time.monotonic() - self._started - sum(known.values()))
        arm, turn_s = group.processes[0].turn()
        if self.phase == "measure" and (not self._timed_out or turn_s > rounds_s):
            # A timeout hits whichever arm has its turn; that arm is to blame only if its turn alone
            # took longer than planned for all rounds.
            self.arm = arm
        during = f" during {self.phase}" if self.phase else ""
        if self.block is not None and end.code == 0:
            self.status = "ok"
        elif self._failed_alone is not None and end.late:
            self.arm = self._failed_alone["implementation"]
            self.status, self.reason = self._failed_alone["status"], end.late
        elif end.late:
            self.status = "crashed" if end.late.startswith(FORGED) else "timeout"
            self.reason = end.late + during
        else:
            self._diagnose(end, group.processes[end.rank], during)
        # A worker sends its measurements before the phases after the rounds begin.
        if self.block is not None and self.reason and self.phase not in get_args(Phase):
            self.block["ended"], self.status, self.reason = self.reason, "ok", ""

    def _diagnose(self, end: End, process: Process, during: str) -> None:
        """Explain the end of a process; `during` names the phase, for the reason."""
        who = f"process {end.rank} of {self.processes}" if self.processes > 1 else "the worker"
        how = ending(end.code) if end.code else "ended before its block was complete"
        ended, killed = process.ended(), end.code == -signal.SIGKILL
        by_kernel = ended["killed_by_kernel"]
        last = readable("\n".join(ended["tail"][-_REASON_LINES:]))
        self.reason = f"{who} {how}{during}{_KILLERS[by_kernel] if killed else ''}"
        self.reason += f"; its last lines:\n{last}" if last else ""
        printed = end.code != 0 and OUT_OF_MEMORY.search(last)
        self.status = "oom" if printed or (killed and by_kernel is not False) else "crashed"
