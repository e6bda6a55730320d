"""Runs whose processes are started by launchers or by hand, for tests of both."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from bench.measure.processes.group import free_port
from bench.records import store
from bench.records.host import usable_cores
from bench.records.paths import ROOT

EXAMPLES = ROOT / "examples"
SMALL = (
    *("--workloads", "mlp-tiny", "--meshes", "data=2", "--batch-sizes", "8"),
    *("--implementations", "shard_map_psum", "--rounds", "4", "--seconds", "0.3"),
    *("--launches", "1", "--run", "tried"),
)
LONG = tuple("100" if word == "1" else word for word in SMALL)
"""As many launches."""
LIMIT_S = 300


def needs(*programs: str, root: bool = False, cores: int = 1) -> pytest.MarkDecorator:
    absent = [program for program in programs if shutil.which(program) is None]
    if root and os.geteuid() != 0:
        absent.append("the rights of root")
    if usable_cores() < cores:
        absent.append(f"{cores} cores")
    return pytest.mark.skipif(bool(absent), reason=f"needs {', '.join(absent)}")


class Launches:
    """Starts commands whose processes, wherever they end up, are found by a variable."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._mark = secrets.token_hex(8)
        self._logs: list[Path] = []
        # What conftest sets is for the tests' own jax.
        without = ("XLA_FLAGS", "NPROC", "JAX_NUM_CPU_DEVICES", "PYTHONPATH")
        self.environment = {
            **{name: value for name, value in os.environ.items() if name not in without},
            "LOCKSTEP_TEST": self._mark,
            "LOCKSTEP_TOKEN": self._mark,
            "PYTHON": sys.executable,
            "MASTER_PORT": str(free_port("127.0.0.1")),
        }

    def log(self) -> Path:
        """A new file for what is printed."""
        self._logs.append(self.folder / f"log{len(self._logs)}")
        return self._logs[-1]

    def start(
        self, *words: str | Path, cwd: Path | None = None, **variables: str | int
    ) -> subprocess.Popen[bytes]:
        with self.log().open("wb") as log:
            return subprocess.Popen(
                [str(word) for word in words],
                cwd=cwd or self.folder,
                env={**self.environment, **{name: str(v) for name, v in variables.items()}},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def end(self, process: subprocess.Popen[bytes]) -> int:
        """Its exit code."""
        try:
            return process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            pytest.fail(f"not ended after {LIMIT_S} s:\n{self.output}")

    @property
    def output(self) -> str:
        """All that was printed."""
        return "\n".join(log.read_text(errors="replace") for log in self._logs if log.exists())

    def alive(self, module: str = "") -> list[psutil.Process]:
        """Processes that are left of all that was started, or those that run a module."""
        found = []
        for process in psutil.process_iter():
            try:
                ours = process.environ().get("LOCKSTEP_TEST") == self._mark
                command = process.cmdline()
                is_guard = "-IS" in command  # its arguments are the command of what it guards
                if ours and (not module or (module in command and not is_guard)):
                    found.append(process)
            except psutil.Error:
                pass
        return found

    def workers(self) -> int:
        """How many worker processes there are."""
        return len(self.alive("bench.worker"))

    def met(self) -> bool:
        """Whether two worker processes have a connection, as to nobody but one another."""
        workers = self.alive("bench.worker")
        return len(workers) == 2 and all(worker.net_connections("tcp") for worker in workers)

    def wait_for(self, what: str, condition: Callable[[], object]) -> None:
        until = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < until, f"{what}: not within {LIMIT_S} s:\n{self.output}"
            time.sleep(0.2)

    def kill(self) -> None:
        for process in self.alive():
            process.kill()


def stored(folder: Path) -> store.Run:
    """The one run in a folder, which has a report."""
    [run] = (folder / "reports").iterdir()
    assert run.name == "tried"
    assert (run / "report.html").stat().st_size > 10_000
    return store.load(run)


def check(launches: Launches, folder: Path | None = None) -> store.Run:
    """All that was measured of SMALL went well, over two processes, and none is left of them."""
    run = stored(folder or launches.folder)
    assert {row["status"] for row in run.cell_rows} == {"ok"}, launches.output
    assert {row["processes"] for row in run.cell_rows} == {2}
    assert len(run.samples) == 2 * 4 * len(run.last_cell_rows)
    each, longest = (run.samples[f"{of}throughput_ns"] for of in ("process_", ""))
    assert [len(times) for times in each] == [2] * len(run.samples)
    assert [max(times) for times in each] == [*longest]
    assert launches.output.count("report: reports/tried/report.html") == 1
    launches.wait_for("all processes have ended", lambda: not launches.alive())
    return run


@dataclass
class Pair:
    """The two processes of a run, each started in a folder of its own."""

    launches: Launches
    processes: list[subprocess.Popen[bytes]]

    @property
    def folders(self) -> list[Path]:
        return [self.launches.folder / f"rank{rank}" for rank in range(2)]

    def check(self) -> store.Run:
        """Both have ended well, and only rank 0 has written anything."""
        codes = [self.launches.end(process) for process in self.processes]
        assert codes == [0, 0], self.launches.output
        assert not list(self.folders[1].iterdir())
        return check(self.launches, self.folders[0])


def pair(
    launches: Launches,
    *words: str | Path,
    on: Callable[[int], tuple[str, ...]] = lambda _: (),
    **variables: str | int,
) -> Pair:
    """Start both; `on` gives what makes a command run on the host of a rank."""
    pair = Pair(launches, [])
    for rank, folder in enumerate(pair.folders):
        folder.mkdir(parents=True)
        command = (*on(rank), *words)
        pair.processes.append(launches.start(*command, cwd=folder, RANK=rank, **variables))
    return pair


def interrupt(launches: Launches, how: Callable[[], object]) -> None:
    """Once a run of LONG has stored a launch, and is at the next."""
    log = launches.folder / "reports" / "tried" / store.LAUNCHES
    launches.wait_for("a launch is stored", lambda: log.exists() and any(log.glob("*.jsonl")))
    launches.wait_for("the next has begun", lambda: launches.workers() == 2)
    how()
