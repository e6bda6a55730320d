"""Compiles steps without running them, and prints a device's work and communication as JSON.

It runs in its own process, with as many virtual CPU devices as the cells' mesh, on which nothing is
allocated. A step that cannot be compiled without running it runs once if it and its mesh are small.
"""

import sys
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from bench.contract import Implementation, Problem
from bench.records.messages import CompiledAnswer, CompiledFigures, CompileRequest, Lack
from bench.records.printable import readable
from bench.worker.answer.abstract_step import NotAbstractError, abstract_step, stand_in
from bench.worker.event_stream import answer_requests
from bench.worker.problems import RequestedCell, load_cell, make_problem
from bench.worker.prove.failures import UnsupportedError, failure, name_and_text, own_copy
from bench.worker.read.device_memory import device_bytes, largest_program
from bench.worker.read.programs import (
    FirstCall,
    communication,
    flops_if_traceable,
    flops_of,
    product_flops,
)

RUN_DEVICES = 8
RUN_FLOPS = 1e11
"""Limits on the mesh and on the model FLOPs of a step that has to be run to be compiled: about as
many FLOPs as a core computes in seconds, with a model whose replicas fit in memory."""


class CompiledStep(NamedTuple):
    """A step's compiled programs, and figures that cannot be read from them."""

    programs: list[Any]
    traced_flops: float
    """FLOPs over all devices; 0 if the step cannot be traced as a whole."""
    state_bytes: int
    share: float


def compile_only(request: CompileRequest) -> CompiledFigures:
    """Compile a cell's step and read it.

    A device's FLOPs are the larger of its share of the traced step's and those compiled for it: the
    compiler may duplicate work on several devices, and may turn small products into other
    operations (see `product_flops`).

    XLA:CPU communicates bfloat16 as float32, but float16 unchanged. The communication of a bfloat16
    step on other devices is therefore read from its float16 twin, and an all-reduce counts as a
    reduce-scatter if devices keep only slices of it. Any error is a reason why there is no row.
    """
    cell = load_cell(request)
    if reason := cell.why_unsupported():
        raise UnsupportedError(reason)
    reading = sending = read_programs(cell)
    elsewhere, options = request["elsewhere"], cell.block.options
    widened = elsewhere and options.precision == "bf16"
    if widened and cell.mesh.size > 1:
        half: CompileRequest = {**request, "options": str(replace(options, precision="fp16"))}
        twin = load_cell(half)
        if reason := twin.why_unsupported():
            raise NotAbstractError(
                "its bfloat16 communication can only be read from the same step in float16, which "
                f"it does not support: {reason}"
            )
        sending = read_programs(twin)
    rows = communication(sending.programs, cell.mesh, scatter=elsewhere, share=sending.share)
    if elsewhere and cell.mesh.size > 1 and not rows:
        raise NotAbstractError("none of its programs shows what its devices communicate")
    if widened:
        for row in rows:
            row["dtypes"] = ["bf16" if dtype == "f16" else dtype for dtype in row["dtypes"]]
    memory = largest_program(reading.programs)
    if memory is None:
        raise RuntimeError("the compiler gives no figures for the step's memory")
    flops = max(reading.traced_flops, product_flops(reading.programs, reading.share))
    return CompiledFigures(
        flops=flops / cell.mesh.size,
        memory_bytes=memory["total_bytes"],
        state_bytes=reading.state_bytes,
        communication=rows,
        model_flops=cell.problem.model_flops,
        units=cell.problem.units_per_step,
        unit=cell.problem.unit,
    )


def read_programs(cell: RequestedCell) -> CompiledStep:
    """Compile a step; if that requires running it, run it if it is small."""
    block, problem, mesh = cell.block, cell.problem, cell.mesh
    # A batch's shapes come from a few rows, because all rows may be gigabytes on many devices.
    few = make_problem(cell.workload, replace(block, batch=1), block.options.precision)
    try:
        return compile_step(cell.implementation, problem, mesh, stand_in(few.batch(0), block.batch))
    except Exception as error:
        if mesh.size > RUN_DEVICES or problem.model_flops > RUN_FLOPS:
            raise
        print(f"the step is run: {name_and_text(error)}", file=sys.stderr)  # noqa: T201
        return run_step(cell.implementation, problem, mesh)


def compile_step(
    implementation: Implementation, problem: Problem, mesh: Mesh, batch: Any
) -> CompiledStep:
    """Compile a step without running it; for errors see `abstract_step`."""
    traced, state_bytes, share = abstract_step(implementation, problem, mesh, batch)
    program = traced.lower().compile().runtime_executable()
    return CompiledStep([program], flops_of(traced.jaxpr, share), state_bytes, share)


def run_step(implementation: Implementation, problem: Problem, mesh: Mesh) -> CompiledStep:
    """Run a step once."""
    step = implementation.build(own_copy(problem), mesh)
    batch = step.place(problem.batch(0))
    own = max(device_bytes(step.state).values())
    traced = flops_if_traceable(step.step, step.state, batch, share=step.branch_share) or 0.0
    first_call = FirstCall(step.step)
    jax.block_until_ready(first_call(step.state, batch)[1])
    return CompiledStep(first_call.programs, traced, own, step.branch_share)


def answer(request: CompileRequest) -> CompiledAnswer:
    """Answer a request with the row, or with the reason why there is none."""
    lack: Lack = "failed"
    try:
        return CompiledAnswer(row=asdict(compile_only(request)), reason="", lack="")
    except UnsupportedError as error:
        reason, lack = str(error), "unsupported"
    except NotAbstractError as error:
        reason, lack = str(error), "unreadable"
    except BaseException as error:  # noqa: BLE001 - a user's file may raise anything
        ended, text = failure(error)
        reason, lack = (text, "oom") if ended == "oom" else (readable(name_and_text(error)), lack)
    return CompiledAnswer(row=None, reason=reason, lack=lack)


if __name__ == "__main__":
    answer_requests(answer)
