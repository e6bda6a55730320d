"""The settings of a self-test, and the rows and the manifest that it stores."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from bench.records import derived_files, trial_results
from bench.records.cells import Block, StepOptions
from bench.records.mesh import MeshShape
from bench.records.store import StoreError
from bench.records.trial_results import SELFTEST_MANIFEST
from bench.trials.selftest.background_load import PATTERNS
from bench.trials.selftest.peer_tools import PEERS

ARMS = (2, 7, 14)
"""Numbers of arms in a block."""


def slowdown(truth: float) -> str:
    """Return `5 % slower`."""
    return f"{100 * (truth - 1):.0f} % slower"


BASE = "base"
PLANTED = {slowdown(truth): truth for truth in (1.02, 1.05, 1.10)}
"""Arms with extra work, and their true ratio to the base."""
STEPPING = {BASE: 1.0} | {f"copy {number}": 1.0 for number in range(1, max(ARMS))} | PLANTED
"""Arms of a trial, and their true ratio to the base."""

STEPS = tuple(
    Block(workload, size, MeshShape.parse(f"data={devices}"), batch, StepOptions())
    for workload, size, batch in (("mlp", "base", 32), ("gpt2", "nano", 4))
    for devices in (1, 2)
)
"""Steps that take 5 to 30 ms on a laptop. Worker processes alternate between them."""

USUAL = 400
"""Cells of the run whose page has to be complete soon."""


@dataclass(frozen=True)
class Settings:
    """The amount of work, as the options of `selftest` describe it."""

    processes: int = 4
    peer_trials: int = 1
    seconds: float = 5.0
    report_cells: int = 10_000
    patterns: tuple[str, ...] = tuple(PATTERNS)
    peers: tuple[str, ...] = tuple(PEERS)


TRIALS = "trials.jsonl"
SAMPLES = "samples.parquet"
COLUMNS = [
    *("block", "attempt", "arm", "round", "at", "steps", "throughput_ns", "latency_steps"),
    *("latency_ns", "wash_out_ns", "load", "truth"),
]
"""Columns of SAMPLES: those of bench.records.rows.SampleRow except the host's, and in addition the
background load and the arm's true ratio to the base."""

Row: TypeAlias = dict[str, Any]
"""A line of TRIALS, by its `kind`, with the `pattern` of the load except for `report`:

own: a trial of Lockstep, whose samples are in SAMPLES: its `wall_s`, and `inside_s`, the seconds
  within timed or wash-out steps.
overhead: the cost of the clock, with a step that does nothing, in nanoseconds per step: `call_ns`
  without any clock, `throughput_ns`, and `untimed_ns` between the spans.
peer: a trial of a tool: `peer`, `program` (a block), `slowdown`, `number`, the measuring
  time that it was given (`seconds`) and used (`measured_s`), whether it calls the program `slower`
  (null if it finds no difference), and `error`, empty unless it failed.
report: rebuilding the report of a large run, without load: `cells`, `seconds`, `bytes` of the
  page, and `first_paint_s` until a browser shows it; for a run of usual size, `usual_paint_s` and
  `usual_drawn_s` until all of it is drawn (null without a browser).
"""


def read(folder: Path) -> tuple[dict[str, Any], list[Row]]:
    """Read the manifest and the rows of a self-test, whose samples are checked too.

    The manifest, which is written last, has the start time, the settings, the host, the commit, the
    peers that could not be used, with reasons, and the CRC-32 of TRIALS and SAMPLES. StoreError if
    a file has changed since it was written; FileNotFoundError if the folder holds no self-test.
    """
    manifest = trial_results.read(folder / SELFTEST_MANIFEST)
    for name, reason in derived_files.differing(folder, manifest["checksums"]).items():
        raise StoreError(f"{folder / name} is damaged: {reason}")
    rows = [json.loads(line) for line in (folder / TRIALS).read_bytes().splitlines()]
    return manifest, rows
