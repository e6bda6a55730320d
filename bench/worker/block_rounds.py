"""The rounds of a block: its arms, the withdrawal of invalid times, and the samples."""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from typing import Any

import jax

from bench.contract import Problem, TrainStep
from bench.records.arms import TWIN, implementation_of, is_ablated
from bench.records.current_arm import TurnWriter
from bench.records.host import host_id
from bench.records.messages import Job, LookEvent, is_look
from bench.records.numbers import count
from bench.records.rows import InputWait, SampleRow, Turn
from bench.records.statuses import Status
from bench.records.step_programs import identity
from bench.worker import process_exchange
from bench.worker.ablated_arms import ablated_arm
from bench.worker.block_session import BlockSession
from bench.worker.foreign.foreign_module import ForeignStep
from bench.worker.phases.input_feed import FedArm, fed_arm
from bench.worker.process_exchange import EndedError
from bench.worker.prove.arm_checks import check_completion, diverged, is_late, why_diverged
from bench.worker.prove.failures import UnsupportedError, failure, in_all_processes
from bench.worker.prove.gate import Gate
from bench.worker.prove.spot_checks import SpotChecks
from bench.worker.prove.trajectory import build_step
from bench.worker.read.compilation import CompilationLog, remembered_programs
from bench.worker.time.clock import Arm, measure, steps_per_span
from bench.worker.time.energy_counters import Meter
from bench.worker.time.turn_slots import BOARDS, BoardWatch, merged, merged_hosts


def warm_arm(
    name: str, train_step: TrainStep, state: Any, problem: Problem, *, proved: bool = False
) -> Arm:
    """Make an arm, run it until nothing compiles, and check that its work ends with its outputs.

    With `proved`, the same step has passed that check before, so a clean glance suffices.
    """
    batch = train_step.place(problem.batch(0))
    if isinstance(train_step, ForeignStep):
        arm: Arm = train_step.arm(name, state, batch)
    else:
        arm = Arm(name, train_step.step, state, batch, train_step=train_step)
    arm.warm_up()
    if not proved or is_late():
        check_completion(arm)
    return arm


class BlockRounds:
    """Times a session's proved, input and ablated arms, and the twin; for `more` see `run_job`."""

    def __init__(self, session: BlockSession, more: Callable[[], list[str]]) -> None:
        self.session, self.more, job = session, more, session.job
        proved = {arm.name for arm in session.arms}
        self.names = [name for name in job["implementations"] if name in proved]
        self.approximate = {name for name in self.names if session.approximate.get(name)}
        baseline = job["baseline"]
        session.row["baseline"] = baseline if baseline in self.names else self.first(self.names)
        self.arm = self.turn = ""
        """The arm that is being timed, and its implementation; for the twin, the baseline."""
        self.turns = TurnWriter()
        self.turns_until_asked = 0

    def first(self, names: Iterable[str]) -> str:
        """Return the first exact implementation, or else the first approximate one; "" if none."""
        return min(names, key=lambda name: name in self.approximate, default="")

    def run(self, first_loss: float, gate: Gate | None = None) -> list[SampleRow]:
        """Time all arms; return the samples of those that did not go wrong meanwhile.

        `first_loss` is the reference's before the first update. Without a gate, no arm is checked.
        """
        session, job = self.session, self.session.job
        if job["interleaved"]:
            session.announce("compile", session.row["baseline"], len(self.names), len(self.names))
            self.add_twin()
            self.add_arms_beside()
            session.end_lap("compile")
        session.announce("measure", "", 0, job["rounds"])
        meter = Meter(session.mesh.local_devices)
        boards = BoardWatch(session.mesh.local_devices)
        session.row["energy"] = meter.description
        twin = {TWIN} if session.row["baseline"] in self.approximate else set()
        self.checks = SpotChecks(gate, job["rounds"], job["seconds"], self.approximate | twin)
        session.threads.begin()
        for arm in session.arms:
            arm.begin_rounds()
        try:
            with CompilationLog() as self.log:
                self.checks.begin(session.arms, self.begin_turn)
                self.turns_until_asked = job["rounds"] * len(session.arms)
                steps = steps_per_span(session.arms, job["rounds"], job["seconds"], self.begin_turn)
                session.row["steps"] = steps
                turns, compiled = measure(
                    session.arms, steps, job["seed"], self.log, self.after_round,
                    self.begin_turn, meter.slot, self.checks.checked_span, boards.slot,
                )  # fmt: skip
                session.reasons |= session.found_after_rounds()
                # A file's running thread would look like late work of every arm.
                is_busy = any(process_exchange.gather(bool(session.threads.busy)))
                self.checks.finish([] if is_busy else session.arms, self.begin_turn)
        except BaseException as error:
            session.put_back(self.turn)
            # The other arms' rounds are incomplete: a fresh worker repeats them.
            if self.turn:
                session.fail(self.turn, *failure(error))
            raise
        session.end_lap("measure")
        session.row["seconds"]["spot checks"] = self.checks.spent_s
        session.row["seconds"]["measure"] -= self.checks.spent_s
        for name, cell in session.cells.items():
            if name in session.threads.busy:
                cell["threads_s"] = session.threads.busy[name]
            if changed := session.changed.get(name):
                cell["jax_config"] = sorted(changed)
        withdrawn = self.withdraw(compiled, first_loss)
        valid = [t for t in turns if not {t["arm"], implementation_of(t["arm"])} & withdrawn]
        return sample_rows(job, session.block.name, valid)

    def add_twin(self) -> None:
        """Add a second copy of the baseline; without memory for one, the noise floor is unknown."""
        session, baseline = self.session, self.session.row["baseline"]

        def make() -> Arm:
            with session.modules_of(baseline):
                implementation = session.proved[baseline].implementation
                step = build_step(implementation, session.problem, session.mesh)
                with remembered_programs(session.programs / baseline):
                    return warm_arm(TWIN, step, step.state, session.problem, proved=True)

        def report(status: Status, reason: str) -> None:
            # Processes in which it does not fail may wait for this one in a collective.
            if status not in {"oom", "wrong"}:
                session.fail(baseline, status, reason)

        try:
            twin = in_all_processes(make, report)
        except EndedError as error:
            if error.status not in {"oom", "wrong"}:
                raise
            print(f"{baseline} has no twin: {error}", file=sys.stderr)  # noqa: T201
            return
        session.arms.append(twin)
        if session.chance.random() < 0.5:  # noqa: PLR2004 - chance decides which copy is older
            original = next(arm for arm in session.arms if arm.name == baseline)
            original.name, twin.name = TWIN, baseline

    def add_arms_beside(self) -> None:
        """Add the arms that take input or lack a part, for the implementations that support it."""
        session, names, job = self.session, self.names, self.session.job
        for name, way in product(names, (*job["inputs"], *job["ablations"])):
            session.announce("compile", name, names.index(name), len(names))

            def make(name: str = name, way: str = way) -> Arm:
                problem, mesh, own = session.problem, session.mesh, session.proved[name]
                if "foreign" in (row := session.cells[name]):
                    raise UnsupportedError("its steps run in other processes")
                with session.modules_of(name), remembered_programs(session.programs / name):
                    if way in job["ablations"]:
                        arm = ablated_arm(name, way, own.implementation, row, problem, mesh)
                        return arm.warm_up()
                    built = build_step(own.implementation, problem, mesh)
                    return fed_arm(name, way, built, problem).warm_up()

            reason = ""
            try:
                session.arms.append(in_all_processes(make))
            except EndedError as error:  # the cell itself stays valid
                reason = error.reason
            session.put_back(name)  # before the next arm is traced
            cell: Any = session.cells[name]
            cell.setdefault("inputs" if way in job["inputs"] else "ablations", {})[way] = reason

    def begin_turn(self, arm: str) -> None:
        """Record whose turn begins, so that the supervisor can blame an arm if the worker dies."""
        if self.turn:
            self.log.check()
        self.session.put_back(self.turn, whole=not arm)
        # A loader's threads prefetch, in an input arm's own turns and between them.
        self.session.threads.look("" if "+" in self.arm else self.turn)
        self.arm = arm
        self.turn = self.session.row["baseline"] if arm == TWIN else implementation_of(arm)
        self.turns.write(self.turn)

    def after_round(self, turns: list[Turn]) -> list[str] | None:
        """Report progress; at looks and at the end, return the arms that need more rounds.

        The job's rounds are a budget of turns; turns of arms that leave go to the others. At the
        end of the budget, and after every further quarter of it, rounds continue only on request.
        Between looks, None is returned, which changes nothing.
        """
        self.checks.verify(self.begin_turn)
        session, job = self.session, self.session.job
        session.row["rounds"] = rounds = turns[-1]["round"] + 1
        arms = len(session.arms)
        session.report_progress("measure", "", len(turns) // arms, job["rounds"])
        spent = len(turns) >= self.turns_until_asked
        if not job["interleaved"]:
            return [] if spent else None
        if not spent and not is_look(rounds):
            return None
        if spent:
            self.turns_until_asked += -(-job["rounds"] // 4) * arms
        rows = sample_rows(job, session.block.name, turns)
        progress = len(turns) / (job["rounds"] * arms)
        found = {n: identity(r["program"]) for n, r in session.cells.items() if "program" in r}
        session.emit(LookEvent(event="look", rows=rows, progress=progress, programs=found))
        return process_exchange.from_main(self.more() if process_exchange.is_main() else [])

    def withdraw(self, compiled: dict[str, int], first_loss: float) -> set[str]:
        """End cells with invalid times, and return the arms whose samples do not count.

        `compiled` has the number of programs that each arm compiled while it was timed.
        """
        session, baseline = self.session, self.session.row["baseline"]
        whole = [arm for arm in session.arms if not is_ablated(arm.name)]
        reasons = self.checks.reasons | diverged(whole, first_loss, self.checks.reasons)
        # A step that lacks a part need not train, but its numbers have to be finite.
        ablated = (arm for arm in session.arms if is_ablated(arm.name))
        reasons |= {arm.name: why for arm in ablated if (why := why_diverged(arm, 0.0))}
        reasons |= session.reasons
        # A busy thread delays all Python. Arms beside it are measured again without it.
        busy = session.threads.reasons().keys()
        fair = (arm for arm in session.arms if busy <= {arm.name})
        reasons |= {arm.name: why for arm in fair if (why := arm.why_untrusted())}
        for name, programs in compiled.items():
            reasons.setdefault(name, f"compiled {count(programs, 'program')} while it was timed")
        if TWIN in reasons:
            reasons.setdefault(baseline, reasons[TWIN])
        reasons = {n: why for own in process_exchange.gather(reasons) for n, why in own.items()}
        for name, reason in reasons.items():
            if name in self.names:
                session.fail(name, "wrong", reason)
        self.end_arms_beside(reasons)
        if baseline in reasons:
            # Its twin no longer measures the noise floor, and ratios need another baseline.
            reasons[TWIN] = ""
            session.row["baseline"] = self.first(n for n in self.names if n not in reasons)
        return set(reasons)

    def end_arms_beside(self, reasons: Mapping[str, str]) -> None:
        """Close the feeds; store in the cells why their input and ablated arms are withdrawn."""
        for arm in self.session.arms:
            if isinstance(arm, FedArm):
                arm.feed.close()
            name, _, way = arm.name.partition("+")
            cell: Any = self.session.cells.get(name, {})
            for kind in ("inputs", "ablations"):
                if way in cell.get(kind, ()):
                    cell[kind][way] = reasons.get(arm.name, "")


def sample_rows(job: Job, block: str, turns: Iterable[Turn]) -> list[SampleRow]:
    """Convert turns to stored rows; the slowest process determines a turn's times."""
    rows = [
        SampleRow(block=block, attempt=job["attempt"], launch=job["launch"], **turn)
        for turn in turns
    ]
    if jax.process_count() > 1:
        own = [{name: row.pop(name) for name in ("host", *MERGES) if name in row} for row in rows]  # type: ignore[misc]
        hosts = process_exchange.gather(host_id())
        for row, *each in zip(rows, *process_exchange.gather(own), strict=True):
            row.update(merged_turn(each, hosts))
    return rows


MERGES: dict[str, Any] = {
    **dict.fromkeys(("throughput_ns", "latency_ns", "wash_out_ns"), max),
    "energy": {"joules": lambda joules: round(sum(joules), 6), "seconds": max},
    "boards": BOARDS,
    "input": dict.fromkeys(InputWait.__annotations__, max),
}
"""How the processes' figures of a turn are merged, except the host's."""


def merged_turn(each: Sequence[Mapping[str, Any]], hosts: Sequence[str]) -> Any:
    """Merge the processes' figures of one turn; figures that any process lacks are left out."""
    return {
        "host": merged_hosts([own["host"] for own in each], hosts),
        "process_throughput_ns": [own["throughput_ns"] for own in each],
        **merged(each, MERGES),
    }
