"""One block from proof to samples: the order of its phases, and the meaning of each failure."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import jax
from jax.sharding import Mesh

from bench.contract import Implementation, Problem, Workload
from bench.records.cells import FULL, Block
from bench.records.messages import GATE, Event, Job, Phase, SamplesEvent
from bench.records.row_parts import AS_TIMED, Check, ProofCheck
from bench.records.rows import CellRow
from bench.records.step_programs import ProgramFigures, compressed
from bench.worker.block_rounds import BlockRounds, warm_arm
from bench.worker.block_session import BlockSession, Proved
from bench.worker.file_threads import FileThreads
from bench.worker.foreign.foreign_arm import ForeignArm
from bench.worker.foreign.foreign_module import ForeignStep
from bench.worker.phases.checkpoints import save_and_restore_cells
from bench.worker.phases.training import train_cells
from bench.worker.problems import drawn, load_workload, make_mesh, make_problem
from bench.worker.process_exchange import EndedError
from bench.worker.process_guard import HeldFunctions, ProcessSettings
from bench.worker.prove.arm_checks import ENDLESS
from bench.worker.prove.divided_gradients import float64_batch
from bench.worker.prove.failures import (
    UnsupportedError,
    approximation,
    failure,
    in_all_processes,
    why_unsupported,
)
from bench.worker.prove.gate import Gate
from bench.worker.prove.statistical_proof import statistical_proof
from bench.worker.prove.trajectory import build_step
from bench.worker.read.compilation import remembered_programs
from bench.worker.read.device_memory import device_memory, high_water, inspection
from bench.worker.read.programs import FirstCall, branch_share, flops_if_traceable, program_figures
from bench.worker.read.step_program import names_options, read_program
from bench.worker.time.ceilings import measure_ceilings
from bench.worker.time.clock import Arm
from bench.worker.trace.profiler import trace_cells

PHASES: dict[str, Callable[[BlockSession, Gate, Mapping[str, Any]], None]] = {
    "trace": trace_cells,
    "checkpoint": save_and_restore_cells,
    "train": train_cells,  # last: it frees the arms' memory
}
"""Phases after the rounds, by their names in the job; each runs on ok cells with its settings.

It may add to the rows of cells and send its own events. It must not cost a cell its time: a failure
is stored as the reason why a cell lacks the phase's figures.
"""


def run_job(
    job: Job, emit: Callable[[Event], None], more: Callable[[], list[str]], programs: Path
) -> None:
    """Prove, compile and measure a block's cells, then run the further phases of the job.

    `more` reads the answer to a LookEvent: the arms that need more rounds.
    """
    session = BlockSession(job, emit, programs)
    session.announce("start")
    session.mesh = make_mesh(session.block.mesh)
    precision = session.block.options.precision
    workload = load_workload(session.block, job["workload_paths"])
    problem = make_problem(workload, session.block, precision)
    # Drawn once for all implementations, because drawing takes longer than copying.
    devices = session.mesh.local_devices
    session.problem = drawn(problem, devices, device_memory(devices))
    moments = jax.tree.leaves(jax.eval_shape(problem.optimizer.init, session.problem.start))
    session.row["optimizer_bytes"] = sum(leaf.size * leaf.dtype.itemsize for leaf in moments)
    session.end_lap("start")
    if job["ceilings"]:
        # Measured first, while the devices are empty.
        session.announce("ceilings")
        session.row["ceilings"] = measure_ceilings(session.mesh, precision)
        session.end_lap("ceilings")

    session.start_children()
    gate = make_gate(session, workload)
    # Held from here on: what the workload's file has replaced affects all arms equally.
    session.settings = ProcessSettings()
    session.functions = HeldFunctions(session.problem)
    session.threads = FileThreads(os.getppid())
    samples = []
    if gate is not None:
        # Every launch has a different order: where an arm's memory lies depends on the arms built
        # before it, which must not favour the same arms each time.
        names = job["implementations"]
        for number, name in enumerate(session.chance.sample(names, len(names))):
            admit(session, gate, name, number)
        if session.arms:
            samples = BlockRounds(session, more).run(gate.first_loss, gate)
    emit(SamplesEvent(event="samples", rows=samples))
    # Measurements are sent first, so that a worker that dies in a later phase does not lose them.
    session.send_rows()
    if gate is not None:
        for phase, run in PHASES.items():
            if phase in job["phases"]:
                run(session, gate, job["phases"][phase])
                session.end_lap(phase)
                session.send_rows()


def make_gate(session: BlockSession, workload: Workload) -> Gate | None:
    """Compute the reference for the block's cells; if that fails, end them all and return None."""
    session.announce("truth")
    programs = session.programs / GATE

    def gate_of(block: Block, timed: Problem) -> Gate:
        # The reference has no loop over layers and, where memory allows, recomputes nothing.
        plain = replace(block, options=replace(block.options, remat="", scan_layers=False))
        proved = dict.fromkeys(proof_block(one, session.mesh) for one in (block, plain))
        with jax.enable_x64(True):
            exact, *reference = (make_problem(workload, one, "fp64") for one in proved)
        shards, precision = block.mesh.batch_shards, block.options.precision
        return Gate(timed, exact, session.mesh, shards, precision, programs, *reference)

    def make() -> Gate:
        block, problem = session.block, session.problem
        gate = gate_of(block, problem)
        gate.expected(AS_TIMED)  # which every proof needs: here, the workload is to blame
        batch = float64_batch(gate.division, problem, block.mesh.batch_shards)
        unproved = set(session.job["implementations"]) - set(session.job["proved"])
        if (less := replace(block, batch=batch)) != block and unproved:
            small = make_problem(workload, less, block.options.precision)
            small = replace(small, start=problem.start, start_state=problem.start_state)
            gate.float64_gate = gate_of(less, small)
        return gate

    try:
        return in_all_processes(make)
    except EndedError as error:
        for name in session.job["implementations"]:
            session.fail(name, error.status, f"there is no reference to compare it with: {error}")
        return None
    finally:
        session.end_lap("gate")


def proof_block(block: Block, mesh: Mesh) -> Block:
    """Return the block with the options of its proof in float64.

    On an accelerator, whose memory limits what can be measured, blocks of layers recompute their
    activations, because these take twice the memory in float64, and materialized attention scores
    many times the memory of a fused kernel. Recomputation does not change the values.
    """
    if mesh.devices.flat[0].platform == "cpu":
        return block
    return replace(block, options=replace(block.options, remat=FULL))


def admit(session: BlockSession, gate: Gate, name: str, number: int) -> None:
    """Prove an implementation and make it an arm, or end its cell with a reason."""
    try:
        action = partial(prove, session, gate, name, number)
        proved = in_all_processes(action, on_failure=partial(session.fail, name))
    except EndedError as error:
        if name not in session.cells:  # the failure was in another process
            session.fail(name, error.status, error.reason)
        if (module := session.foreign.get(name)) and module.spare:
            module.spare.close()  # its processes must not run beside other arms
        if error.reason.endswith(ENDLESS):
            raise  # its work would disturb all other arms, which a fresh worker measures
        return
    session.admit(*proved)


def prove(session: BlockSession, gate: Gate, name: str, number: int) -> tuple[CellRow, Arm, Proved]:
    """Prove an implementation; return the arguments of `session.admit`, or raise why it fails."""
    job, problem, mesh = session.job, session.problem, session.mesh
    phase: Phase = "gate"
    announce = partial(session.announce, arm=name, done=number, of=len(job["implementations"]))
    announce(phase)
    try:
        with session.modules_of(name):
            implementation = session.implementation(name)
            session.check_process(name)
            session.approximate[name] = approximation(implementation)
            if reason := why_unsupported(implementation, problem, mesh):
                raise UnsupportedError(reason)
            build, known = partial(build_step, implementation, mesh=mesh), name in job["proved"]
            statistical = statistical_proof(gate) if session.approximate[name] else None
            checks: list[Check] = []
            if statistical and not known:
                checks = [statistical.prove(build, partial(announce, phase))]
            elif not known:
                checks = [*prove_exact(gate, implementation), gate.prove_rounding(implementation)]
            session.end_lap(phase)

            phase = "compile"
            announce(phase)
            train_step = build(problem)
            session.check_process(name)
            first_call = FirstCall(train_step.step)
            timed = replace(train_step, step=first_call)
            with remembered_programs(session.programs / name):
                timed_check, state = (
                    statistical.prove_timed(timed)
                    if statistical
                    else gate.prove_timed(timed, partial(build, problem), repeated=not known)
                )
            session.check_process(name)
            arm = warm_arm(name, train_step, state, problem, proved=known)
            session.check_process(name)
        row = session.cell_row(name, "ok", "")
        row["proof"] = [*checks, timed_check]
        figures = job["proved"].get(name, {})
        if isinstance(train_step, ForeignStep):
            row["compile"] = train_step.compile_times()
            row["foreign"] = train_step.described(cast("ForeignArm", arm))
            row.update(train_step.figures or figures)
            return row, arm, Proved(implementation, [])
        row["compile"], programs = first_call.compile, first_call.programs
        row["high_water_bytes"] = high_water(arm, mesh.local_devices)
        if not figures:
            figures = program_figures(programs, mesh, branch_share(train_step))
            if not job["launch"]:
                figures |= first_launch_figures(session, implementation, programs, arm)
        row.update(figures)
        row["bubble"] = float(train_step.bubble)
        return row, arm, Proved(implementation, programs)
    finally:
        session.end_lap(phase)
        session.check_process(name)


def prove_exact(gate: Gate, implementation: Implementation) -> list[ProofCheck]:
    """Prove a step in float64 at a batch that should fit; [] if it does not, or has no float64."""
    if not getattr(implementation, "FOREIGN", {}).get("float64", True):
        return []
    try:
        checks = gate.float64_gate.prove_exact(implementation)
    except Exception as error:
        # Other processes would wait for one that goes on alone.
        if failure(error)[0] != "oom" or jax.process_count() > 1:
            if isinstance(error, TypeError):  # a file that names a dtype may raise only here
                error.args = (f"in the proof in float64, {error}",)
            raise
        return []
    if gate.float64_gate is not gate:
        for check in checks:
            check["batch"] = gate.float64_gate.timed.batch_size
    return checks


def first_launch_figures(
    session: BlockSession, implementation: Implementation, programs: Sequence[Any], arm: Arm
) -> ProgramFigures:
    """Read the figures that only a block's first launch stores, running two steps of the arm."""
    # A separate step, because tracing may leak tracers into data beside a step's state.
    untimed = build_step(implementation, session.problem, session.mesh)
    traced = flops_if_traceable(untimed.step, arm.state, arm.batch, share=branch_share(untimed))
    layout = compressed(inspection(session.mesh, untimed, arm.batch))
    figures = ProgramFigures(layout=layout, traced_flops=traced)
    own_options = traced is None and names_options(implementation)
    if programs and (program := read_program(programs, arm, own_options=own_options)):
        figures["program"] = program
    return figures
