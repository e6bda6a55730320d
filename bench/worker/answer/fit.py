"""Runs a few steps of a cell, and prints as JSON whether they fit the devices' memory.

It runs in its own process, on the cell's mesh. Nothing is proved and nothing is timed.
"""

import math

import jax

from bench.records.messages import CellRequest, Fit
from bench.worker.answer.requested_cell import answer_requests, load_cell
from bench.worker.prove.failures import UnsupportedError, WrongStepError, failure
from bench.worker.prove.trajectory import build_step, state_and_loss

STEPS = 3
"""More than one, because the first step's memory may differ: its state is not a step's result."""


def fit(request: CellRequest) -> Fit:
    """Build the cell and run some steps; an exception is the reason why it does not fit."""
    try:
        _step(request)
    except BaseException as error:  # noqa: BLE001 - a user's file may raise anything
        status, reason = failure(error)
        return Fit(status=status, reason=reason, peak_bytes=None)
    return Fit(status="ok", reason="", peak_bytes=_peak_bytes())


def _step(request: CellRequest) -> None:
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


def _peak_bytes() -> int | None:
    """Return the peak memory of a device since the process began; None if it does not count."""
    stats = [device.memory_stats() or {} for device in jax.local_devices()]
    peaks = [own["peak_bytes_in_use"] for own in stats if "peak_bytes_in_use" in own]
    return max(map(int, peaks)) if len(peaks) == len(stats) else None


if __name__ == "__main__":
    answer_requests(fit)
