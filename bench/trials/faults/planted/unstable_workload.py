"""A workload that no implementation can train for long: its learning rate is far too large."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import optax

from bench.contract import Problem
from bench.contract.workloads import linear

SIZES = linear.SIZES
DEFAULT_SIZE = "tiny"


def problem(config: Any, batch_size: int, precision: str, remat: bool = False) -> Problem:
    """As linear, with steps that make the loss larger."""
    return replace(linear.problem(config, batch_size, precision, remat), optimizer=optax.sgd(2.0))
