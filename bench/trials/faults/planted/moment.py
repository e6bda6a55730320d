"""When planted files go wrong: at once, in the timed rounds, or when a worker starts again."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from jax.sharding import Mesh

from bench.contract import Problem, TrainStep
from bench.records.current_arm import VARIABLE
from bench.trials.faults.planted import good

FOLDER = "LOCKSTEP_FAULT_FOLDER"
"""Variable that names a folder of the trial's own."""


def injected() -> None:
    """Note, for whoever watches, that this process goes wrong now, and should soon be gone."""
    folder = os.environ.get(FOLDER)
    if folder:
        path = Path(folder, "injected")
        draft = path.with_suffix(f".{os.getpid()}")
        draft.write_text(f"{os.getpid()} {time.monotonic()}", encoding="utf-8")
        draft.replace(path)


def timed() -> bool:
    """Whether the rounds are on: somebody has the turn."""
    return bool(os.pread(int(os.environ[VARIABLE]), 64, 0).strip(b"\0 ").partition(b" ")[2])


def count(name: str) -> int:
    """How often this was asked in the trial, over all processes, this time included."""
    folder = Path(os.environ[FOLDER])
    number = 1
    while True:
        try:
            (folder / f"{name}-{number}").touch(exist_ok=False)
        except FileExistsError:
            number += 1
        else:
            return number


def in_step(problem: Problem, mesh: Mesh, go_wrong: Callable[[], None]) -> TrainStep:
    """The right step, but that it goes wrong in the first call."""
    right = good.build(problem, mesh)

    def step(state: Any, batch: Any) -> Any:
        go_wrong()
        return right.step(state, batch)

    return replace(right, step=step)


def in_rounds(problem: Problem, mesh: Mesh, go_wrong: Callable[[], None]) -> TrainStep:
    """The right step, but that it goes wrong in the first turn of the timed rounds."""
    return in_step(problem, mesh, lambda: go_wrong() if timed() else None)
