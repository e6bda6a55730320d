"""Starts runs in a folder of their own, as a person would, and sees what they leave behind.

Imports no jax.
"""

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
from pyarrow import ArrowInvalid, parquet

from bench.measure.environment import child_environment
from bench.measure.processes.guard import Guard, marked
from bench.records import store

PLANTED = Path(__file__).parent / "planted"
RUN = "trial"
GOOD = ("python_loop", "good")
"""What is measured beside a planted implementation, and must not be harmed."""

MARK = "LOCKSTEP_FAULT"
"""Variable by which everything that a trial started is found, whatever the run itself does."""
FOLDER = "LOCKSTEP_FAULT_FOLDER"

LIMIT_S = 400.0
GONE_S = 10.0
"""Processes that are left so long after their run has ended are left over."""
_POLL_S = 0.05


class LabError(Exception):
    """What was expected to happen did not; the message says what was seen instead."""


class UnavailableError(LabError):
    """This system does not let the fault be injected; the message says why."""


@dataclass
class Ended:
    """A run that has ended."""

    code: int
    """As of subprocess, below 0 for a signal."""
    out: str
    seconds: float
    cut_s: float | None
    """From going wrong to the end of the process that did; None where it went on."""
    left: list[str]
    """Processes that it left over."""

    def says(self, pattern: str) -> bool:
        """Whether it printed something like this."""
        return re.search(pattern, self.out) is not None


@dataclass(frozen=True)
class Cell:
    """How one cell ended."""

    status: str
    reason: str


@dataclass
class Lab:
    """A folder for the runs of one trial, all of which are called RUN.

    Args:
      folder: is there and empty; runs have their reports/ in it.
      prefix: of every command, such as one that enters a namespace.
      root: where the folder is seen from here, if it is seen elsewhere in there.
      environment: beside this process's own.
      stop: once it is set, runs are ended.
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
        self, *paths: str, words: Sequence[str] = (), resume: bool = False, wait: bool = True
    ) -> Front:
        """Start a small run of the good implementations and planted ones; wait until it has ended.

        Args:
          paths: names of planted implementations.
          words: more options. Of a mesh or a workload, the last that is given holds.
          resume: whether it goes on with the run that is there.
          wait: whether to wait.
        """
        files = [
            word
            for name in ("good", *paths)
            for word in ("--implementation-path", str(PLANTED / f"{name}.py"))
        ]
        own = ["--resume", RUN] if resume else [*_small(words), "--run", RUN, *words]
        front = self.start("run", *own, *files)
        if wait:
            front.wait()
        return front

    def cells(self) -> dict[str, Cell]:
        """How the run's cells ended, by the end of their names: batch and implementation.

        Raises:
          LabError: it cannot be read.
        """
        return {
            f"{row['batch']}/{row['implementation']}": Cell(str(row["status"]), str(row["reason"]))
            for row in _records(self.stored().cells)
        }

    def stored(self) -> store.Run:
        """What the run has stored.

        Raises:
          LabError: it cannot be read.
        """
        try:
            return store.load(self.run)
        except (store.StoreError, OSError) as error:
            raise LabError(f"the run cannot be read: {error}") from error

    def attempts(self) -> list[str]:
        """The attempts that are stored, so far."""
        with contextlib.suppress(LabError):
            return [str(row["attempt"]) for row in _records(self.stored().blocks)]
        return []

    def half_written(self) -> list[str]:
        """Files of the run that are not whole, and drafts."""
        files = [path for path in sorted(self.run.rglob("*")) if path.is_file()]
        return [str(path.relative_to(self.run)) for path in files if not _whole(path)]

    def report(self, *names: str) -> str:
        """What is wrong with the report, which should tell of these; empty if it is readable."""
        for file, end in (("report.html", "</html>"), ("report.md", "")):
            try:
                text = (self.run / file).read_text(encoding="utf-8").rstrip()
            except (OSError, ValueError) as error:
                return f"{file} cannot be read: {error}"
            if not text.endswith(end):
                return f"{file} is cut off"
            for name in names:
                if name not in text:
                    return f"{file} says nothing of {name}"
        return ""


class Front:
    """A running `python -m bench`."""

    def __init__(self, lab: Lab, words: Sequence[str]) -> None:
        self._mark = uuid.uuid4().hex
        self._guard = Guard()  # if this process is killed, its trials go with it
        self._stop = lab.stop
        self._noted = lab.folder / "injected"
        self._noted.unlink(missing_ok=True)
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
        """Send it a signal."""
        self._process.send_signal(number)

    def until(self, happened: Callable[[], bool], what: str) -> None:
        """Wait until something happens.

        Raises:
          LabError: the run ended before, or it takes too long.
        """
        while not happened():
            if self._process.poll() is not None:
                out = self.wait().out
                raise LabError(f"the run ended before {what}; it said: {out[-500:]}")
            if self._over():
                self.wait()
                raise LabError(f"it took over {LIMIT_S:g} s until {what}")
            self._watch()
            time.sleep(_POLL_S)

    def until_injected(self) -> None:
        """Wait until a planted file goes wrong."""
        self.until(self._noted.exists, "anything went wrong")

    def wait(self) -> Ended:
        """Wait until it ends; end it if it does not.

        What it leaves over is noted, and ended too.
        """
        if self._ended is not None:
            return self._ended
        while self._process.poll() is None and not self._over():
            self._watch()
            time.sleep(_POLL_S)
        seconds = time.monotonic() - self._began
        late = self._process.poll() is None
        gone = time.monotonic() + GONE_S
        while not late and self._others() and time.monotonic() < gone:
            self._watch()
            time.sleep(_POLL_S)
        self._watch()
        left = [_command(process) for process in self._others()]
        self._guard.end_all()
        for process in marked(self._mark, MARK):
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)
        self._guard.dismiss()
        code = self._process.wait()
        self._reader.join(timeout=5)
        out = "".join(self._out)
        if late:
            out += f"\nended by the laboratory after {LIMIT_S:g} s"
        self._ended = Ended(code, out, seconds, self._cut_s, left)
        return self._ended

    def _over(self) -> bool:
        return self._stop.is_set() or time.monotonic() - self._began > LIMIT_S

    def _others(self) -> list[int]:
        return [found for found in marked(self._mark, MARK) if found != self._process.pid]

    def _watch(self) -> None:
        """Notice when the process that went wrong is gone."""
        with contextlib.suppress(OSError, ValueError):
            process, began = self._noted.read_text(encoding="utf-8").split()
            if _gone(process):
                self._cut_s = time.monotonic() - float(began)
                self._noted.rename(self._noted.with_name("cut"))

    def _read(self) -> None:
        stdout = self._process.stdout
        assert stdout is not None, "it is a pipe"  # noqa: S101
        with contextlib.suppress(OSError, ValueError), stdout:
            self._out.extend(stdout)


def _small(words: Sequence[str]) -> Iterator[str]:
    """Options of a run that is as small as can be, but for those that are given."""
    defaults = {
        "--workloads": "linear-tiny",
        "--implementations": GOOD[0],
        "--meshes": "data=1",
        "--batch-sizes": "8",
        "--rounds": "4",
        "--seconds": "0.2",
    }
    for option, value in defaults.items():
        if option not in words:
            yield from (option, value)


def _records(frame: pd.DataFrame) -> list[dict[str, object]]:
    return [{str(key): value for key, value in row.items()} for row in frame.to_dict("records")]


def _whole(path: Path) -> bool:
    """Whether a file of a run is whole, as far as its format tells."""
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


def _gone(process: str) -> bool:
    """Whether a process has ended, even if nobody has asked how."""
    try:
        state = Path("/proc", process, "stat").read_text(encoding="utf-8").rpartition(")")[2]
    except OSError:
        return True
    return state.split()[0] == "Z"


def _command(process: int) -> str:
    try:
        words = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return str(process)
    return b" ".join(words).decode(errors="replace")[:100].strip()


@contextmanager
def small_disk(place: Path, size: str) -> Iterator[tuple[Sequence[str], Path]]:
    """A file system of its own on a folder, in a mount namespace: no privilege is needed for it.

    Args:
      place: the folder.
      size: as tmpfs takes it.

    Yields:
      What precedes a command that is to see it, and where its root is seen from here.

    Raises:
      UnavailableError: this system does not let one be made.
    """
    mount = f'mount -t tmpfs -o size={size} none "$1" && echo mounted && read _'
    try:
        holder = subprocess.Popen(  # noqa: S603 (our own command)
            ["unshare", "-rm", "sh", "-c", mount, "sh", str(place)],  # noqa: S607
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    except OSError as error:
        raise UnavailableError(f"unshare cannot be run: {error}") from error
    with holder:
        assert holder.stdout is not None  # noqa: S101 - pipes, both
        assert holder.stderr is not None  # noqa: S101
        if holder.stdout.readline().strip() != "mounted":
            raise UnavailableError(f"no file system can be mounted: {holder.stderr.read().strip()}")
        try:
            enter = ("nsenter", f"--target={holder.pid}", "--user", "--mount")
            # A folder that was entered outside leads to what is there outside.
            inside = ("sh", "-c", 'cd "$0" && exec "$@"', str(place.parent))
            yield (*enter, "--preserve-credentials", *inside), Path(f"/proc/{holder.pid}/root")
        finally:
            holder.kill()


def fill(folder: Path) -> Path:
    """Fill a file system to its last byte.

    Returns:
      The file that does it.
    """
    path = folder / "filler"
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        for size in (1 << 20, 1 << 10, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))
    return path
