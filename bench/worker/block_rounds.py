"""The rounds of a block: its arms, the withdrawal of useless times, and the samples."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from itertools import product
from typing import Any

import jax

from bench.contract import Problem, TrainStep
from bench.records.arms import TWIN, implementation_of
from bench.records.current_arm import TurnWriter
from bench.records.host import host_id
from bench.records.messages import Job, LookEvent
from bench.records.rows import SampleRow, Turn
from bench.worker import process_exchange
from bench.worker.block_session import BlockSession
from bench.worker.phases.input_feed import FedArm, fed_arm, longest
from bench.worker.prove.completion import check_completion
from bench.worker.prove.divergence import diverged
from bench.worker.prove.failures import EndedError, failure, in_all_processes
from bench.worker.read.compilation import CompilationLog, remembered_programs
from bench.worker.time.clock import WARM_UP_STEPS, Arm, measure, steps_per_span
from bench.worker.time.energy_counters import Meter
from bench.worker.time.energy_counters import merged as merged_energy
from bench.worker.time.host_slots import merged as merged_slots


def warm_arm(name: str, train_step: TrainStep, state: Any, problem: Problem) -> Arm:
    """Make an arm, and run it often enough for nothing to compile any more.

    Raises:
      WrongStepError: its work goes on after its outputs are ready.
    """
    arm = Arm(name, train_step.step, state, train_step.place(problem.batch(0)))
    for _ in range(WARM_UP_STEPS):
        arm.run(1)
    check_completion(arm)
    return arm


class BlockRounds:
    """Times the proved arms of a session, the baseline's twin and the input arms.

    Args:
      session: has the proved arms.
      more: reads the answer to a LookEvent: whether to take further rounds.
    """

    def __init__(self, session: BlockSession, more: Callable[[], bool]) -> None:
        self.session = session
        self.more = more
        job = session.job
        proved = {arm.name for arm in session.arms}
        self.names = [name for name in job["implementations"] if name in proved]
        baseline = job["baseline"]
        session.row["baseline"] = baseline if baseline in self.names else self.names[0]
        self.input_arms: list[FedArm] = []
        self.inputs: dict[str, dict[str, str]] = {}
        """Why an implementation has no input arm, by its name and the way; empty where it has."""
        self.turn = ""
        """The implementation whose arm, or twin, is being timed."""
        self.turns = TurnWriter()

    def run(self, first_loss: float) -> list[SampleRow]:
        """Time all arms; withdraw those that compiled or diverged meanwhile.

        Args:
          first_loss: the right loss before the first update.

        Returns:
          The samples of the other arms.
        """
        session, job = self.session, self.session.job
        if not job["alone"]:
            session.announce("compile", session.row["baseline"], len(self.names), len(self.names))
            self.add_twin()
            self.add_input_arms()
            session.end_lap("compile")
        session.announce("measure", "", 0, job["rounds"])
        meter = Meter(session.mesh.local_devices)
        session.row["energy"] = meter.description
        try:
            steps = steps_per_span(session.arms, job["rounds"], job["seconds"], self.begin_turn)
            session.row["steps"] = steps
            with CompilationLog() as log:
                turns, compiled = measure(
                    session.arms, job["rounds"], steps, job["seed"], log, self.after_round,
                    self.begin_turn, meter.slot,
                )  # fmt: skip
        except BaseException as error:
            # The rounds of the other arms lack a turn: a fresh worker takes them again.
            if self.turn:
                session.fail(self.turn, *failure(error))
            raise
        session.end_lap("measure")
        withdrawn = self.withdraw(compiled, first_loss)
        return sample_rows(
            job,
            session.block.name,
            (t for t in turns if not {t["arm"], implementation_of(t["arm"])} & withdrawn),
        )

    def add_twin(self) -> None:
        """Add a second copy of the baseline; without room for one, the noise floor is unknown."""
        session, baseline = self.session, self.session.row["baseline"]

        def make() -> Arm:
            with session.modules_of(baseline):
                step = session.proved[baseline].implementation.build(session.problem, session.mesh)
                with remembered_programs(session.programs / baseline):
                    return warm_arm(TWIN, step, step.state, session.problem)

        try:
            twin = in_all_processes(make)
        except EndedError as error:
            if error.status not in {"oom", "wrong"}:
                raise
            print(f"{baseline} has no twin: {error}", file=sys.stderr)  # noqa: T201
            return
        session.arms.append(twin)
        if session.chance.random() < 0.5:  # noqa: PLR2004 - which copy is the older one is chance
            original = next(arm for arm in session.arms if arm.name == baseline)
            original.name, twin.name = TWIN, baseline

    def add_input_arms(self) -> None:
        """Add arms that take their input in every step, of the implementations that can."""
        session, names = self.session, self.names
        for name, way in product(names, session.job["inputs"]):
            session.announce("compile", name, names.index(name), len(names))

            def make(name: str = name, way: str = way) -> FedArm:
                problem, implementation = session.problem, session.proved[name].implementation
                with remembered_programs(session.programs / name):
                    arm = fed_arm(name, way, implementation.build(problem, session.mesh), problem)
                    for _ in range(WARM_UP_STEPS):
                        arm.run(1)
                    return arm

            reason = ""
            try:
                self.input_arms.append(in_all_processes(make))
            except EndedError as error:  # the cell itself is right
                reason = error.reason
            self.inputs.setdefault(name, {})[way] = reason
        session.arms += self.input_arms

    def begin_turn(self, arm: str) -> None:
        """Note whose turn begins, for the supervisor, which may ask why the worker has ended."""
        self.turn = self.session.row["baseline"] if arm == TWIN else implementation_of(arm)
        self.turns.write(self.turn)

    def after_round(self, turns: list[Turn]) -> bool:
        """Report progress, and where a look is due, ask whether to go on."""
        session, job = self.session, self.session.job
        session.row["rounds"] = rounds = turns[-1]["round"] + 1
        session.report_progress("measure", "", rounds, job["rounds"])
        if rounds not in job["looks"]:
            return True
        rows = sample_rows(job, session.block.name, turns)
        session.emit(LookEvent(event="look", rows=rows))
        return process_exchange.from_main(self.more() if process_exchange.is_main() else False)

    def withdraw(self, compiled: dict[str, int], first_loss: float) -> set[str]:
        """End the cells whose times are useless; the names of the arms whose samples do not count.

        Args:
          compiled: how many programs arms compiled while they were timed.
          first_loss: the right loss before the first update.
        """
        session, baseline = self.session, self.session.row["baseline"]
        reasons = diverged(session.arms, first_loss)
        if TWIN in reasons:
            reasons.setdefault(baseline, reasons[TWIN])
        for name, programs in compiled.items():
            reasons[name] = f"compiled {programs} programs while it was timed"
        reasons = {n: why for own in process_exchange.gather(reasons) for n, why in own.items()}
        for name, reason in reasons.items():
            if name in self.names:
                session.fail(name, "wrong", reason)
        for arm in self.input_arms:
            arm.feed.close()
            self.inputs[implementation_of(arm.name)][arm.way] = reasons.get(arm.name, "")
        for name, inputs in self.inputs.items():
            session.cells[name]["inputs"] = inputs
        if baseline in reasons:
            # Its twin is no noise floor any more, and the ratios need another baseline.
            reasons[TWIN] = ""
            right = (name for name in self.names if name not in reasons)
            session.row["baseline"] = next(right, "")
        return set(reasons)


def sample_rows(job: Job, block: str, turns: Iterable[Turn]) -> list[SampleRow]:
    """Turns as they are stored. A turn takes as long as it took the slowest process."""
    rows = [
        SampleRow(block=block, attempt=job["attempt"], launch=job["launch"], **turn)
        for turn in turns
    ]
    if jax.process_count() == 1:
        return rows
    figures = ("throughput_ns", "latency_ns", "wash_out_ns", "host", "energy", "input")
    everyones = process_exchange.gather([[row.get(name) for name in figures] for row in rows])
    hosts = process_exchange.gather(host_id())
    for row, *each in zip(rows, *everyones, strict=True):
        throughput, latency, wash_out, slots, energies, waits = map(list, zip(*each, strict=True))
        row["throughput_ns"], row["process_throughput_ns"] = max(throughput), throughput
        row["latency_ns"], row["process_latency_ns"] = max(latency), latency
        row["wash_out_ns"] = max(wash_out)
        row["host"] = merged_slots(slots, hosts)
        row.pop("energy", None)
        if (energy := merged_energy(energies)) is not None:
            row["energy"] = energy
        if "input" in row:
            row["input"] = longest(waits)
    return rows
