"""Races of a user's own functions: proved to agree, and timed under the usual rule.

The rounds, the looks and the verdicts are those of `python -m bench run`, in this process: one
launch, whose rows are stored like a run's.
"""

import inspect
import math
import platform
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
from jax.sharding import Mesh

from bench.contract import PRECISIONS, Implementation, Problem, TrainStep
from bench.measure.launch_looks import LaunchLooks
from bench.measure.run_folder import describe_run
from bench.measure.schedule import Schedule
from bench.plan.matrix import Plan
from bench.plan.options import Options
from bench.records import store
from bench.records.arms import TWIN
from bench.records.cells import Block, StepOptions
from bench.records.host import installed, usable_cores
from bench.records.mesh import AXES, MeshShape
from bench.records.messages import Catalogue, Event, Job, LookEvent, WorkerSettings
from bench.records.rows import BlockRow, CellRow, SampleRow
from bench.records.statuses import MARGIN
from bench.records.temporary_folders import temporary_folder
from bench.worker.block_rounds import BlockRounds, warm_arm
from bench.worker.block_session import BlockSession, Proved
from bench.worker.file_threads import FileThreads
from bench.worker.process_exchange import EndedError
from bench.worker.prove.arm_checks import why_diverged
from bench.worker.prove.failures import WrongStepError, failure
from bench.worker.read.device_memory import high_water
from bench.worker.read.programs import FirstCall, program_figures
from lockstep.agreement import Agreement, Step, copied, precision_of, trace
from lockstep.stored_results import Results

MOST_SECONDS = 10.0
ROUNDS = 128


@dataclass(frozen=True)
class Given:
    """A function with its starting state and batch, in place of an implementation's module."""

    step: Step
    state: Any
    batch: Any

    def build(self, _problem: Problem, _mesh: Mesh) -> TrainStep:
        """Return the step with its own copies of the arrays."""
        return TrainStep(
            state=copied(self.state),
            place=lambda _: copied(self.batch),
            step=self.step,
            params=lambda state: state,
        )


def compare(
    steps: Mapping[str, Step],
    state: Any,
    batch: Any,
    *,
    baseline: str | None = None,
    reference: str | Step | None = None,
    precision: str | None = None,
    loss_tolerance: float | None = None,
    update_tolerance: float | None = None,
    margin: float = MARGIN,
    decide_at: float | None = None,
    rounds: int = ROUNDS,
    seconds: float = MOST_SECONDS,
    name: str = "race",
    seed: int = 0,
) -> Results:
    """Prove that functions compute the same step, and race them.

    Every function is run as given: one that is not jitted runs operation by operation. All start
    from copies of the state, so that they may donate it, and get the same batch in every step. A
    function that is wrong or fails gets a status and a reason instead of a time. If it fails while
    it is timed, the rounds are repeated without it.

    Args:
      steps: `(state, batch) -> (state, loss)` by name, each with the same layout of the state. The
        loss is a scalar jax.Array. The state may hold arrays of any dtype, and PRNG keys.
      state: the starting state of all functions; a pytree, placed as they need it.
      batch: the batch of every step, placed as the functions need it.
      baseline: name of the function to which ratios refer; the first one by default.
      reference: name of the function that is correct, or another function, which is not timed; the
        baseline by default.
      precision: the precision in which the steps compute: `fp32`, `bf16`, `fp16` or `fp64`; it sets
        the tolerances. By default the least precise dtype of the state's floats.
      loss_tolerance: largest relative difference of a loss from the reference's in the first three
        steps; the square root of the precision's rounding by default.
      update_tolerance: largest difference of a leaf of the state from the reference's after these
        steps, relative to the leaf's update, both as root mean squares; by default four times the
        default for losses. If rounding the starting state once changes a leaf by more than a tenth
        of that, ten times this change is allowed instead. Integers and keys must be equal.
      margin: relative difference of step times that is negligible.
      decide_at: a ratio, such as 1.05. The race ends when it is sure on which side of it every
        function is, rather than when the verdicts are decided.
      rounds: turns of every function, on average. Functions that are decided leave theirs to the
        others.
      seconds: planned duration of these rounds; slow steps take longer, at least two a turn.
      name: name of the comparison, used in the names of cells.
      seed: seed of the order of turns.

    Raises:
      ValueError: a name is unknown or not usable, a number is out of range, there is nothing to
        compare, or the reference is not finite, does nothing, does not return (state, loss), or
        changes from one call to the next.
      TypeError: a step is not a function, or is async or a generator; an argument is not a number.
      Exception: whatever the reference raises.
    """
    if not isinstance(steps, Mapping):
        raise TypeError(
            f"compare: steps is a {type(steps).__name__}, not a dict of functions by name"
        )
    baseline = baseline or next(iter(steps), "")
    reference = reference or baseline
    _check_names(steps, baseline, reference, name)
    for word, step in (*steps.items(), ("reference", reference)):
        _check_step(word, step)
    _check_values(
        precision, rounds=rounds, seconds=seconds, margin=margin, seed=seed, decide_at=decide_at,
        loss_tolerance=loss_tolerance, update_tolerance=update_tolerance,
    )  # fmt: skip
    right = steps[reference] if isinstance(reference, str) else reference
    precision = precision or precision_of(state)
    try:
        agreement = Agreement(right, state, batch, precision, loss_tolerance, update_tolerance)
        agreement.check_reference()
    except WrongStepError as error:
        who = f"the reference {reference!r}" if isinstance(reference, str) else "the reference"
        raise ValueError(f"compare: {who} is not a train step: {error}") from None
    session, plan = _session(
        tuple(steps), baseline, state, batch, precision, float(margin), name, int(rounds),
        float(seconds), int(seed),
    )  # fmt: skip
    session.agreement = agreement
    samples: list[SampleRow] | None = None
    with temporary_folder() as session.programs:
        for arm in session.chance.sample(list(steps), len(steps)):
            _admit(session, agreement, arm, Given(steps[arm], state, batch))
        while samples is None:
            schedule = Schedule(plan) if decide_at is None else _AtLimit(plan, decide_at)
            looks = LaunchLooks(schedule, session.block)
            samples = _race(session, looks)
    taken, _ = looks.finish(samples, 0)
    block = cast("BlockRow", {**session.row, "looks": taken})
    return _stored(plan, samples, list(session.cells.values()), block, agreement)


@dataclass(frozen=True)
class _Problem:
    """The parts of a problem that a session uses; the model FLOPs of a function are unknown."""

    batch: Callable[[int], Any]
    units_per_step: int
    unit: str = "samples"
    model_flops: float = math.nan
    axis_names: Mapping[str, Any] = field(default_factory=dict)
    outline: Mapping[str, Any] = field(default_factory=dict)
    start: Any = None
    start_state: Any = None


class _Session(BlockSession):
    """A session without a supervisor: it keeps the last look that its rounds reported."""

    agreement: Agreement

    def __init__(self, job: Job, mesh: Mesh, batch: Any) -> None:
        self.asked: list[Event] = []
        super().__init__(job, self._keep, Path())
        self.threads, self.mesh = FileThreads(), mesh
        self.problem = cast("Problem", _Problem(lambda _: batch, self.block.batch))

    def put_back(self, name: str, *, whole: bool = True) -> None:
        """Leave the process as it is: it belongs to the caller."""

    def found_after_rounds(self) -> dict[str, str]:
        """Add the functions that no longer agree with the reference, except diverged ones."""
        agreement, found = self.agreement, super().found_after_rounds()
        first_loss = float(agreement.truth.losses[0])
        try:
            agreement.check_reference()
        except WrongStepError as error:
            raise ValueError(
                f"compare: after many calls, the reference is not a train step: {error}"
            ) from None
        for arm in self.arms:
            try:
                if not why_diverged(arm, first_loss) and (why := agreement.why_changed(arm)):
                    found[arm.name] = why
            except (Exception, SystemExit) as error:
                self.fail(self.row["baseline"] if arm.name == TWIN else arm.name, *failure(error))
                raise
        return found

    def _keep(self, event: Event) -> None:
        if event["event"] == "look":
            self.asked[:] = [event]


class _AtLimit(Schedule):
    """A schedule that ends once it is sure on which side of a limit each ratio lies."""

    def __init__(self, plan: Plan, limit: float) -> None:
        super().__init__(plan)
        self._limit = limit

    def is_enough(self, claim: Any) -> bool:
        verdict = claim.verdict
        return bool(verdict.high <= self._limit or verdict.low > self._limit)

    def contenders(self, *_: Any) -> set[str]:
        return set()


def _check_names(
    steps: Mapping[str, Step], baseline: str, reference: str | Step, name: str
) -> None:
    if not steps:
        raise ValueError("compare: there are no steps")
    for word in (name, *steps):
        if word == TWIN:
            raise ValueError(f"compare: {TWIN!r} is the name of the baseline's second copy")
        if not isinstance(word, str) or not word.replace("-", "_").isidentifier():
            raise ValueError(f"compare: {word!r} is not a name: use letters, digits, '_' and '-'")
    for what, given in (("baseline", baseline), ("reference", reference)):
        if (isinstance(given, str) or what == "baseline") and given not in [*steps]:
            raise ValueError(f"compare: {what} {given!r} is none of {', '.join(steps)}")
    if len(steps) == 1 and isinstance(reference, str):
        raise ValueError("compare: a single step needs another function as its reference")


def _check_step(name: str, step: Any) -> None:
    if isinstance(step, str) and name == "reference":  # the name of a step
        return
    kind = f"of type {type(step).__name__}" if not callable(step) else ""
    kind = kind or "async" * inspect.iscoroutinefunction(step)
    kind = kind or "a generator" * inspect.isgeneratorfunction(step)
    if kind:
        raise TypeError(
            f"compare: {name!r} is {kind}; a step is a function that returns (state, loss)"
        )


def _check_values(precision: str | None, **numbers: Any) -> None:
    if precision not in (None, *PRECISIONS):
        raise ValueError(f"compare: precision={precision!r}: choose from {', '.join(PRECISIONS)}")
    for name, value in numbers.items():
        zero_is_fine = name in ("margin", "loss_tolerance", "update_tolerance")
        if value is None and name in ("decide_at", "loss_tolerance", "update_tolerance"):
            continue
        whole = name in ("rounds", "seed")
        is_number = isinstance(value, Integral if whole else Real)
        if isinstance(value, bool) or not is_number:
            raise TypeError(f"compare: {name}={value!r}: it has to be a {'whole ' * whole}number")
        if name != "seed" and not (0 < value < math.inf or (zero_is_fine and value == 0)):
            least = "not negative" if zero_is_fine else "above 0"
            raise ValueError(f"compare: {name}={value!r}: it has to be finite and {least}")
    if numbers["margin"] >= 1:
        raise ValueError(f"compare: margin={numbers['margin']!r}: it has to be a share below 1")


def _session(
    names: tuple[str, ...], baseline: str, state: Any, batch: Any, precision: str, margin: float,
    name: str, rounds: int, seconds: float, seed: int,
) -> tuple[_Session, Plan]:  # fmt: skip
    """Return the session of a race, and the plan for its stopping rule."""
    mesh = _mesh_of(state)
    leading = [np.shape(leaf)[0] for leaf in jax.tree.leaves(batch) if np.ndim(leaf)]
    axes = tuple((str(axis), size) for axis, size in mesh.shape.items())
    shape = MeshShape(axes if {axis for axis, _ in axes} <= {*AXES} else (("data", mesh.size),))
    block = Block(name, "functions", shape, next(iter(leading), 1), StepOptions(precision))
    worker = WorkerSettings(
        rounds=rounds, seconds=seconds, inputs=[], ablations=[], phases={},
        implementation_paths=[], workload_paths=[], base_files={}, isolated=[],
    )  # fmt: skip
    plan = Plan(
        preset="compare", blocks=(block,), implementations=names, variants=(), baseline=baseline,
        scaling="strong", launches=1, worker=worker, margin=margin, budget_s=None, target_ci=None,
        timeout_s=None, silence_s=0.0,
    )  # fmt: skip
    job = Job(
        **worker, **block.fields, attempt=uuid.uuid4().hex[:12], launch=0,
        implementations=list(names), baseline=baseline, proved={}, ceilings=False, seed=seed,
        interleaved=True,
    )  # fmt: skip
    return _Session(job, mesh, batch), plan


def _mesh_of(state: Any) -> Mesh:
    """Return the mesh on which the state lies; for arrays without one, their devices as `data`."""
    shardings = [leaf.sharding for leaf in jax.tree.leaves(state) if isinstance(leaf, jax.Array)]
    for sharding in shardings:
        if isinstance(sharding, jax.sharding.NamedSharding) and isinstance(sharding.mesh, Mesh):
            return sharding.mesh
    devices = {device for sharding in shardings for device in sharding.device_set}
    ordered = sorted(devices or jax.devices()[:1], key=lambda device: device.id)
    return Mesh(np.array(ordered), ("data",))


def _admit(session: _Session, agreement: Agreement, name: str, given: Given) -> None:
    """Prove a function and make it an arm, or end its cell with a reason."""
    is_reference = given.step is agreement.reference
    first_call = agreement.first_call if is_reference else FirstCall(given.step)
    try:
        ours, left = trace(first_call, given.state, given.batch)
        check = agreement.check(ours)
        made = given.build(session.problem, session.mesh)
        arm = warm_arm(name, made, left, session.problem)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's function may raise anything
        session.fail(name, *failure(error))
        return
    row = session.cell_row(name, "ok", "")
    row["proof"] = [check]
    row["compile"] = first_call.compile
    row["high_water_bytes"] = high_water(arm, session.mesh.local_devices)
    row.update(program_figures(first_call.programs, session.mesh))
    session.admit(row, arm, Proved(cast("Implementation", given), first_call.programs))


def _race(session: _Session, looks: LaunchLooks) -> list[SampleRow] | None:
    """Run the rounds; None if a function failed, in which case they are to be repeated without it.

    An exception that the reference or no function has raised passes.
    """
    if not session.arms:
        return []
    more = lambda: looks.arms_to_continue(cast("LookEvent", session.asked[-1]))  # noqa: E731
    try:
        return BlockRounds(session, more).run(float(session.agreement.truth.losses[0]))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a function may raise anything
        cause: BaseException | None = error
        if isinstance(error, EndedError):  # the baseline failed as its own second copy
            session.fail(session.row["baseline"], error.status, error.reason)
            cause = error.__context__
        own = [arm for arm in session.arms if arm.name != TWIN]
        failed = [arm for arm in own if session.cells[arm.name]["status"] != "ok"]
        is_reference = any(arm.step is session.agreement.reference for arm in failed)
        if not failed or is_reference or not isinstance(cause, Exception | SystemExit):
            raise cause or error from None
    session.arms = session.ok_arms()
    return None


def _stored(
    plan: Plan, samples: list[SampleRow], cells: list[CellRow], block: BlockRow, proof: Agreement
) -> Results:
    """Return a run made of the rows, as if it had been stored."""
    device = jax.devices()[0]
    catalogue = Catalogue(
        platform=device.platform, device_kind=device.device_kind, device_count=jax.device_count(),
        device_memory_bytes=(device.memory_stats() or {}).get("bytes_limit"),
        usable_cores=usable_cores(), processes=1,
        versions={"python": platform.python_version(),
                  **installed(("jax", "jaxlib", "flax", "optax", "numpy"))}, optional={},
        implementations=[], workloads=[], implementation_paths=[], workload_paths=[],
    )  # fmt: skip
    functions = {
        "loss_tolerance": proof.loss_tolerance,
        "update_tolerance": proof.update_tolerance,
        "loosened": sorted(p for p, most in proof.allowed.items() if most > proof.update_tolerance),
    }
    manifest = describe_run(plan, Options(), catalogue, [], {"functions": functions})
    rows = samples, cells, [block]
    with temporary_folder() as folder:
        directory = store.create(folder, manifest)
        store.add_launch(directory, *rows)
        return Results(store.load(directory), rows)
