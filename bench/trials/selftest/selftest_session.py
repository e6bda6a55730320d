"""One self-test: trials of Lockstep and of its peers, in random order, under several loads.

Rows are appended to `reports/<run>/trials.jsonl` and evaluated by
`bench.trials.selftest.detector_figures`. Lockstep's own trials run in worker processes.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict, cast

import numpy as np
import pandas as pd

from bench.analyse.sample_rounds import Rounds
from bench.measure.environment import child_environment, worker_environment
from bench.records import files
from bench.records.arms import TWIN
from bench.records.host import describe_code, describe_host
from bench.records.rows import Turn
from bench.records.trial_results import SELFTEST_MANIFEST
from bench.trials.selftest import large_run as big_run
from bench.trials.selftest import planted_kernel as kernel
from bench.trials.selftest.background_load import load
from bench.trials.selftest.first_paint import first_paint
from bench.trials.selftest.peer_protocol import Peer, PeerError
from bench.trials.selftest.peer_tools import find_peers
from bench.trials.selftest.planted_kernel import Kernel
from bench.trials.selftest.selftest_settings import Settings

TRIALS = "trials.jsonl"

BASE = "base"
SLOWDOWNS = {TWIN: 1.0, "2 % slower": 1.02, "5 % slower": 1.05, "10 % slower": 1.10}
"""Arms beside the base, and their planted ratio to it. The twin is the same program."""

PEER_SLOWDOWNS = (TWIN, "2 % slower", "5 % slower")

STEP_S = 0.001
ROUNDS = 128
_TIMEOUT_S = 600.0
_REBUILD = (
    "import json, pathlib; from bench.trials.selftest.large_run import rebuild; "
    "print(json.dumps(rebuild(pathlib.Path(sys.argv[1]))))"
)


class DamagedError(Exception):
    """A stored file is not as it was stored; the message says which."""


class OwnRow(TypedDict):
    """One trial of Lockstep: the rounds of one worker process."""

    kind: Literal["own"]
    pattern: str
    process: int
    number: int
    steps: int
    wall_s: float
    inside_s: float
    """Within timed or wash-out steps."""
    log_ratios: dict[str, list[float]]
    """Of each arm to the base, round by round."""


class OverheadRow(TypedDict):
    """What the clock costs, from a step that does nothing. Nanoseconds a step."""

    kind: Literal["overhead"]
    pattern: str
    process: int
    call_ns: float
    """Calling the step, without any clock."""
    throughput_ns: float
    latency_ns: float
    untimed_ns: float
    """Between the spans."""


class PeerRow(TypedDict):
    """One trial of a peer; see bench.trials.selftest.peer_protocol.PeerTrial."""

    kind: Literal["peer"]
    pattern: str
    peer: str
    slowdown: str
    number: int
    error: str
    """Empty unless the tool failed."""
    different: bool | None
    slower: bool | None
    ratio: float | None
    measured_s: float
    wall_s: float


class Manifest(TypedDict):
    """`selftest.json`: written when all trials are stored."""

    started_at: str
    settings: dict[str, Any]
    iterations: int
    """Of the base's step."""
    unavailable: dict[str, str]
    """Peers that could not be asked, and why."""
    host: dict[str, Any]
    git: dict[str, Any]
    trials_crc32: int
    """Of `trials.jsonl`; filled in at the end."""


class ReportRow(TypedDict):
    """What it costs to build the report of a large run again, without background load."""

    kind: Literal["report"]
    cells: int
    seconds: float
    bytes: int
    """Of the page."""
    first_paint_s: NotRequired[float | None]
    """Until a browser shows the page; None where there is no browser to ask."""


Row = OwnRow | OverheadRow | PeerRow | ReportRow
Task = Callable[[], Iterator[Row]]


class Session:
    """Runs the trials into a folder.

    Args:
      settings: how much to do.
      folder: is made when it is run.

    Raises:
      KernelError: the planted workload cannot be compiled.
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
        """Run everything; `progress` is told the load before every task."""
        with tempfile.TemporaryDirectory(prefix="lockstep-") as temporary:
            scratch = Path(temporary)
            built = kernel.build(scratch / "kernel")
            library = kernel.build_ffi(scratch / "kernel")
            base = built.iterations_for(STEP_S)
            self.folder.mkdir(parents=True)
            manifest = self._manifest(base)
            with (self.folder / TRIALS).open("w", encoding="utf-8") as file:
                for pattern in self.settings.patterns:
                    tasks = [
                        *self._own_tasks(pattern, library, base),
                        *self._peer_tasks(pattern, built, base, scratch),
                    ]
                    random.Random(f"{self.settings.seed}/{pattern}").shuffle(tasks)
                    with load(pattern, self.settings.seed):
                        for task in tasks:
                            progress(pattern)
                            for row in task():
                                file.write(json.dumps(row) + "\n")
                            file.flush()
                if self.settings.report_cells:
                    row = report_row(scratch, self.settings.report_cells)
                    file.write(json.dumps(row) + "\n")
            close(self.folder, manifest)

    def _manifest(self, base: int) -> Manifest:
        return Manifest(
            started_at=datetime.now(UTC).isoformat(timespec="seconds"),
            settings=asdict(self.settings),
            iterations=base,
            unavailable=self.unavailable,
            host=describe_host(),
            git=describe_code(),
            trials_crc32=0,
        )

    def _own_tasks(self, pattern: str, library: Path, base: int) -> list[Task]:
        iterations = {BASE: base} | {arm: round(base * r) for arm, r in SLOWDOWNS.items()}
        job = {
            "library": str(library),
            "iterations": iterations,
            "trials": self.settings.trials,
            "rounds": ROUNDS,
            # The base and one other arm have `seconds`; the others have as much as each of them.
            "seconds": self.settings.seconds * len(iterations) / 2,
        }

        def task(process: int) -> Task:
            return lambda: own_rows(pattern, process, {**job, "seed": process})

        return [task(process) for process in range(self.settings.processes)]

    def _peer_tasks(self, pattern: str, built: Kernel, base: int, scratch: Path) -> list[Task]:
        def task(name: str, slowdown: str, number: int) -> Task:
            def run() -> Iterator[Row]:
                other = round(base * SLOWDOWNS[slowdown])
                with tempfile.TemporaryDirectory(dir=scratch) as folder:
                    yield self._peer_row(
                        pattern, name, slowdown, number, built, base, other, Path(folder)
                    )

            return run

        return [
            task(name, slowdown, number)
            for name in self.peers
            for slowdown in PEER_SLOWDOWNS
            for number in range(self.settings.peer_trials)
        ]

    def _peer_row(
        self,
        pattern: str,
        name: str,
        slowdown: str,
        number: int,
        built: Kernel,
        base: int,
        other: int,
        folder: Path,
    ) -> PeerRow:
        row = PeerRow(
            kind="peer", pattern=pattern, peer=name, slowdown=slowdown, number=number, error="",
            different=None, slower=None, ratio=None, measured_s=0.0, wall_s=0.0,
        )  # fmt: skip
        try:
            trial = self.peers[name].trial(built, base, other, self.settings.seconds, folder)
        except PeerError as error:
            return {**row, "error": str(error)}
        return {
            **row,
            "different": trial.different,
            "slower": trial.slower,
            "ratio": trial.ratio,
            "measured_s": trial.measured_s,
            "wall_s": trial.wall_s,
        }


def report_row(folder: Path, cells: int) -> ReportRow:
    """Build the report of a large run, in a process of its own as the command does."""
    run, cells = big_run.write(folder / "large", cells)
    script = f"import sys; {_REBUILD}"
    done = subprocess.run(  # noqa: S603 (our own command)
        [sys.executable, "-c", script, str(run)],
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
    """Run one worker process and read what it says.

    Raises:
      subprocess.CalledProcessError: it failed; its stderr is shown.
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
        event = json.loads(line)
        turns: list[Turn] = event["turns"]
        steps, waited = turns[0]["steps"], turns[0]["latency_steps"]
        inside_ns = sum(t["throughput_ns"] + t["latency_ns"] + t["wash_out_ns"] for t in turns)
        if event["event"] == "trial":
            yield OwnRow(
                kind="own",
                pattern=pattern,
                process=process,
                number=event["number"],
                steps=steps,
                wall_s=event["wall_s"],
                inside_s=inside_ns / 1e9,
                log_ratios=log_ratios(turns),
            )
        else:
            untimed_ns = 1e9 * event["wall_s"] - inside_ns
            yield OverheadRow(
                kind="overhead",
                pattern=pattern,
                process=process,
                call_ns=event["call_ns"],
                throughput_ns=float(np.median([t["throughput_ns"] / steps for t in turns])),
                latency_ns=float(np.median([t["latency_ns"] / waited for t in turns])),
                untimed_ns=untimed_ns / len(turns) / (1 + steps + waited),
            )


def log_ratios(turns: list[Turn]) -> dict[str, list[float]]:
    """Every arm's log ratio to the base, round by round."""
    rounds = Rounds.of(pd.DataFrame(turns).assign(attempt="", launch=0))
    return {
        arm: [round(float(value), 6) for value in rounds.log_ratios(arm, BASE)[0]]
        for arm in SLOWDOWNS
    }


def close(folder: Path, manifest: Manifest) -> None:
    """Write the manifest: what a session without one has left is no self-test."""
    whole: Manifest = {**manifest, "trials_crc32": zlib.crc32((folder / TRIALS).read_bytes())}
    files.write(folder / SELFTEST_MANIFEST, files.sealed(json.dumps(whole, indent=2)))


def read(folder: Path) -> tuple[Manifest, list[Row]]:
    """What a session wrote.

    Raises:
      DamagedError: a file is not as it was stored.
      FileNotFoundError: it is not a self-test's folder.
    """
    manifest = files.unsealed((folder / SELFTEST_MANIFEST).read_bytes())
    if manifest is None:
        raise DamagedError(f"{folder / SELFTEST_MANIFEST} is damaged: {files.CHANGED}")
    trials = (folder / TRIALS).read_bytes()
    if zlib.crc32(trials) != manifest["trials_crc32"]:
        raise DamagedError(f"{folder / TRIALS} is damaged: {files.CHANGED}")
    return cast("Manifest", manifest), [json.loads(line) for line in trials.splitlines()]
