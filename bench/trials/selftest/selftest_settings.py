"""The settings of a self-test."""

from dataclasses import dataclass, field

from bench.records.arms import TWIN
from bench.records.cells import Block, StepOptions
from bench.records.mesh import MeshShape
from bench.trials.selftest.background_load import PATTERNS
from bench.trials.selftest.peer_tools import peer_names

ARMS = (2, 7, 14)
"""Numbers of arms in a block."""


def slowdown(truth: float) -> str:
    """Return `5 % slower`."""
    return f"{100 * (truth - 1):.0f} % slower"


BASE = "base"
PLANTED = {slowdown(truth): truth for truth in (1.02, 1.05, 1.10)}
"""Arms with extra work, and their true ratio to the base."""
SPIN = "spin"
"""Name of the program that all tools can time."""
SPINNING = {BASE: 1.0, TWIN: 1.0} | PLANTED
"""Arms of trials of the spin, and their true ratio to the base."""
STEPPING = {BASE: 1.0} | {f"copy {number}": 1.0 for number in range(1, max(ARMS))} | PLANTED
"""Arms of trials of a real step."""

STEPS = tuple(
    Block(workload, size, MeshShape.parse(f"data={devices}"), batch, StepOptions())
    for workload, size, batch in (("mlp", "base", 32), ("gpt2", "nano", 4))
    for devices in (1, 2)
)
"""Steps that take 5 to 30 ms on a laptop. Worker processes alternate between them."""

LONGER = 5
"""Measuring time of a pair of real steps in one process, as a multiple of a spin's."""


@dataclass(frozen=True)
class Settings:
    """The amount of work."""

    processes: int = 4
    """Worker processes for real steps under each load; half as many spin."""
    trials: int = 5
    """Trials of each process that spins."""
    peer_trials: int = 2
    """Trials of each peer under each load and with each slowdown of the spin; half as many with
    those of a real step."""
    seconds: float = 1.0
    """Measuring time of a pair that spins, both programs together."""
    report_cells: int = 10_000
    """Least number of cells of the run whose report is timed; 0 for no such run."""
    patterns: tuple[str, ...] = tuple(PATTERNS)
    peers: tuple[str, ...] = field(default_factory=lambda: tuple(peer_names()))
    seed: int = 0
