"""A program as a test for pytest-benchmark, configured by an environment variable."""

import os
from collections.abc import Callable
from typing import Any

SETUP = "LOCKSTEP_SETUP"
"""Holds the code of `peer_protocol.Program.setup`."""


def test_call(benchmark: Callable[..., object]) -> None:
    """Time repeated calls."""
    names: dict[str, Any] = {}
    exec(os.environ[SETUP], names)  # noqa: S102 - our own code
    benchmark(names["call"])
