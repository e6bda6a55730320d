"""Starts runs in a folder of their own, as a person would, and observes what they leave behind."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
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
from bench.measure.processes.guard import Guard, marked
from bench.records import store

RUN = "trial"
"""Name of every run."""
GOOD = ("python_loop", "good")
"""Correct implementations that are measured beside a planted one and must not be harmed."""

MARK = "LOCKSTEP_FAULT"
"""Environment variable that identifies every process of a trial, whatever the run itself does."""
FOLDER = "LOCKSTEP_FAULT_FOLDER"

LIMIT_S = 400.0
GONE_S = 10.0
"""Processes that still exist this long after their run has ended count as leftover."""
_POLL_S = 0.05

_IMPLEMENTATION = """from bench.trials.faults.planted import plant

build, why_unsupported = plant("{name}")
"""
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
    cut_s: float | None
    """Seconds from the fault to the end of the process that had it; None if it did not end."""
    left: list[str]
    """Command lines of leftover processes."""

    def says(self, pattern: str) -> bool:
        """Whether the output matches a regular expression."""
        return re.search(pattern, self.out) is not None


@dataclass(frozen=True)
class Cell:
    """How one cell ended."""

    status: str
    reason: str


@dataclass
class Lab:
    """The folder of one trial, in which every run is called RUN.

    Args:
      folder: an empty folder; runs create reports/ in it.
      prefix: precedes every command, for example to enter a namespace.
      root: path under which the commands' file system is visible from this process.
      environment: variables added to this process's environment.
      stop: ends running commands once it is set.
    """

    folder: Path
    prefix: Sequence[str] = ()
    root: Path = Path("/")
    environment: Mapping[str, str] = field(default_factory=dict)
    stop: threading.Event = field(default_factory=threading.Event)

    @property
    def run(self) -> Path:
        """The folder of the run."""
        return self.root / self.folder.relative_to("/") / "reports" / RUN

    def start(self, *words: str) -> Front:
        """Start `python -m bench WORDS`."""
        return Front(self, words)

    def measure(
        self, *planted: str, words: Sequence[str] = (), workload: str = "", resume: bool = False
    ) -> Front:
        """Start a small run of the good implementations and planted ones.

        Args:
          planted: names of planted implementations.
          words: options that replace those of the smallest run or are added to them.
          workload: name of a planted workload.
          resume: whether to resume the run instead of starting it.
        """
        files = [
            word
            for name in ("good", *planted)
            for word in ("--implementation-path", self.write_planted(name))
        ]
        if workload:
            path = self.write_planted(workload)
            words = ("--workloads", workload, "--workload-path", path, *words)
        if resume:
            return self.start("run", "--resume", RUN, *files)
        small = [word for pair in _SMALLEST.items() if pair[0] not in words for word in pair]
        return self.start("run", *small, "--run", RUN, *words, *files)

    def write_planted(self, name: str) -> str:
        """Write the file of a planted implementation or workload; return its path."""
        text = _WORKLOAD if name.endswith("_workload") else _IMPLEMENTATION
        path = self.folder / f"{name}.py"
        path.write_text(text.format(name=name), encoding="utf-8")
        return str(path)

    def cells(self) -> dict[str, Cell]:
        """How the run's cells ended, by `BATCH/IMPLEMENTATION`.

        Raises:
          LabError: the run cannot be read.
        """
        return {
            f"{row['batch']}/{row['implementation']}": Cell(str(row["status"]), str(row["reason"]))
            for row in self.stored().cells.to_dict("records")
        }

    def stored(self) -> store.Run:
        """Read the stored run.

        Raises:
          LabError: the run cannot be read.
        """
        try:
            return store.load(self.run)
        except (store.StoreError, OSError) as error:
            raise LabError(f"the run cannot be read: {error}") from error

    def attempts(self) -> list[str]:
        """Identifiers of the attempts that are stored so far."""
        with contextlib.suppress(LabError):
            return [str(attempt) for attempt in self.stored().blocks["attempt"]]
        return []

    def half_written(self) -> list[str]:
        """Incomplete files and drafts in the run's folder."""
        files = [path for path in sorted(self.run.rglob("*")) if path.is_file()]
        return [str(path.relative_to(self.run)) for path in files if not _is_whole(path)]

    def report(self, *names: str) -> str:
        """Say what is wrong with the report, which must mention these names; empty if nothing."""
        for file, end in (("report.html", "</html>"), ("report.md", "")):
            try:
                text = (self.run / file).read_text(encoding="utf-8").rstrip()
            except (OSError, ValueError) as error:
                return f"{file} cannot be read: {error}"
            if not text.endswith(end):
                return f"{file} is truncated"
            for name in names:
                if name not in text:
                    return f"{file} does not mention {name}"
        return ""


class Front:
    """A running `python -m bench`."""

    def __init__(self, lab: Lab, words: Sequence[str]) -> None:
        self._mark = uuid.uuid4().hex
        self._guard = Guard()  # ends the run if this process is killed
        self._stop = lab.stop
        self._injected = lab.folder / "injected"
        self._injected.unlink(missing_ok=True)
        environment = {
            **child_environment(),
            "JAX_PLATFORMS": "cpu",
            **lab.environment,
            **self._guard.environment,
            MARK: self._mark,
            FOLDER: str(lab.folder),
            "COLUMNS": "200",
        }
        self._began = time.monotonic()
        self._process = subprocess.Popen(  # noqa: S603 (our own command)
            [*lab.prefix, sys.executable, "-m", "bench", *words],
            cwd=lab.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._guard.watch(self._process.pid)
        self._out: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._cut_s: float | None = None
        self._ended: Ended | None = None

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        self._process.send_signal(number)

    def until_injected(self) -> None:
        """Wait until a planted file goes wrong.

        Raises:
          LabError: the run ended before that, or it took too long.
        """
        while not self._injected.exists():
            if self._process.poll() is not None:
                out = self.wait().out
                raise LabError(
                    f"the run ended before anything went wrong; its output: {out[-500:]}"
                )
            if self._is_over():
                self.wait()
                raise LabError(f"nothing went wrong within {LIMIT_S:g} s")
            time.sleep(_POLL_S)

    def wait(self) -> Ended:
        """Wait until the run ends, or end it at the limit; note and kill leftover processes."""
        if self._ended is not None:
            return self._ended
        self._wait_while(lambda: self._process.poll() is None and not self._is_over())
        late = self._process.poll() is None
        if not late:
            gone = time.monotonic() + GONE_S
            self._wait_while(lambda: bool(self._others()) and time.monotonic() < gone)
        left = [_command_line(process) for process in self._others()]
        self._guard.end_all()
        for process in marked(self._mark, MARK):
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)
        self._guard.dismiss()
        code = self._process.wait()
        self._reader.join(timeout=5)
        out = "".join(self._out)
        if late:
            out += f"\nended by the trial after {LIMIT_S:g} s"
        self._ended = Ended(code, out, self._cut_s, left)
        return self._ended

    def _wait_while(self, condition: Callable[[], bool]) -> None:
        while condition():
            self._watch()
            time.sleep(_POLL_S)
        self._watch()

    def _is_over(self) -> bool:
        return self._stop.is_set() or time.monotonic() - self._began > LIMIT_S

    def _others(self) -> list[int]:
        return [process for process in marked(self._mark, MARK) if process != self._process.pid]

    def _watch(self) -> None:
        """Note when the process that went wrong has ended."""
        with contextlib.suppress(OSError, ValueError):
            process, began = self._injected.read_text(encoding="utf-8").split()
            if _is_gone(int(process)):
                self._cut_s = time.monotonic() - float(began)
                self._injected.rename(self._injected.with_name("cut"))

    def _read(self) -> None:
        stdout = self._process.stdout
        assert stdout is not None, "it is a pipe"  # noqa: S101
        with contextlib.suppress(OSError, ValueError), stdout:
            self._out.extend(stdout)


def _is_whole(path: Path) -> bool:
    """Whether a file of a run is complete, as far as its format shows."""
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


def _is_gone(process: int) -> bool:
    """Whether a process has ended, reaped or not."""
    try:
        return psutil.Process(process).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _command_line(process: int) -> str:
    try:
        return " ".join(psutil.Process(process).cmdline())[:100]
    except psutil.Error:
        return str(process)
