"""Builds a requested cell, in its own process, on the cell's mesh; nothing is proved or timed.

`python -m bench.worker.answer.built_cell QUESTION` prints as JSON the placement of the cell's
arrays (`inspect`), or whether a few steps fit the devices' memory (`fit`).
"""

import math
import os
import sys

import jax

from bench.records.messages import CellRequest, Fit, Inspection
from bench.worker.event_stream import answer_requests
from bench.worker.problems import load_cell
from bench.worker.prove.failures import UnsupportedError, WrongStepError, failure
from bench.worker.prove.trajectory import build_step, state_and_loss
from bench.worker.read.device_memory import inspection

STEPS = 3
"""More than one, because the first step's memory may differ: its state is not a step's result."""


def inspect(request: CellRequest) -> Inspection:
    """Build the cell's step, and describe its state and a batch; no step runs."""
    try:
        cell = load_cell(request)
        if why := cell.why_unsupported():
            return inspection(cell.mesh, None, why=why)
        step = cell.implementation.build(cell.problem, cell.mesh)
        return inspection(cell.mesh, step, step.place(cell.problem.batch(0)))
    except Exception as error:  # noqa: BLE001 - a user's file may raise anything
        sys.stderr.write(f"{failure(error)[1]}\n")
        os._exit(1)  # a traceback would show Lockstep's own frames


def fit(request: CellRequest) -> Fit:
    """Build the cell and run some steps; an exception is the reason why it does not fit."""
    try:
        _run(request)
    except BaseException as error:  # noqa: BLE001 - a user's file may raise anything
        status, reason = failure(error)
        return Fit(status=status, reason=reason, peak_bytes=None)
    # The peak since the process began, unless a device does not count it.
    stats = [device.memory_stats() or {} for device in jax.local_devices()]
    peaks = [own["peak_bytes_in_use"] for own in stats if "peak_bytes_in_use" in own]
    peak = max(map(int, peaks)) if len(peaks) == len(stats) else None
    return Fit(status="ok", reason="", peak_bytes=peak)


def _run(request: CellRequest) -> None:
    cell = load_cell(request)
    if reason := cell.why_unsupported():
        raise UnsupportedError(reason)
    step = build_step(cell.implementation, cell.problem, cell.mesh)
    state = step.state
    for number in range(STEPS):
        state, loss = state_and_loss(step.step(state, step.place(cell.problem.batch(number))))
        if not math.isfinite(float(loss)):
            raise WrongStepError(f"the loss of step {number + 1} is {float(loss)}")
    jax.block_until_ready(state)


if __name__ == "__main__":
    answer_requests({"inspect": inspect, "fit": fit}[sys.argv[1]])
