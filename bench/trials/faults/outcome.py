"""What a fault left behind, beside what it must. Imports no jax."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.trials.faults.lab import GOOD, Cell, Ended, Lab


@dataclass
class Outcome:
    """What was seen of one fault."""

    cell: str = ""
    """How its own cell ended, and why; or what the run said."""
    others: str = ""
    """How the cells beside it ended."""
    code: int | None = None
    """Exit code of the run."""
    seconds: float = 0.0
    """Wall time of the trial."""
    cut_s: float | None = None
    """From going wrong to the end of the process that did; None where it went on."""
    left: list[str] = field(default_factory=list)
    """Processes left over."""
    half_written: list[str] = field(default_factory=list)
    """Files of the run that are not whole."""
    report: str = ""
    """What is wrong with the report; empty if it is readable."""
    deviations: list[str] = field(default_factory=list)
    """Where this is not what was expected; empty if it all is."""
    skipped: str = ""
    """Why the fault could not be injected here; empty if it was."""

    @property
    def passed(self) -> bool:
        """Whether nothing was lost."""
        return not self.deviations and not self.skipped

    def expect(self, holds: bool, what: str) -> None:
        """Note a deviation unless something holds; `what` says what was seen."""
        if not holds:
            self.deviations.append(what)

    def see_end(self, ended: Ended, code: int) -> None:
        """Note how a run ended, which should have had this exit code and left no process."""
        self.code, self.left = ended.code, [*self.left, *ended.left]
        self.cut_s = ended.cut_s if self.cut_s is None else self.cut_s
        said = ended.out.strip()[-600:]
        self.expect(ended.code == code, f"exit code {ended.code}, not {code}; it said: {said}")
        self.expect(not ended.left, f"left over: {', '.join(ended.left)}")

    def see_cell(self, cell: Cell | None, status: str, reason: str) -> None:
        """Note how the fault's own cell ended, and that its reason says so."""
        if cell is None:
            self.expect(False, "its cell has no row")
            return
        self.cell = f"{cell.status}: {cell.reason}" if cell.reason else cell.status
        self.expect(cell.status == status, f"it is {cell.status}, not {status}")
        found = re.search(reason, cell.reason)
        self.expect(found is not None, f"its reason does not say {reason!r}: {cell.reason}")

    def see_others(self, lab: Lab, batches: Sequence[int], names: Sequence[str] = GOOD) -> None:
        """Note that the cells beside it are stored and ok."""
        cells = lab.cells()
        expected = [f"{batch}/{name}" for batch in batches for name in names]
        found = {name: cells[name].status if name in cells else "lost" for name in expected}
        right = sum(status == "ok" for status in found.values())
        self.others = f"{right} of {len(found)} ok"
        for name, status in found.items():
            self.expect(status == "ok", f"{name}, which is right, is {status}")

    def see_files(self, lab: Lab, *told: str) -> None:
        """Note that the run's files are whole, and its report is readable and tells of these."""
        self.half_written = lab.half_written()
        self.expect(not self.half_written, f"not whole: {', '.join(self.half_written)}")
        self.report = lab.report(*told)
        self.expect(not self.report, self.report)
