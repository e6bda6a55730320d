"""The planted workload as a test for pytest-benchmark, configured by environment variables."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from bench.trials.selftest.planted_kernel import SEED, spin_function

LIBRARY = "LOCKSTEP_PLANTED_LIBRARY"
ITERATIONS = "LOCKSTEP_PLANTED_ITERATIONS"


def test_spin(benchmark: Callable[..., float]) -> None:
    """Time repeated calls."""
    spin = spin_function(Path(os.environ[LIBRARY]))
    benchmark(spin, int(os.environ[ITERATIONS]), SEED)
