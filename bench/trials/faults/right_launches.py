"""Launches of the shipped implementations on a loaded machine, none of which may be convicted.

Each run measures all shipped implementations of some blocks of tiny models, under another load than
the run before. It takes the proofs in float64 from earlier runs, because no load can change them.
"""

import itertools
import json
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict

from bench.measure.environment import child_environment
from bench.measure.processes.guarded import ask
from bench.records import store
from bench.records.paths import REPORTS, ROOT
from bench.records.statuses import Status
from bench.trials.selftest.background_load import PATTERNS, load
from bench.trials.selftest.shares import Rate

FILE = "right.jsonl"
CONVICTED = ("wrong", "implausible")
LONGEST_RUN_S = 3600.0
"""Seconds without output after which a run is killed; a run takes some minutes."""
SMALL = ("--batch-sizes", "16", "--launches", "8", "--rounds", "6", "--seconds", "0.5")
"""Options of every run. The first two launches measure all arms, the later ones those that are not
settled: few arms, in longer turns, of which most are checked."""
FOREIGN = sorted(path.stem for path in (ROOT / "implementations/foreign").glob("[!_]*.py"))
RUNS = (
    ("--workloads", "mlp-tiny", "--meshes", "data=1", "data=2", "fsdp=2", "data=1,model=2"),
    ("--workloads", "linear-tiny", "--meshes", "data=2", "--precision", "fp32", "bf16"),
    ("--workloads", "gpt2-tiny", "--meshes", "data=2", "data=1,context=2", "data=1,model=2"),
    ("--workloads", "gpt2-nano", "--meshes", "data=1,pipe=2", "--microbatches", "2"),
    ("--workloads", "moe-tiny", "--meshes", "data=1,expert=2"),
    ("--workloads", "mlp-tiny", "--meshes", "data=1", "data=2", "--implementations", *FOREIGN,
     "--launches", "2"),
)  # fmt: skip
"""Further options of the runs, in turn; together they cover every implementation. Those of PyTorch
are unsupported where it is not installed."""


class RightRun(TypedDict):
    """One run, a line of FILE."""

    load: str
    options: list[str]
    """The workloads, the meshes and other options of RUNS."""
    launches: int
    arms: int
    """Cells that an implementation supports, over all launches."""
    convicting: int
    """Launches that convict an arm."""
    ended: list[tuple[str, Status, str]]
    """Name, status and reason of those that did not end ok."""


def run(launches: int, limit_s: float, folder: Path) -> Iterator[RightRun]:
    """Measure until there are this many launches, or until no further run may begin.

    No run begins after `limit_s` seconds. The folder is created; every finished run is a line of
    its FILE, and runs with a cell that is not ok are kept in its reports/. Raises StoreError, with
    its output, if a run stored nothing.
    """
    folder.mkdir(parents=True)
    began, done = time.monotonic(), 0
    patterns = [name for name in PATTERNS if name != "quiet"]
    for number in itertools.count():
        if done >= launches or time.monotonic() - began > limit_s:
            return
        again, place = divmod(number, len(RUNS))
        pattern, options = patterns[(again + place) % len(patterns)], RUNS[place]
        words = ("run", *SMALL, *options, "--run", str(number))
        with load(pattern, number):
            ended = ask(
                [sys.executable, "-m", "bench", *words],
                "",
                {**child_environment(), "JAX_PLATFORMS": "cpu"},
                LONGEST_RUN_S,
                cwd=folder,
            )
        directory = folder / REPORTS / str(number)
        try:
            found = read(store.load(directory), pattern, options)
        except (store.StoreError, OSError) as error:
            said = "\n".join([ended.out, *ended.tail]).strip()[-500:]
            raise store.StoreError(f"{error}; the run {ended.ending}: {said}") from error
        with (folder / FILE).open("a", encoding="utf-8") as file:
            file.write(json.dumps(found) + "\n")
        if not found["ended"]:
            shutil.rmtree(directory)
        done += found["launches"]
        yield found


def read(measured: store.Run, pattern: str, options: tuple[str, ...]) -> RightRun:
    """Count the launches and arms of a stored run, and list the arms that are not ok."""
    cells = [row for row in measured.cell_rows if row["status"] != "unsupported"]
    return RightRun(
        load=pattern,
        options=list(options),
        launches=len(measured.block_rows),
        arms=len(cells),
        convicting=len({row["attempt"] for row in cells if row["status"] in CONVICTED}),
        ended=[
            (f"{row['block']}/{row['implementation']}", row["status"], row["reason"])
            for row in cells
            if row["status"] != "ok"
        ],
    )


def summarize(runs: list[RightRun]) -> str:
    """Summarize the false convictions of all runs by launch and by arm, with their intervals."""
    arms, launches = sum(one["arms"] for one in runs), sum(one["launches"] for one in runs)
    convicting = sum(one["convicting"] for one in runs)
    statuses = [status for one in runs for _, status, _ in one["ended"]]
    convicted = sum(status in CONVICTED for status in statuses)
    return (
        f"launches with a false conviction: {Rate(convicting, launches).counted}\n"
        f"arms falsely convicted: {Rate(convicted, arms).counted}\n"
        f"arms that failed otherwise: {len(statuses) - convicted}\n"
        "in brackets: Wilson's 95 % interval"
    )
