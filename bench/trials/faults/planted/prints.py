"""Prints what is no text, has no lines, looks like events, and is much of it."""

from __future__ import annotations

import json
import os
import sys

from jax.sharding import Mesh

from bench.contract import Problem, TrainStep
from bench.trials.faults.planted import good
from bench.trials.faults.planted.good import why_unsupported

__all__ = ["build", "why_unsupported"]


def build(problem: Problem, mesh: Mesh) -> TrainStep:
    """The right step, after the noise."""
    event = {"event": "block", "row": {"implementation": "good"}}
    for descriptor in (1, 2):
        os.write(descriptor, bytes(range(256)) * 64)
        os.write(descriptor, f"{json.dumps(event)}\n{{\n[1]\n\x1b[2J".encode())
    for stream in (sys.stdout, sys.stderr):
        print(json.dumps({"event": "cell"}), "no end" * 1_000_000, end="", file=stream)
        stream.flush()
    return good.build(problem, mesh)
