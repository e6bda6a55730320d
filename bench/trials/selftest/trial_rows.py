"""The rows and the manifest that a self-test stores."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict, cast

from bench.records import files
from bench.records.arms import TWIN
from bench.records.trial_results import SELFTEST_MANIFEST

TRIALS = "trials.jsonl"

BASE = "base"
SLOWDOWNS = {TWIN: 1.0, "2 % slower": 1.02, "5 % slower": 1.05, "10 % slower": 1.10}
"""Arms measured beside the base, and their planted ratio to it. The twin is the same program."""

ROUNDS = 128
"""Rounds of one process in a trial."""


class DamagedError(Exception):
    """A stored file has changed since it was written; the message says which."""


class OwnRow(TypedDict):
    """One trial of Lockstep: the rounds of one worker process."""

    kind: Literal["own"]
    pattern: str
    process: int
    number: int
    steps: int
    wall_s: float
    inside_s: float
    """Seconds within timed or wash-out steps."""
    log_ratios: dict[str, list[float]]
    """Log ratios of each arm to the base, one a round."""


class OverheadRow(TypedDict):
    """The cost of the clock, measured with a step that does nothing, in nanoseconds a step."""

    kind: Literal["overhead"]
    pattern: str
    process: int
    call_ns: float
    """Calling the step without any clock."""
    throughput_ns: float
    latency_ns: float
    untimed_ns: float
    """Time between the spans."""


class PeerRow(TypedDict):
    """One trial of a peer."""

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


class ReportRow(TypedDict):
    """The cost of rebuilding the report of a large run, without background load."""

    kind: Literal["report"]
    cells: int
    seconds: float
    bytes: int
    """Size of the page."""
    first_paint_s: NotRequired[float | None]
    """Time until a browser shows the page; None without a browser."""


Row = OwnRow | OverheadRow | PeerRow | ReportRow


class Manifest(TypedDict):
    """The self-test's manifest, which is written once all trials are stored."""

    started_at: str
    settings: dict[str, Any]
    iterations: int
    """Iterations of the base's step."""
    unavailable: dict[str, str]
    """Peers that could not be used, and why."""
    host: dict[str, Any]
    git: dict[str, Any]
    trials_crc32: int
    """Checksum of the rows; `close` fills it in."""


def close(folder: Path, manifest: Manifest) -> None:
    """Write the manifest, without which a folder does not count as a self-test."""
    checked: Manifest = {**manifest, "trials_crc32": zlib.crc32((folder / TRIALS).read_bytes())}
    files.write(folder / SELFTEST_MANIFEST, files.sealed(json.dumps(checked, indent=2)))


def read(folder: Path) -> tuple[Manifest, list[Row]]:
    """Read the manifest and the rows of a self-test.

    Raises:
      DamagedError: a file has changed since it was written.
      FileNotFoundError: the folder holds no self-test.
    """
    manifest = files.unsealed((folder / SELFTEST_MANIFEST).read_bytes())
    if manifest is None:
        raise DamagedError(f"{folder / SELFTEST_MANIFEST} is damaged: {files.CHANGED}")
    trials = (folder / TRIALS).read_bytes()
    if zlib.crc32(trials) != manifest["trials_crc32"]:
        raise DamagedError(f"{folder / TRIALS} is damaged: {files.CHANGED}")
    return cast("Manifest", manifest), [json.loads(line) for line in trials.splitlines()]
