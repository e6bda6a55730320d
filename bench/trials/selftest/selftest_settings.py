"""The settings of a self-test."""

from __future__ import annotations

from dataclasses import dataclass, field

from bench.trials.selftest.background_load import PATTERNS
from bench.trials.selftest.peer_tools import peer_names

LAUNCHES = 4
"""Worker processes of a longer trial."""


@dataclass(frozen=True)
class Settings:
    """The amount of work."""

    processes: int = 8
    """Worker processes of Lockstep under each load; a multiple of LAUNCHES."""
    trials: int = 9
    """Trials of each process."""
    peer_trials: int = 10
    """Trials of each peer under each load and with each of its slowdowns."""
    seconds: float = 1.0
    """Measuring time of a pair, both programs together."""
    report_cells: int = 10_000
    """Least number of cells of the run whose report is timed; 0 for no such run."""
    patterns: tuple[str, ...] = tuple(PATTERNS)
    peers: tuple[str, ...] = field(default_factory=lambda: tuple(peer_names()))
    seed: int = 0
