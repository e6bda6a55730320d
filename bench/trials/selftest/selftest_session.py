"""One self-test: trials of Lockstep and of its peers, in random order, under several loads.

Rows are appended to `reports/<run>/trials.jsonl`, and `selftest_page` evaluates them. The trials of
Lockstep itself run in worker processes.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from bench.measure.environment import child_environment, worker_environment
from bench.records.arms import TWIN
from bench.records.host import describe_code, describe_host
from bench.trials.selftest import large_run, planted_kernel
from bench.trials.selftest.background_load import load
from bench.trials.selftest.first_paint import first_paint
from bench.trials.selftest.peer_protocol import Peer, PeerError
from bench.trials.selftest.peer_tools import find_peers
from bench.trials.selftest.planted_kernel import Kernel
from bench.trials.selftest.selftest_settings import Settings
from bench.trials.selftest.trial_rows import (
    BASE,
    SLOWDOWNS,
    TRIALS,
    Manifest,
    PeerRow,
    ReportRow,
    Row,
    close,
)

PEER_SLOWDOWNS = (TWIN, "2 % slower", "5 % slower")

STEP_S = 0.001
_TIMEOUT_S = 600.0
_REBUILD = (
    "import json, pathlib, sys; from bench.trials.selftest.large_run import rebuild; "
    "print(json.dumps(rebuild(pathlib.Path(sys.argv[1]))))"
)

Task = Callable[[], Iterator[Row]]


class Session:
    """Runs the trials and stores their rows in a folder.

    Args:
      settings: the amount of work.
      folder: the folder to create.
    """

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings = settings
        self.folder = folder
        peers = {name: peer for name, peer in find_peers().items() if name in settings.peers}
        self.unavailable = {
            name: reason for name, peer in peers.items() if (reason := peer.why_unavailable())
        }
        self.peers: Mapping[str, Peer] = {
            name: peer for name, peer in peers.items() if name not in self.unavailable
        }
        self.tasks_of_a_pattern = settings.processes + (
            len(self.peers) * len(PEER_SLOWDOWNS) * settings.peer_trials
        )

    def run(self, progress: Callable[[str], None]) -> None:
        """Run everything; `progress` is called with the load before every task.

        Raises:
          KernelError: the planted workload cannot be compiled.
          LoadError: a background load does not start.
          subprocess.SubprocessError: a worker process failed.
        """
        settings = self.settings
        with tempfile.TemporaryDirectory(prefix="lockstep-") as temporary:
            scratch = Path(temporary)
            kernel = planted_kernel.build(scratch / "kernel")
            library = planted_kernel.build_ffi(scratch / "kernel")
            base = kernel.iterations_for(STEP_S)
            self.folder.mkdir(parents=True)
            manifest = Manifest(
                started_at=datetime.now(UTC).isoformat(timespec="seconds"),
                settings=asdict(settings),
                iterations=base,
                unavailable=self.unavailable,
                host=describe_host(),
                git=describe_code(),
                trials_crc32=0,
            )
            with (self.folder / TRIALS).open("w", encoding="utf-8") as file:
                for pattern in settings.patterns:
                    tasks = [
                        *self._own_tasks(pattern, library, base),
                        *self._peer_tasks(pattern, kernel, base, scratch),
                    ]
                    random.Random(f"{settings.seed}/{pattern}").shuffle(tasks)
                    with load(pattern, settings.seed):
                        for task in tasks:
                            progress(pattern)
                            file.writelines(json.dumps(row) + "\n" for row in task())
                            file.flush()
                if settings.report_cells:
                    row = report_row(scratch, settings.report_cells)
                    file.write(json.dumps(row) + "\n")
            close(self.folder, manifest)

    def _own_tasks(self, pattern: str, library: Path, base: int) -> Iterator[Task]:
        iterations = {BASE: base} | {arm: round(base * r) for arm, r in SLOWDOWNS.items()}
        job = {
            "library": str(library),
            "iterations": iterations,
            "trials": self.settings.trials,
            # The base and one other arm share `seconds`; each further arm takes as long as they do.
            "seconds": self.settings.seconds * len(iterations) / 2,
        }
        for process in range(self.settings.processes):
            yield lambda process=process: own_rows(  # type: ignore[misc]
                pattern, process, {**job, "seed": process}
            )

    def _peer_tasks(self, pattern: str, kernel: Kernel, base: int, scratch: Path) -> Iterator[Task]:
        def task(name: str, slowdown: str, number: int) -> Iterator[Row]:
            row = PeerRow(
                kind="peer", pattern=pattern, peer=name, slowdown=slowdown, number=number, error="",
                different=None, slower=None, ratio=None, measured_s=0.0, wall_s=0.0,
            )  # fmt: skip
            other = round(base * SLOWDOWNS[slowdown])
            with tempfile.TemporaryDirectory(dir=scratch) as folder:
                try:
                    trial = self.peers[name].trial(
                        kernel, base, other, self.settings.seconds, Path(folder)
                    )
                except PeerError as error:
                    row["error"] = str(error)
                else:
                    row = cast("PeerRow", row | asdict(trial))
            yield row

        for name in self.peers:
            for slowdown in PEER_SLOWDOWNS:
                for number in range(self.settings.peer_trials):
                    yield lambda key=(name, slowdown, number): task(*key)  # type: ignore[misc]


def report_row(folder: Path, cells: int) -> ReportRow:
    """Rebuild the report of a large run in a process of its own, as the command does."""
    run, cells = large_run.write(folder / "large", cells)
    done = subprocess.run(  # noqa: S603 (our own command)
        [sys.executable, "-c", _REBUILD, str(run)],
        stdout=subprocess.PIPE,
        text=True,
        env=child_environment(),
        timeout=_TIMEOUT_S,
        check=True,
    )
    seconds, size = json.loads(done.stdout)
    painted = first_paint(run / "report.html")
    return ReportRow(kind="report", cells=cells, seconds=seconds, bytes=size, first_paint_s=painted)


def own_rows(pattern: str, process: int, job: Mapping[str, Any]) -> Iterator[Row]:
    """Run one worker process.

    Raises:
      subprocess.SubprocessError: the process failed or hung; its stderr is shown.
    """
    done = subprocess.run(
        [sys.executable, "-m", "bench.trials.selftest.own_trials"],
        input=json.dumps(job),
        stdout=subprocess.PIPE,
        text=True,
        env=worker_environment("cpu", 1),
        timeout=_TIMEOUT_S,
        check=True,
    )
    for line in done.stdout.splitlines():
        yield cast("Row", {**json.loads(line), "pattern": pattern, "process": process})
