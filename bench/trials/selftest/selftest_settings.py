"""What a self-test is told to do. Imports no jax."""

from __future__ import annotations

from dataclasses import dataclass, field

from bench.trials.selftest.background_load import PATTERNS
from bench.trials.selftest.peer_tools import peer_names

LAUNCHES = 4
"""Worker processes of the longer trials."""


@dataclass(frozen=True)
class Settings:
    """How much to do."""

    processes: int = 8
    """Worker processes of Lockstep under each load. A multiple of LAUNCHES."""
    trials: int = 9
    """Trials of each process."""
    peer_trials: int = 10
    """Trials of each peer under each load, of each slowdown in PEER_SLOWDOWNS."""
    seconds: float = 1.0
    """Measuring time of a pair, both programs together."""
    report_cells: int = 10_000
    """Size of the run whose report is timed, at least; 0: none is."""
    patterns: tuple[str, ...] = tuple(PATTERNS)
    peers: tuple[str, ...] = field(default_factory=lambda: tuple(peer_names()))
    seed: int = 0
