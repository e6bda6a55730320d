"""Starts runs in their own folders, as a user would, and observes the consequences of faults."""

import json
import re
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import psutil
from pyarrow import ArrowInvalid, parquet

from bench.measure.environment import child_environment
from bench.measure.processes.guarded import Child
from bench.records import store
from bench.records.rows import CellRow
from bench.trials.faults import FOLDER, WAITING

RUN = "trial"
"""Name of every run."""
GOOD = ("python_loop", "good")
"""Correct implementations that are measured beside a planted one and must not be harmed."""

MARK = "LOCKSTEP_FAULT"
"""Environment variable that marks every process of a trial, whatever the run itself does."""

LIMIT_S = 400.0
GONE_S = 10.0
"""Processes that still exist this long after the end of their run count as leftover."""

_IMPLEMENTATION = """from bench.trials.faults.planted import plant
from implementations import jit_spmd

build, why_unsupported = plant("{name}", jit_spmd)
"""
_FOREIGN = """from bench.trials.faults.planted_foreign import plant

FOREIGN = {{}}

build, why_unsupported = plant("{name}")
"""
_COMMAND = 'FOREIGN = {{"command": ["/no/such/python"]}}\n'
_WORKLOAD = """from bench.trials.faults.planted import DEFAULT_SIZE, SIZES, {name} as problem
"""

_SMALLEST = {
    "--workloads": "linear-tiny",
    "--implementations": GOOD[0],
    "--meshes": "data=1",
    "--batch-sizes": "8",
    "--rounds": "4",
    "--seconds": "0.2",
}
"""Options that make a run as small as possible."""


class LabError(Exception):
    """A trial did not take the expected course; the message says what happened instead."""


class UnavailableError(LabError):
    """The fault cannot be injected on this system; the message says why."""


@dataclass
class Ended:
    """A run that has ended."""

    code: int
    """Exit code as subprocess reports it: negative for a signal."""
    out: str
    left: list[str]
    """Command lines of leftover processes."""


@dataclass
class Lab:
    """The folder of one trial, in which every run is called RUN."""

    folder: Path
    """Empty at first; runs create reports/ in it."""
    prefix: Sequence[str] = ()
    """Words before every command, for example to enter a namespace."""
    root: Path = Path("/")
    """Path under which the commands' file system is visible from this process."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables added to this process's environment."""
    stop: threading.Event = field(default_factory=threading.Event)
    """Ends running commands once it is set."""

    @property
    def run(self) -> Path:
        """Path of the run's folder."""
        return self.root / self.folder.relative_to("/") / "reports" / RUN

    def measure(
        self, *planted: str, words: Sequence[str] = (), workload: str = "", resume: bool = False
    ) -> "Front":
        """Start or resume a small run of the good implementations and planted ones, by name.

        The options `words` replace those of the smallest run, or are added to them.
        """
        paths = map(self.write_planted, ("good", *planted))
        files = [word for path in paths for word in ("--implementation-path", path)]
        if workload:
            path = self.write_planted(workload)
            words = ("--workloads", workload, "--workload-path", path, *words)
        if resume:
            return Front(self, ("run", "--resume", RUN, *files))
        small = [word for pair in _SMALLEST.items() if pair[0] not in words for word in pair]
        return Front(self, ("run", *small, "--run", RUN, *words, *files))

    def write_planted(self, name: str) -> str:
        """Write the file of a planted implementation or workload; return its path."""
        text = _WORKLOAD if name.endswith("_workload") else _IMPLEMENTATION
        text = _FOREIGN if name.startswith("foreign_") else text
        text = _COMMAND if name == "foreign_command" else text
        path = self.folder / f"{name}.py"
        path.write_text(text.format(name=name), encoding="utf-8")
        return str(path)

    def cells(self) -> dict[str, CellRow]:
        """Return the decisive rows of the run's cells, by `BATCH/IMPLEMENTATION`."""
        return {f"{row['batch']}/{row['implementation']}": row for row in self.stored().decisive()}

    def stored(self) -> store.Run:
        """Read the stored run; LabError if it cannot be read."""
        try:
            return store.load(self.run)
        except (store.StoreError, OSError) as error:
            raise LabError(f"the run cannot be read: {error}") from error

    def attempts(self) -> list[str]:
        """Return identifiers of the attempts that are stored so far."""
        return [row["attempt"] for row in self.stored().block_rows]

    def half_written(self) -> list[str]:
        """Return incomplete files and drafts in the run's folder."""
        files = [path for path in sorted(self.run.rglob("*")) if path.is_file()]
        return [str(path.relative_to(self.run)) for path in files if not _is_complete(path)]

    def report(self, *names: str) -> str:
        """Return what is wrong with the report, which must mention these names; may be empty."""
        for file in ("report.html", "report.md"):
            try:
                text = (self.run / file).read_text(encoding="utf-8")
            except (OSError, ValueError) as error:
                return f"{file} cannot be read: {error}"
            if absent := [name for name in names if name not in text]:
                return f"{file} does not mention {', '.join(absent)}"
        return ""


class Front(Child):
    """A running `python -m bench WORDS`."""

    def __init__(self, lab: Lab, words: Sequence[str]) -> None:
        self._fault_mark, self._lab = uuid.uuid4().hex, lab
        self._began = time.monotonic()
        environment = {
            **child_environment(),
            "JAX_PLATFORMS": "cpu",
            **lab.environment,
            MARK: self._fault_mark,
            FOLDER: str(lab.folder),
            "COLUMNS": "200",
        }
        command = [*lab.prefix, sys.executable, "-m", "bench", *words]
        super().__init__(command, "", environment, cwd=lab.folder)

    def until_waiting(self) -> None:
        """Wait until a planted file waits; LabError if the run or the time ends first."""
        waiting = self._lab.folder / WAITING
        self._wait_while(lambda: not waiting.exists() and self._goes_on())
        if not waiting.exists():
            out = self.wait().out
            raise LabError(f"the run ended before its second block; its output: {out[-500:]}")

    def wait(self) -> Ended:
        """Wait until the run ends, or end it at the limit; record and kill leftover processes."""
        self._wait_while(self._goes_on)
        late = "" if self.code(0) is not None else f"\nended by the trial after {LIMIT_S:g} s"
        if not late:
            gone = time.monotonic() + GONE_S
            self._wait_while(lambda: bool(self._others()) and time.monotonic() < gone)
        left = self._others()
        self.kill()
        out = "".join(self._out) + "\n".join(self.tail) + late
        return Ended(self.code(0) or 0, out, left)

    def _wait_while(self, condition: Callable[[], bool]) -> None:
        while condition():
            time.sleep(0.05)

    def _goes_on(self) -> bool:
        over = self._lab.stop.is_set() or time.monotonic() - self._began > LIMIT_S
        return self.code(0) is None and not over

    def _others(self) -> list[str]:
        """Return the command lines of the run's processes, found by mark, or without one by folder.

        Another run of the trial may use the same folder; its processes have another mark.
        """
        found, folder = [], str(self._lab.folder)
        for one in psutil.process_iter(["cwd", "environ", "cmdline"]):
            mark = (one.info["environ"] or {}).get(MARK)
            own = mark == self._fault_mark or (mark is None and one.info["cwd"] == folder)
            if own and one.pid not in (self.pid, self.process.pid):
                found.append(" ".join(one.info["cmdline"] or [str(one.pid)])[:100])
        return sorted(found)


def _is_complete(path: Path) -> bool:
    """Return whether a file of a run is complete, as far as its format shows."""
    if path.suffix == ".part" or path.name.startswith(".") or ".report" in path.parts:
        return False
    try:
        match path.suffix:
            case ".json":
                json.loads(path.read_bytes())
            case ".jsonl":
                return path.read_bytes()[-1:] in (b"\n", b"")
            case ".csv":
                pd.read_csv(path)
            case ".parquet":
                parquet.read_table(path)
            case ".html" | ".svg":
                return path.read_text(encoding="utf-8").rstrip().endswith(("</html>", "</svg>"))
    except (ValueError, OSError, ArrowInvalid):
        return False
    return path.stat().st_size > 0


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
    deviations: list[str] = field(default_factory=list)
    """Differences from the expected outcome, such as leftover processes and incomplete files."""
    skipped: str = ""
    """Why the fault could not be injected here; empty if it was."""

    def expect(self, holds: bool, deviation: str) -> None:
        """Record a deviation unless a condition holds."""
        if not holds:
            self.deviations.append(deviation)

    def check_end(self, ended: Ended, code: int, pattern: str = "") -> str:
        """Record how a run ended, and expect an exit code and no leftover process.

        Also expect an output that matches a pattern, and return the match.
        """
        self.code, output = ended.code, ended.out.strip()[-600:]
        self.expect(ended.code == code, f"exit code {ended.code}, not {code}; output: {output}")
        self.expect(not ended.left, f"leftover processes: {', '.join(ended.left)}")
        said = re.search(pattern, ended.out.strip())
        self.expect(said is not None, f"the output does not match {pattern!r}: {output}")
        return said[0].strip() if said else ""

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
        """Record how other cells ended, and expect all of them stored and ok."""
        cells = lab.cells()
        expected = [f"{batch}/{name}" for batch in batches for name in names]
        statuses = {n: cells[n]["status"] if n in cells else "lost" for n in expected}
        ok = sum(status == "ok" for status in statuses.values())
        self.others = f"{ok} of {len(statuses)} ok"
        for name, status in statuses.items():
            reason = cells[name]["reason"] if name in cells else ""
            self.expect(status == "ok", f"{name}, which is correct, is {status}: {reason}")

    def check_run(
        self, lab: Lab, batches: Sequence[int], names: Sequence[str] = GOOD, except_for: str = ""
    ) -> None:
        """Expect of these cells as `check_others`, complete files, and a report of all cells.

        The trial has damaged the file `except_for`, which may be incomplete.
        """
        self.check_others(lab, batches, names)
        drafts = [name for name in lab.half_written() if name != except_for]
        self.expect(not drafts, f"incomplete files: {', '.join(drafts)}")
        wrong = lab.report(*(row["implementation"] for row in lab.cells().values()))
        self.expect(not wrong, wrong)
