"""Answers a question about requested cells, in its own process; nothing is proved or timed.

`python -m bench.worker.answer.cell_requests QUESTION` prints as JSON why implementations cannot run
a plan's cells (`support`), the placement of a cell's arrays (`inspect`), or whether a few of its
steps fit the devices' memory (`fit`).
"""

import math
import os
import sys
from typing import Any, cast

import jax

from bench.records.cells import Block
from bench.records.messages import CellRequest, Fit, Inspection, SupportAnswer, SupportRequest
from bench.worker.event_stream import answer_requests
from bench.worker.file_loader import implementation_files, load, workload_files
from bench.worker.problems import load_cell, load_workload, make_mesh, make_problem
from bench.worker.prove.failures import UnsupportedError, WrongStepError, failure, why_unsupported
from bench.worker.prove.trajectory import build_step, state_and_loss
from bench.worker.read.device_memory import inspection, memory_count

STEPS = 3
"""More than one, because the first step's memory may differ: its state is not a step's result."""


def support(request: SupportRequest) -> SupportAnswer:
    """Ask every implementation about every block; nothing is computed.

    Cells that `why_unsupported` cannot decide here are left to a worker.
    """
    files = implementation_files(request["implementation_paths"])
    found = SupportAnswer(unsupported={}, faults=[])
    for text in request["blocks"]:
        block = Block.of(text)
        try:
            mesh = make_mesh(block.mesh)
        except ValueError:  # its worker may have more devices
            continue
        try:
            workload = load_workload(block, request["workload_paths"])
            problem = make_problem(workload, block, block.options.precision)
        except Exception as error:  # noqa: BLE001 - a user's file may raise anything
            status, reason = failure(error)
            if status != "oom":  # its worker may have more memory
                path = workload_files(request["workload_paths"])[block.workload]
                found["faults"].append(f"workload {block.workload} ({path}): {reason}")
            continue
        own = found["unsupported"][block.name] = {}
        for name in request["implementations"]:
            try:
                own[name] = why_unsupported(cast("Any", load(files[name])), problem, mesh)
            except WrongStepError as error:
                found["faults"].append(f"implementation {name} ({files[name]}): {error}")
            except BaseException:  # noqa: BLE001, S112 - a user's file may raise anything
                continue
    found["faults"] = list(dict.fromkeys(found["faults"]))
    return found


def inspect(request: CellRequest) -> Inspection:
    """Build the cell's step, and describe its state and a batch; no step runs."""
    try:
        cell = load_cell(request)
        if why := cell.why_unsupported():
            return inspection(cell.mesh, None, why=why)
        step = build_step(cell.implementation, cell.problem, cell.mesh)
        return inspection(cell.mesh, step, step.place(cell.problem.batch(0)))
    except BaseException as error:  # noqa: BLE001 - a user's file may raise anything
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
    peaks = [memory_count(device, "peak_bytes_in_use") for device in jax.local_devices()]
    peak = None if None in peaks else max(filter(None, peaks), default=0)
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
    answer_requests({"support": support, "inspect": inspect, "fit": fit}[sys.argv[1]])
