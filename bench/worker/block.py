"""One block from proof to samples: the order of things, and what each failure means."""

from __future__ import annotations

import datetime as dt
import random
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax
from jax.sharding import Mesh

from bench.contract import Implementation, Problem, TrainStep, Workload
from bench.records.arms import TWIN, implementation_of
from bench.records.cells import Block, Cell, StepOptions
from bench.records.current_arm import TurnWriter
from bench.records.host import host_id
from bench.records.mesh import MeshShape
from bench.records.messages import (
    BlockEvent,
    CellEvent,
    Event,
    Job,
    LookEvent,
    LossEvent,
    Phase,
    PhaseEvent,
    SamplesEvent,
    TraceEvent,
)
from bench.records.rows import (
    BlockRow,
    Ceilings,
    CellRow,
    Communication,
    LossRow,
    SampleRow,
    Turn,
    block_fields,
)
from bench.records.statuses import Status
from bench.worker import process_exchange
from bench.worker.base_modules import BaseModules
from bench.worker.file_loader import implementation_files, load
from bench.worker.meshes import make_mesh
from bench.worker.phases.checkpoints import measure_checkpoints, no_checkpoint
from bench.worker.phases.input_feed import FedArm, fed_arm, longest
from bench.worker.phases.training import Curve, references, trained
from bench.worker.problems import load_workload, make_problem
from bench.worker.prove.completion import check_completion
from bench.worker.prove.divergence import diverged
from bench.worker.prove.failures import Ended, UnsupportedError, failure
from bench.worker.prove.gate import OWN, Gate, build_step
from bench.worker.read.compilation import CompilationLog, remembered_programs
from bench.worker.read.first_call import FirstCall
from bench.worker.read.program_memory import high_water, largest_program
from bench.worker.read.programs import communication, compilers_cost, live_programs, product_flops
from bench.worker.read.traced_flops import traced_flops
from bench.worker.time.ceilings import measure_ceilings
from bench.worker.time.clock import WARM_UP_STEPS, Arm, measure, steps_per_span
from bench.worker.time.energy_counters import Meter
from bench.worker.time.energy_counters import merged as merged_energy
from bench.worker.time.host_slots import merged
from bench.worker.trace.operations import Operations, modules_of
from bench.worker.trace.profiler import Subject, trace_by_turns, trace_row

Emit = Callable[[Event], None]

PROGRESS_S = 1.0
"""Seconds between two reports of how measuring goes on."""


def agreed(ended: Ended | None) -> Ended | None:
    """How something ended for all processes: None only if it went well in each of them."""
    for found in process_exchange.gather(ended):
        if found is not None:
            status, reason = found
            return status, reason
    return None


@dataclass
class Stopwatch:
    """Wall seconds by phase."""

    seconds: dict[str, float] = field(default_factory=dict)
    last: float = field(default_factory=time.monotonic)

    def lap(self, phase: str) -> None:
        """Add the time since the last lap to the phase."""
        now = time.monotonic()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self.last
        self.last = now


class Admitted(NamedTuple):
    """An implementation that was proved."""

    arm: Arm
    implementation: Implementation
    programs: list[Any]
    """What its step compiled."""
    row: CellRow


class BlockRun:
    """Everything one worker process does for its job.

    Args:
      job: what to do.
      emit: sends an event.
      more: asked after a LookEvent, whether to go on.
      programs: folder of compiled programs that launches share.
    """

    def __init__(self, job: Job, emit: Emit, more: Callable[[], bool], programs: Path) -> None:
        self.job = job
        self.emit = emit
        self.more = more
        self.programs = programs
        self.stopwatch = Stopwatch()
        self.started_at = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        shape = MeshShape.parse(job["mesh"])
        options = StepOptions(**job["options"])
        self.block = Block(job["workload"], job["size"], shape, job["batch"], options)
        self.fields = block_fields(self.block, job["attempt"], job["launch"])
        self.rows: dict[str, CellRow] = {}
        self.arms: list[Arm] = []
        self.fed: list[FedArm] = []
        """Those of them that take their input."""
        self.inputs: dict[str, dict[str, str]] = {}
        """Why an implementation has no such arm, by its name and the way; empty where it has."""
        self.implementations: dict[str, Implementation] = {}
        self.step_programs: dict[str, list[Any]] = {}
        """What each arm's step compiled."""
        self.checkouts: dict[str, BaseModules] = {}
        """Other revisions that arms come from, by their folder."""
        self.ceilings: Ceilings | None = None
        self.meter: Meter | None = None
        """What counts energy, once anything is timed."""
        self.baseline = ""
        self.chance = random.Random(job["seed"])
        self.steps = 0
        self.rounds = 0
        self.reported = 0.0
        """When progress was, on the monotonic clock."""
        self.turn = ""
        """Implementation whose arm, or twin, is being timed."""
        self.turns = TurnWriter()

    def run(self) -> None:
        """Prove, compile, measure, trace and checkpoint, emitting events as it goes."""
        self.phase("start")
        mesh = make_mesh(self.block.mesh)
        workload = load_workload(self.block, self.job["workload_paths"])
        problem = make_problem(workload, self.block, self.block.options.precision)
        # Drawn once, and handed to every implementation: drawing takes longer than copying.
        problem = replace(problem, start=jax.device_get(problem.draw()))
        self.stopwatch.lap("start")
        if self.job["ceilings"]:
            # Before anything else lies on the devices.
            self.phase("ceilings")
            self.ceilings = measure_ceilings(mesh, self.block.options.precision)
            self.stopwatch.lap("ceilings")

        gate = self.make_gate(workload, problem, mesh)
        if gate is not None:
            # Another order in every launch: where an arm's memory lies depends on what was there
            # before it, and must not be the same arms' luck each time.
            names = self.job["implementations"]
            for number, name in enumerate(self.chance.sample(names, len(names))):
                self.admit(name, number, problem, mesh, gate)
        samples = []
        if gate is not None and self.arms:
            samples = self.measure(problem, mesh, gate.first_loss)
        self.emit(SamplesEvent(event="samples", rows=samples))
        self.tell()
        if "profile_dir" in self.job:
            # What was measured is told by now: a profiler that kills the process must not cost it.
            self.trace(Path(self.job["profile_dir"]), mesh)
            self.tell()
        if "checkpoints" in self.job:
            self.checkpoint(mesh, Path(self.job["checkpoint_dir"]))
            self.tell()
        if "train_steps" in self.job and gate is not None:
            self.train(self.job["train_steps"], problem, mesh, gate)
            self.emit(BlockEvent(event="block", row=self.block_row()))

    def tell(self) -> None:
        """Say how the measured cells and the block ended, so far."""
        for row in self.rows.values():
            if row["status"] == "ok":
                self.emit(CellEvent(event="cell", row=row))
        self.emit(BlockEvent(event="block", row=self.block_row()))

    def phase(self, phase: Phase, arm: str = "", done: int = 0, of: int = 0) -> None:
        """Say what begins now."""
        self.emit(PhaseEvent(event="phase", phase=phase, arm=arm, done=done, of=of))

    def make_gate(self, workload: Workload, problem: Problem, mesh: Mesh) -> Gate | None:
        """The truth for the block's cells; if it cannot be had, none of them has a proof."""
        self.phase("truth")
        gate, ended = None, None
        try:
            with jax.enable_x64(True):
                exact = make_problem(workload, self.block, "fp64")
            shards = self.block.mesh.batch_shards
            programs = self.programs / "proof"
            gate = Gate(problem, exact, mesh, shards, self.block.options.precision, programs)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is the cells' reason
            ended = failure(error)
        self.stopwatch.lap("gate")
        ended = agreed(ended)
        if ended is None:
            return gate
        status, reason = ended
        for name in self.job["implementations"]:
            self.fail(name, problem, status, f"nothing to prove it against: {reason}")
        return None

    def admit(self, name: str, number: int, problem: Problem, mesh: Mesh, gate: Gate) -> None:
        """Prove an implementation and make it an arm, or end its cell with a reason."""
        admitted, ended = None, None
        try:
            admitted = self.prove(name, number, problem, mesh, gate)
        except BaseException as error:  # noqa: BLE001 - a user's file may raise anything
            ended = failure(error)
            # At once: other processes may be waiting for this one, and never come to ask.
            self.fail(name, problem, *ended)
        everywhere = agreed(ended)
        if everywhere is not None and ended is None:
            self.fail(name, problem, *everywhere)
        elif admitted is not None:
            self.arms.append(admitted.arm)
            self.implementations[name] = admitted.implementation
            self.step_programs[name] = admitted.programs
            self.rows[name] = admitted.row

    def prove(self, name: str, number: int, problem: Problem, mesh: Mesh, gate: Gate) -> Admitted:
        """Prove an implementation, in float64 and as it will be timed.

        Raises:
          UnsupportedError: it says that it cannot run this.
          WrongStepError: it is wrong.
          Exception: whatever else its file raises.
        """
        phase: Phase = "gate"
        self.phase(phase, name, number, len(self.job["implementations"]))
        try:
            with self.modules_of(name):
                implementation = cast("Implementation", load(self.file(name)))
                reason = implementation.why_unsupported(problem, mesh)
                if reason is not None:
                    raise UnsupportedError(reason)
                checks = [] if name in self.job["proved"] else gate.prove_exact(implementation)
                self.stopwatch.lap(phase)

                phase = "compile"
                self.phase(phase, name, number, len(self.job["implementations"]))
                train_step = build_step(implementation, problem, mesh)
                first_call = FirstCall(train_step.step)
                with remembered_programs(self.programs / name):
                    timed_check, state = gate.prove_timed(replace(train_step, step=first_call))
                arm = warm_arm(name, train_step, state, problem)
            row = self.row(name, problem, "ok", "")
            row["proof"] = [*checks, timed_check]
            row["compile"] = first_call.compile
            row["memory"] = largest_program(first_call.programs)
            row["high_water_bytes"] = high_water(arm, mesh.local_devices)
            row["communication"] = read_communication(first_call.programs, mesh)
            row["cost"] = compilers_cost(first_call.programs)
            row["product_flops"] = product_flops(first_call.programs)
            if name not in self.job["proved"]:
                row["traced_flops"] = read_traced_flops(arm)
            row["bubble"] = float(train_step.bubble)
            return Admitted(arm, implementation, first_call.programs, row)
        finally:
            self.stopwatch.lap(phase)

    def file(self, name: str) -> Path:
        """Where an implementation is written."""
        base_files = self.job.get("base_files", {})
        if name in base_files:
            return Path(base_files[name]["path"])
        return implementation_files(self.job["implementation_paths"])[name]

    def modules_of(self, name: str) -> AbstractContextManager[object]:
        """Around what an implementation imports: another revision's modules, if it is of one."""
        base_files = self.job.get("base_files", {})
        if name not in base_files:
            return nullcontext()
        worktree, repository = base_files[name]["worktree"], base_files[name]["repository"]
        modules = BaseModules(Path(worktree), Path(repository))
        return self.checkouts.setdefault(worktree, modules)

    def measure(self, problem: Problem, mesh: Mesh, first_loss: float) -> list[SampleRow]:
        """Time all arms and the baseline's twin; withdraw those that compiled or diverged."""
        arms = {arm.name for arm in self.arms}
        names = [name for name in self.job["implementations"] if name in arms]
        self.baseline = self.job["baseline"] if self.job["baseline"] in names else names[0]
        if not self.job["alone"]:
            self.phase("compile", self.baseline, len(names), len(names))
            self.add_twin(problem, mesh)
            self.add_fed(names, problem, mesh)
            self.stopwatch.lap("compile")

        rounds = self.job["rounds"]
        self.phase("measure", "", 0, rounds)
        self.meter = Meter(mesh.local_devices)
        try:
            self.steps = steps_per_span(self.arms, rounds, self.job["seconds"], self.turn_of)
            with CompilationLog() as log:
                turns, compiled = measure(
                    self.arms, rounds, self.steps, self.job["seed"], log, self.after_round,
                    self.turn_of, self.meter.slot,
                )  # fmt: skip
        except BaseException as error:
            # The rounds of the others lack a turn: they are taken again, by a fresh worker.
            if self.turn:
                self.fail(self.turn, problem, *failure(error))
            raise
        self.stopwatch.lap("measure")
        gone = self.withdraw(compiled, first_loss, names, problem)
        return self.samples(
            turn for turn in turns if not {turn["arm"], implementation_of(turn["arm"])} & gone
        )

    def withdraw(
        self, compiled: dict[str, int], first_loss: float, names: Sequence[str], problem: Problem
    ) -> set[str]:
        """End the cells whose times are worthless; names of the arms whose samples do not count."""
        withdrawn = diverged(self.arms, first_loss)
        if TWIN in withdrawn:
            withdrawn.setdefault(self.baseline, withdrawn[TWIN])
        for name, programs in compiled.items():
            withdrawn[name] = f"compiled {programs} programs while it was timed"
        withdrawn = dict(
            item for found in process_exchange.gather(withdrawn) for item in found.items()
        )
        for name, reason in withdrawn.items():
            if name in names:
                self.fail(name, problem, "wrong", reason)
        for arm in self.fed:
            arm.feed.close()
            self.inputs[implementation_of(arm.name)][arm.way] = withdrawn.get(arm.name, "")
        for name, inputs in self.inputs.items():
            self.rows[name]["inputs"] = inputs
        if self.baseline in withdrawn:
            # Its twin is nobody's noise floor any more, and the ratios need another baseline.
            withdrawn[TWIN] = ""
            self.baseline = next((name for name in names if name not in withdrawn), "")
        return set(withdrawn)

    def turn_of(self, arm: str) -> None:
        """Note whose turn begins, for whoever asks why the worker has ended."""
        self.turn = self.baseline if arm == TWIN else implementation_of(arm)
        self.turns.write(self.turn)

    def after_round(self, turns: list[Turn]) -> bool:
        """Report progress, and where a look is due, ask whether to go on.

        Progress is not reported so often that whoever listens takes time from the next turn.
        """
        self.rounds = turns[-1]["round"] + 1
        if time.monotonic() > self.reported + PROGRESS_S:
            self.phase("measure", "", self.rounds, self.job["rounds"])
            self.reported = time.monotonic()
        if self.rounds not in self.job["looks"]:
            return True
        self.emit(LookEvent(event="look", rows=self.samples(turns)))
        return process_exchange.from_main(self.more() if process_exchange.is_main() else False)

    def samples(self, turns: Iterable[Turn]) -> list[SampleRow]:
        """The turns as they are stored: each as long as it took the slowest process."""
        job, block = self.job, self.block.name
        rows = [
            SampleRow(block=block, attempt=job["attempt"], launch=job["launch"], **turn)
            for turn in turns
        ]
        if jax.process_count() > 1:
            own = [
                [own_times(row), row["host"], row.get("energy"), row.get("input")] for row in rows
            ]
            seen = process_exchange.gather(own)
            hosts = process_exchange.gather(host_id())
            for row, *each in zip(rows, *seen, strict=True):
                spans, slots, energies, waits = zip(*each, strict=True)
                throughput, latency, wash_out = map(list, zip(*spans, strict=True))
                row["throughput_ns"], row["process_throughput_ns"] = max(throughput), throughput
                row["latency_ns"], row["process_latency_ns"] = max(latency), latency
                row["wash_out_ns"] = max(wash_out)
                row["host"] = merged(slots, hosts)
                energy = merged_energy(energies)
                row.pop("energy", None)
                if energy is not None:
                    row["energy"] = energy
                if "input" in row:
                    row["input"] = longest(waits)
        return rows

    def add_twin(self, problem: Problem, mesh: Mesh) -> None:
        """A second copy of the baseline. Without room for it, or refused, the floor is unknown."""
        arm, ended = None, None
        try:
            with self.modules_of(self.baseline):
                twin = self.implementations[self.baseline].build(problem, mesh)
                with remembered_programs(self.programs / self.baseline):
                    arm = warm_arm(TWIN, twin, twin.state, problem)
        except Exception as error:
            ended = failure(error)
            if ended[0] not in {"oom", "wrong"}:
                raise
        ended = agreed(ended)
        if ended is not None or arm is None:
            print(f"no twin of {self.baseline}: {ended}", file=sys.stderr)  # noqa: T201
            return
        self.arms.append(arm)
        if self.chance.random() < 0.5:  # noqa: PLR2004 - which copy is the older one is chance
            original = next(arm for arm in self.arms if arm.name == self.baseline)
            original.name, self.arms[-1].name = TWIN, self.baseline

    def add_fed(self, names: Sequence[str], problem: Problem, mesh: Mesh) -> None:
        """Arms of these implementations that take their input in every step, where they can."""
        for name, way in product(names, self.job.get("inputs", [])):
            self.phase("compile", name, names.index(name), len(names))
            arm, ended = None, None
            try:
                with remembered_programs(self.programs / name):
                    train_step = self.implementations[name].build(problem, mesh)
                    arm = fed_arm(name, way, train_step, problem)
                    for _ in range(WARM_UP_STEPS):
                        arm.run(1)
            except Exception as error:  # noqa: BLE001 - whatever it is, the cell itself is right
                ended = failure(error)
            ended = agreed(ended)
            self.inputs.setdefault(name, {})[way] = ended[1] if ended is not None else ""
            if ended is None and arm is not None:
                self.arms.append(arm)
                self.fed.append(arm)

    def timed(self) -> list[Arm]:
        """Arms of the cells that are ok."""
        return [
            arm
            for arm in self.arms
            if arm.name in self.rows and self.rows[arm.name]["status"] == "ok"
        ]

    def trace(self, logdir: Path, mesh: Mesh) -> None:
        """One TensorBoard run for each cell that is ok, and what it shows."""
        timed = self.timed()
        others = modules_of(live_programs())
        subjects = [
            Subject(
                arm,
                f"{self.job['profile_run']}/{self.rows[arm.name]['cell']}",
                Operations(modules_of(self.step_programs[arm.name]), mesh.size, others),
            )
            for arm in timed
        ]
        found = trace_by_turns(subjects, mesh, logdir, self.job["profile_steps"], self.phase)
        for subject, traced in zip(subjects, found, strict=True):
            if traced.steps:
                row = self.rows[subject.arm.name]
                row["profile"] = subject.run
                self.emit(TraceEvent(event="trace", row=trace_row(self.fields, row, traced, mesh)))
        self.stopwatch.lap("trace")

    def checkpoint(self, mesh: Mesh, folder: Path) -> None:
        """Save and restore the state of each cell that is ok."""
        timed = self.timed()
        for number, arm in enumerate(timed):
            self.phase("checkpoint", arm.name, number, len(timed))
            found, ended = None, None
            try:
                found = measure_checkpoints(
                    arm, mesh, self.job["checkpoints"], folder / str(number)
                )
            except Exception as error:  # noqa: BLE001 - whatever it is, the times are right
                ended = failure(error)
            ended = agreed(ended)
            if ended is not None or found is None:
                found = no_checkpoint(ended[1] if ended else "")
            self.rows[arm.name]["checkpoint"] = found
        self.stopwatch.lap("checkpoint")

    def train(self, steps: int, problem: Problem, mesh: Mesh, gate: Gate) -> None:
        """The loss curve of the reference, and of each cell that is ok."""
        names = [name for name, row in self.rows.items() if row["status"] == "ok"]
        if not names:
            return
        # Arms have done their work: whatever trains may have their memory.
        self.arms.clear()
        for name, curve in references(problem, gate.problems[OWN], steps, self.step_of).items():
            self.tell_curve(name, curve, gate)
        for name in names:
            build = partial(build_step, self.implementations[name], problem, mesh)
            with self.modules_of(name), remembered_programs(self.programs / name):
                curve = trained(build, problem.batch, steps, partial(self.step_of, name))
            self.tell_curve(name, curve, gate)
        self.stopwatch.lap("train")

    def tell_curve(self, name: str, curve: Curve, gate: Gate) -> None:
        """Say what training came to."""
        row = LossRow(
            **self.fields,
            arm=name,
            losses=curve.losses,
            reason=curve.reason,
            tolerance=gate.loss_tolerance,
        )
        self.emit(LossEvent(event="losses", row=row))

    def step_of(self, name: str, number: int) -> None:
        """Report which step of a curve begins: each first one, and then now and again."""
        if not number or time.monotonic() > self.reported + PROGRESS_S:
            self.phase("train", name, number, self.job["train_steps"])
            self.reported = time.monotonic()

    def fail(self, name: str, problem: Problem, status: Status, reason: str) -> None:
        """End a cell without a time, and say so at once: a later crash must not hide it."""
        self.rows[name] = self.row(name, problem, status, reason)
        self.emit(CellEvent(event="cell", row=self.rows[name]))

    def row(self, name: str, problem: Problem, status: Status, reason: str) -> CellRow:
        """A cell's row, without what only a measured cell has."""
        return CellRow(
            cell=Cell(self.block, name).name,
            **self.fields,
            implementation=name,
            status=status,
            reason=reason,
            model_flops=problem.model_flops,
            unit=problem.unit,
            units_per_step=problem.units_per_step,
            interleaved=not self.job["alone"],
        )

    def block_row(self) -> BlockRow:
        """The block's row. The supervisor, who sees the host, fills in its load."""
        row = BlockRow(
            **self.fields,
            baseline=self.baseline,
            rounds=self.rounds,
            looks=[],
            steps=self.steps,
            started_at=self.started_at,
            seconds=self.stopwatch.seconds,
            ceilings=self.ceilings,
            load_before=0.0,
            load_after=0.0,
        )
        if self.meter is not None:
            row["energy"] = self.meter.told
        return row


def own_times(row: SampleRow) -> tuple[int, int, int]:
    """Nanoseconds of a turn's spans, as this process measured them."""
    return row["throughput_ns"], row["latency_ns"], row["wash_out_ns"]


def read_communication(programs: Sequence[Any], mesh: Mesh) -> list[Communication] | None:
    """What a step communicates; None where that cannot be read, which must not cost its time."""
    try:
        return communication(programs, mesh)
    except ValueError:
        traceback.print_exc()
        return None


def read_traced_flops(arm: Arm) -> float | None:
    """FLOPs of the step's jaxpr; None if it has none as a whole, whatever the reason."""
    try:
        return traced_flops(arm.step, arm.state, arm.batch)
    except Exception as error:  # noqa: BLE001 - a figure beside the time, which must not cost it
        print(f"the step's FLOPs are not known: {error}", file=sys.stderr)  # noqa: T201
        return None


def warm_arm(name: str, train_step: TrainStep, state: Any, problem: Problem) -> Arm:
    """An arm that has run often enough for nothing to compile any more.

    Raises:
      WrongStepError: its work goes on after its outputs are ready.
    """
    arm = Arm(name, train_step.step, state, train_step.place(problem.batch(0)))
    for _ in range(WARM_UP_STEPS):
        arm.run(1)
    check_completion(arm)
    return arm
