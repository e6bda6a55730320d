"""A foreign NumPy implementation of the linear workload that goes wrong in one way.

A run is given a small file that calls `plant`, as with bench.trials.faults.planted. The file runs
in a process without jax.
"""

import os
import subprocess
import threading
import time
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from bench.records.current_arm import VARIABLE


class Step:
    """The correct step: least squares under SGD, in the parameters' dtype.

    `act` is called in every step of the timed rounds.
    """

    def __init__(self, problem: Any, act: Callable[[], object]) -> None:
        self.kernel, self.bias = problem.params["kernel"], problem.params["bias"]
        self.rate = problem.optimizer["learning_rate"]
        self.act = act

    def place(self, arrays: list[np.ndarray]) -> list[np.ndarray]:
        """Keep a batch: inputs (batch, in) and targets (batch, out)."""
        return arrays

    def step(self, batch: list[np.ndarray]) -> float:
        """Take a step, and return the loss before it."""
        if _timed():
            self.act()
        inputs, targets = batch
        errors = inputs @ self.kernel + self.bias - targets
        scale = self.rate * 2 / errors.size
        self.kernel = self.kernel - scale * (inputs.T @ errors)
        self.bias = self.bias - scale * errors.sum(0)
        return float(np.mean(errors**2))

    def wait(self) -> None:
        """Return at once: the work of a step is done when `step` returns."""

    def params(self) -> dict[str, np.ndarray]:
        """Return the parameters by name."""
        return {"kernel": self.kernel, "bias": self.bias}


def _timed() -> bool:
    """Return whether the timed rounds have begun, by the file of turns that the worker writes."""
    if VARIABLE not in os.environ:  # there is no supervisor
        return True
    with open(f"/proc/{os.getppid()}/fd/{os.environ[VARIABLE]}", "rb") as file:  # noqa: PTH123
        return bool(file.read(64).strip(b"\0 ").partition(b" ")[2])


@cache
def spin() -> None:
    """Leave a thread running that works while other arms are timed."""
    block = np.ones(1 << 16)  # summed without Python's lock
    threading.Thread(target=lambda: [block.sum() for _ in iter(int, 1)], daemon=True).start()


_since = cache(time.perf_counter_ns)


def _report_false_times() -> None:
    """Slow the helper's clock to a tenth of its speed, and make steps five milliseconds longer."""
    start, helper = _since(), import_module("__main__")
    helper.now = lambda: start + (time.perf_counter_ns() - start) // 10  # type: ignore[attr-defined]
    time.sleep(5e-3)


IN_ROUNDS: dict[str, Callable[[], object]] = {
    "foreign_end": lambda: os._exit(7),
    "foreign_sleep": threading.Event().wait,
    "foreign_lie": _report_false_times,
    "foreign_print": lambda: os.write(3, b"printed\n"),  # the channel, beneath the helper
    "foreign_spin": spin,
}
"""Faults in the timed steps."""


def plant(name: str) -> tuple[Callable[[Any], Step], Callable[[Any], str | None]]:
    """Return `build` and `why_unsupported` of an implementation.

    `name` is a key of IN_ROUNDS; or `foreign_shapes`, which gives flattened parameters; or
    `foreign_leave`, which leaves a process; or `foreign_import`, whose package does not exist. Any
    other gives a correct implementation.
    """
    if name == "foreign_import":
        import_module("no_such_package")

    def build(problem: Any) -> Step:
        if name == "foreign_leave":
            subprocess.Popen(["sleep", "3600"], start_new_session=True)  # noqa: S607
        step = Step(problem, IN_ROUNDS.get(name, int))
        if name == "foreign_shapes":
            step.params = lambda: {"kernel": step.kernel.ravel(), "bias": step.bias}  # type: ignore[method-assign]
        return step

    return build, lambda problem: None if problem.model == "linear" else "it is only for linear"
