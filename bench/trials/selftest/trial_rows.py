"""The rows and the manifest that a self-test stores."""

import json
from pathlib import Path
from typing import Any, TypeAlias, TypedDict, cast

import pandas as pd

from bench.records import derived_files, files
from bench.records.trial_results import SELFTEST_MANIFEST

TRIALS = "trials.jsonl"
SAMPLES = "samples.parquet"
COLUMNS = [
    *("block", "attempt", "arm", "round", "position", "predecessor", "at", "steps"),
    *("throughput_ns", "latency_steps", "latency_ns", "wash_out_ns", "load", "truth"),
]
"""Columns of SAMPLES: those of bench.records.rows.SampleRow except the host's, and in addition the
background load and the arm's true ratio to the base."""


class DamagedError(Exception):
    """A stored file has changed since it was written; the message says which."""


Row: TypeAlias = dict[str, Any]
"""A line of TRIALS, by its `kind`, with the `pattern` of the load except for `report`:

own: a trial of Lockstep, whose samples are in SAMPLES: its `number`, its `wall_s`, and `inside_s`,
  the seconds within timed or wash-out steps.
overhead: the cost of the clock, with a step that does nothing, in nanoseconds a step: `call_ns`
  without any clock, `throughput_ns`, `latency_ns`, and `untimed_ns` between the spans.
peer: a trial of a tool: `peer`, `program` (SPIN, or a block), `slowdown`, `number`, the measuring
  time that it was given (`seconds`) and used (`measured_s`), whether it calls the program `slower`
  (null if it finds no difference), and `error`, empty unless it failed.
report: rebuilding the report of a large run, without load: `cells`, `seconds`, `bytes` of the
  page, and `first_paint_s` until a browser shows it (null without a browser).
"""


class Manifest(TypedDict):
    """The self-test's manifest, which is written once all trials are stored."""

    started_at: str
    settings: dict[str, Any]
    iterations: int
    """Iterations of spin in the base."""
    unavailable: dict[str, str]
    """Peers that could not be used, with the reasons."""
    host: dict[str, Any]
    git: dict[str, Any]
    checksums: dict[str, int]
    """CRC-32 of TRIALS and SAMPLES; `close` fills them in."""


def close(folder: Path, manifest: Manifest) -> None:
    """Write the manifest, without which a folder does not count as a self-test."""
    sums = derived_files.checksums(folder, (TRIALS, SAMPLES))
    text = json.dumps({**manifest, "checksums": sums}, indent=2)
    files.write(folder / SELFTEST_MANIFEST, files.sealed(text))


def read(folder: Path) -> tuple[Manifest, list[Row], pd.DataFrame]:
    """Read the manifest, the rows and the samples of a self-test.

    Raises:
      DamagedError: a file has changed since it was written, or another version wrote them.
      FileNotFoundError: the folder holds no self-test.
    """
    manifest = files.unsealed((folder / SELFTEST_MANIFEST).read_bytes())
    if manifest is None:
        raise DamagedError(f"{folder / SELFTEST_MANIFEST} is damaged: {files.CHANGED}")
    if "checksums" not in manifest:
        raise DamagedError(f"{folder} is by an earlier version of Lockstep, which builds its pages")
    for damage in derived_files.differing(folder, manifest["checksums"]):
        raise DamagedError(f"{folder / damage.place} is damaged: {damage.reason}")
    rows = [json.loads(line) for line in (folder / TRIALS).read_bytes().splitlines()]
    return cast("Manifest", manifest), rows, pd.read_parquet(folder / SAMPLES)
