"""Compiles cells' steps without running them, and prints, as JSON, what a device does in each.

A process of its own, with as many virtual CPU devices as the cells' mesh: nothing is allocated on
them. Requests come on stdin, one a line; each is answered by one line as soon as it can be. Where
a step cannot be had without running it, a small one runs once on a small mesh.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from bench.contract import Implementation, Problem
from bench.records.messages import CompiledAnswer, CompiledRow, CompileRequest, Lack
from bench.records.printable import readable
from bench.records.rows import Communication
from bench.worker.answer.abstract_step import NotAbstractError, abstract_step, stand_in
from bench.worker.answer.requested_cell import RequestedCell, answer_requests, load_cell
from bench.worker.problems import make_problem
from bench.worker.prove.failures import UnsupportedError, failure, name_and_text
from bench.worker.read.first_call import FirstCall
from bench.worker.read.program_memory import device_bytes, largest_program
from bench.worker.read.programs import communication, compilers_cost, product_flops
from bench.worker.read.traced_flops import flops_of, traced_flops

RUN_DEVICES = 8
RUN_FLOPS = 1e11
"""The largest mesh and model FLOPs with which a step is run that cannot be had otherwise: about as
many as a core computes in seconds, with a model that fits beside its copies."""


class Reading(NamedTuple):
    """What there is to read of a step."""

    programs: list[Any]
    traced_flops: float
    """Over all devices; 0 where it is no JAX program as a whole."""
    state_bytes: int
    """Of one device."""
    bubble: float


def compile_only(request: CompileRequest) -> CompiledRow:
    """Compile a cell's step and read it.

    A device's FLOPs are its share of the traced step's, or what was compiled for it, whichever is
    more: the compiler may let several devices compute the same, and may make other operations of
    small products (see `product_flops`).

    XLA:CPU communicates in float32 what a step has in bfloat16, and as it is what a step has in
    float16: what a bfloat16 step communicates elsewhere is read of its float16 twin, and sums of
    which devices keep slices count as reduce-scatters.

    Raises:
      UnsupportedError: the implementation says that it cannot run this.
      Exception: whatever the implementation or the compiler raises.
    """
    cell = load_cell(request)
    if cell.unsupported:
        raise UnsupportedError(cell.unsupported)
    reading = sending = had(cell)
    elsewhere = request["elsewhere"]
    options = cell.block.options
    widened = elsewhere and options.precision == "bf16"
    if widened and cell.mesh.size > 1:
        half: CompileRequest = {**request, "options": str(replace(options, precision="fp16"))}
        twin = load_cell(half)
        if twin.unsupported:
            raise NotAbstractError(
                "what it sends in bfloat16 is read in float16, which it does not support: "
                f"{twin.unsupported}"
            )
        sending = had(twin)
    found = communication(sending.programs, cell.mesh, scatter=elsewhere)
    if elsewhere and cell.mesh.size > 1 and not found:
        raise NotAbstractError("what passes between its devices is in none of its programs")
    if widened:
        for row in found:
            row["dtypes"] = ["bf16" if dtype == "f16" else dtype for dtype in row["dtypes"]]
    return read_row(reading, found, cell.problem, cell.mesh)


def had(cell: RequestedCell) -> Reading:
    """Compile a step, or run it where it is small and cannot be had otherwise.

    Raises:
      Exception: whatever the implementation or the compiler raises.
    """
    block, problem, mesh = cell.block, cell.problem, cell.mesh
    # A batch of the shapes, made of a few rows: the whole one may be gigabytes on many devices.
    few = make_problem(cell.workload, replace(block, batch=1), block.options.precision)
    try:
        return read(cell.implementation, problem, mesh, stand_in(few.batch(0), block.batch))
    except Exception as error:
        if mesh.size > RUN_DEVICES or problem.model_flops > RUN_FLOPS:
            raise
        print(f"the step is run: {name_and_text(error)}", file=sys.stderr)  # noqa: T201
        return run(cell.implementation, problem, mesh)


def read(implementation: Implementation, problem: Problem, mesh: Mesh, batch: Any) -> Reading:
    """Compile a step that has not run.

    Raises:
      Exception: see `abstract_step`.
    """
    step = abstract_step(implementation, problem, mesh, batch)
    program = step.compile().runtime_executable()
    return Reading([program], flops_of(step.jaxpr), step.state_bytes, step.bubble)


def run(implementation: Implementation, problem: Problem, mesh: Mesh) -> Reading:
    """Run a step once."""
    step = implementation.build(problem, mesh)
    batch = step.place(problem.batch(0))
    own = max(device_bytes(step.state).values())
    try:
        traced = traced_flops(step.step, step.state, batch)
    except Exception as error:  # noqa: BLE001 - what was compiled still tells
        print(f"the step cannot be traced: {error}", file=sys.stderr)  # noqa: T201
        traced = 0.0
    first_call = FirstCall(step.step)
    jax.block_until_ready(first_call(step.state, batch)[1])
    return Reading(first_call.programs, traced, own, float(step.bubble))


def read_row(
    reading: Reading, found: list[Communication], problem: Problem, mesh: Mesh
) -> CompiledRow:
    """What one device does.

    Raises:
      RuntimeError: the backend gives no figures.
    """
    programs = reading.programs
    cost, memory = compilers_cost(programs), largest_program(programs)
    if cost is None or memory is None:
        raise RuntimeError("the compiler gives no figures of the step's cost and memory")
    return CompiledRow(
        flops=max(reading.traced_flops, product_flops(programs)) / mesh.size,
        accessed_bytes=cost["accessed_bytes"] / mesh.size,
        memory_bytes=memory["total_bytes"],
        state_bytes=reading.state_bytes,
        communication=found,
        model_flops=problem.model_flops,
        units=problem.units_per_step,
        unit=problem.unit,
        bubble=reading.bubble,
    )


def answer(request: CompileRequest) -> CompiledAnswer:
    """The row, or why there is none."""
    lack: Lack = "failed"
    try:
        return CompiledAnswer(row=compile_only(request), reason="", lack="")
    except UnsupportedError as error:
        reason, lack = str(error), "unsupported"
    except NotAbstractError as error:
        reason, lack = str(error), "unreadable"
    except BaseException as error:  # noqa: BLE001 - a user's file may raise anything
        ended, text = failure(error)
        reason, lack = (text, "oom") if ended == "oom" else (readable(name_and_text(error)), lack)
    return CompiledAnswer(row=None, reason=reason, lack=lack)


def answer_and_forget(request: CompileRequest) -> CompiledAnswer:
    """As `answer`. What is compiled is not used again: 1,024 devices' programs take room."""
    found = answer(request)
    jax.clear_caches()
    return found


if __name__ == "__main__":
    answer_requests(answer_and_forget)
