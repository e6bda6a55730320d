"""The outcome of a fault, compared with the expected one."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.records.rows import CellRow
from bench.trials.faults.observed_run import GOOD, Ended, Lab


@dataclass
class Outcome:
    """Observations of one fault."""

    cell: str = ""
    """How the faulty cell ended and why, or what the run reported."""
    others: str = ""
    """How the other cells ended."""
    code: int | None = None
    """Exit code of the run."""
    seconds: float = 0.0
    """Wall time of the trial."""
    cut_s: float | None = None
    """Seconds from the fault to the end of the faulty process; None if it did not end."""
    left: list[str] = field(default_factory=list)
    """Leftover processes."""
    half_written: list[str] = field(default_factory=list)
    """Incomplete files of the run."""
    report: str = ""
    """What is wrong with the report; empty if it is readable."""
    deviations: list[str] = field(default_factory=list)
    """Differences from the expected outcome."""
    skipped: str = ""
    """Why the fault could not be injected here; empty if it was."""

    @property
    def passed(self) -> bool:
        """Whether nothing was lost."""
        return not self.deviations and not self.skipped

    def expect(self, holds: bool, deviation: str) -> None:
        """Record a deviation unless a condition holds."""
        if not holds:
            self.deviations.append(deviation)

    def check_end(self, ended: Ended, code: int) -> None:
        """Record how a run ended, and expect an exit code and no leftover process."""
        self.code, self.left = ended.code, [*self.left, *ended.left]
        self.cut_s = ended.cut_s if self.cut_s is None else self.cut_s
        output = ended.out.strip()[-600:]
        self.expect(ended.code == code, f"exit code {ended.code}, not {code}; output: {output}")
        self.expect(not ended.left, f"leftover processes: {', '.join(ended.left)}")

    def check_cell(self, cell: CellRow | None, status: str, reason: str) -> None:
        """Record how the faulty cell ended, and expect a status and a pattern in its reason."""
        if cell is None:
            self.expect(False, "its cell has no row")
            return
        self.cell = ": ".join(filter(None, (cell["status"], cell["reason"])))
        self.expect(cell["status"] == status, f"its cell is {cell['status']}, not {status}")
        matches = re.search(reason, cell["reason"]) is not None
        self.expect(matches, f"its reason does not match {reason!r}: {cell['reason']}")

    def check_others(self, lab: Lab, batches: Sequence[int], names: Sequence[str] = GOOD) -> None:
        """Record how the other cells ended, and expect all of them stored and ok."""
        cells = lab.cells()
        expected = [f"{batch}/{name}" for batch in batches for name in names]
        statuses = {n: cells[n]["status"] if n in cells else "lost" for n in expected}
        ok = sum(status == "ok" for status in statuses.values())
        self.others = f"{ok} of {len(statuses)} ok"
        for name, status in statuses.items():
            self.expect(status == "ok", f"{name}, which is correct, is {status}")

    def check_files(self, lab: Lab, *names: str, except_for: str = "") -> None:
        """Expect complete files and a readable report that mentions these names.

        Args:
          lab: the trial.
          names: names of implementations.
          except_for: a file that may be incomplete, because the trial damaged it.
        """
        self.half_written = [name for name in lab.half_written() if name != except_for]
        self.expect(not self.half_written, f"incomplete files: {', '.join(self.half_written)}")
        self.report = lab.report(*names)
        self.expect(not self.report, self.report)
