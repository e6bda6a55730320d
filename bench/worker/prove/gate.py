"""The gate: proves that an implementation computes the right step before anything is timed.

It runs four trajectories of a few steps, on the block's own mesh, batch and initial parameters:

1. `fp64 sgd`: float64 under plain SGD, which exposes the gradients (Adam and clipping hide a
   constant factor);
2. `fp64 optimizer`: float64 under the workload's own optimizer;
3. `timed sgd`: the timed dtypes under SGD;
4. `as timed`: the very program that will be timed, in its own dtypes.

All are compared with one reference: the same steps on the whole batch, on one device, in float64.
docs/design/proving.md has the reasons.

With eps the dtype's rounding, losses and updates under SGD must agree to sqrt(eps). Under the
workload's own optimizer, updates are compared only where the gradient is at least eps^(1/4) of the
typical one, and must agree to 4 sqrt(eps), which tolerates the 1e-6 that torch adds to a norm when
it clips. In the timed dtypes, `allowed` says how far a step may be from float64; the wider
tolerance is eps^(1/4).
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from jax.sharding import Mesh

from bench.contract import Batch, Implementation, Problem, TrainStep
from bench.records.row_parts import AS_TIMED, OWN, SGD, TIMED_SGD, ProofCheck
from bench.worker.prove.carried_state import Flat, check_draws, whole_batch_loss, words
from bench.worker.prove.divided_gradients import DividedGradients, Division, initial_params
from bench.worker.prove.exact_arithmetic import cheap_programs, exact_arithmetic, rounding, widened
from bench.worker.prove.failures import WrongStepError
from bench.worker.prove.relative_errors import (
    allowed,
    distance,
    length,
    loss_error,
    named_state,
    some,
    state_errors,
    update_errors,
)
from bench.worker.prove.state_reader import check_room, is_elsewhere
from bench.worker.prove.timed_reference import TimedReference
from bench.worker.prove.trajectory import (
    LOSS,
    REST,
    Trajectory,
    build_step,
    run_steps,
    under_sgd,
    whole_batch_steps,
)
from bench.worker.prove.trajectory_diagnosis import why_wrong
from bench.worker.read.device_memory import device_memory

STEPS = 3
LEARNING_RATE = 0.01
LEAST_ROUNDING = 64 * 2.0**-23
"""Smallest tolerance in the timed dtypes, whose parameters are float32."""
UPDATE_SHARE = 0.01
"""Size of an update under `timed sgd`, relative to that of the parameters, whose rounding would
drown a much smaller update."""
DRIFT = 1000
"""Roundings by which replicas may differ after a few steps of SGD."""


class ExpectedTrajectory(NamedTuple):
    """The reference and tolerances for a trajectory."""

    truth: Trajectory
    mask: Flat | None
    """Bool per element, whether its update is compared; all if None."""
    tolerance: tuple[float, float]
    """Largest relative error of a loss, and of an update."""
    wide: tuple[float, float]
    """Errors beyond which a step is wrong without a comparison on other batches."""
    state: float
    """Largest error of a leaf of the model state, relative to its change."""


def drift_beyond_rounding(
    ours: Trajectory, check: ProofCheck, expected: ExpectedTrajectory, alone: float = 0.0
) -> str:
    """Describe replicas that differ by more than rounding; empty if none do.

    Two replicas may differ by as much as each may differ from the reference, and arrays beside
    parameters and model state by the wider tolerance, relative to themselves. With `alone`, the
    former may differ only by rounding of this size, as under SGD in float64, which amplifies none.
    """
    if not ours.drifts:
        return ""
    truth = expected.truth
    # A schedule may begin at 0.
    update = truth.step or distance(truth.last, truth.start) or 1.0
    limits = {"loss": check["loss_tolerance"], "update": check["update_tolerance"]}
    if alone:
        limits = {"loss": alone, "update": alone * max(1.0, length(truth.first) / update)}
    for name, (where, size) in ours.drifts:
        if name.startswith(REST):
            relative, most = size, expected.wide[1]
        elif name == LOSS:
            relative, most = size / abs(truth.losses[0]) if size else 0.0, limits["loss"]
        else:
            relative, most = size / update, limits["update"]
        if not relative <= most:
            return where
    return ""


def check_finite(name: str, reference: Trajectory) -> None:
    """Raise WrongStepError if a trajectory of the reference is not finite."""
    if not reference.finite:
        losses = ", ".join(f"{loss:.3g}" for loss in reference.losses)
        raise WrongStepError(
            f"the workload itself is not finite: {STEPS} steps on the whole batch, on one device, "
            f"reach an infinity or NaN ({name}; losses: {losses})"
        )


class Gate:
    """Holds one block's reference, and proves implementations against it.

    `timed` is the problem that will be timed, at `precision`, `exact` the same workload at `fp64`,
    and `reference` is `exact` without recomputation and stacked layers, if it has either. The mesh
    splits a batch into `shards`. `programs` is the folder of the proofs' compilation cache.

    Raises WrongStepError if the workload itself has no finite loss or parameters.
    """

    def __init__(
        self,
        timed: Problem,
        exact: Problem,
        mesh: Mesh,
        shards: int,
        precision: str,
        programs: Path,
        reference: Problem | None = None,
    ) -> None:
        self.programs = programs
        self.float64_gate = self
        """The gate of the batch that is proved in float64, if it has to be smaller."""
        platform = mesh.devices.flat[0].platform
        self.mesh = mesh
        self.shards = shards
        self.exact_eps = rounding("fp64", platform)
        self.timed_eps = rounding(precision, platform)
        self.batches = [timed.batch(index) for index in range(2 * STEPS)]
        """Batches in the timed dtypes: the first STEPS for the proof, the rest to repeat it."""
        shapes = [np.shape(leaf) for leaf in jax.tree.leaves(self.batches[0])]
        if wrong := [str(shape) for shape in shapes if shape[:1] != (timed.batch_size,)]:
            raise WrongStepError(
                f"every array of the workload's batch(0) must have {timed.batch_size} rows, its "
                f"batch_size, and not the shape {some(wrong)}"
            )
        twice = (jax.tree.map(words, batch) for batch in (self.batches[0], timed.batch(0)))
        if not jax.tree.all(jax.tree.map(partial(np.array_equal, equal_nan=True), *twice)):
            raise WrongStepError(
                "the workload's batch(0) differs from call to call: seed it by the batch's number"
            )
        self.timed = timed
        self.timed_batches = self.batches[:STEPS]
        with exact_arithmetic(self.programs):
            # The timed problem's initial parameters: another dtype would draw other values.
            start, start_state = initial_params(timed), timed.draw_state()
            own = replace(exact, start=widened(start), start_state=widened(start_state))
            self.problems = {SGD: under_sgd(own, LEARNING_RATE), OWN: own}
            self.exact_batches = [widened(batch) for batch in self.timed_batches]
            check_draws(own, self.exact_batches[0])
            loss_fn = whole_batch_loss(own, shards, reference)
            devices, self._memory = mesh.local_devices, device_memory(mesh.local_devices)
            gradients = DividedGradients(own, loss_fn, self.exact_batches[0], devices, self._memory)
            self.loss_and_gradients = gradients
            rules = {name: problem.optimizer for name, problem in self.problems.items()}
            self.truth = {n: self._truth_of(rule, self.exact_batches) for n, rule in rules.items()}
        for name, truth in self.truth.items():
            check_finite(name, truth)
        sgd = self.truth[SGD]
        larger = UPDATE_SHARE * length(sgd.start) / sgd.step if sgd.step else 0.0
        self.rates = {SGD: LEARNING_RATE, TIMED_SGD: LEARNING_RATE * (larger or 1.0)}
        """Learning rates under SGD."""
        self.optimizers = {TIMED_SGD: optax.sgd(self.rates[TIMED_SGD]), AS_TIMED: timed.optimizer}
        self._expected = cache(self._expect)

    def _truth_of(self, rule: optax.GradientTransformation, batches: list[Batch]) -> Trajectory:
        own, gradients = self.problems[OWN], self.loss_and_gradients
        params = gradients.place(own.start)
        return whole_batch_steps(params, own.draw_state(), gradients, rule, batches)

    @property
    def division(self) -> Division:
        """How the truth is divided over devices and into parts of a batch."""
        return self.loss_and_gradients.division

    @cached_property
    def reference(self) -> TimedReference:
        """The reference in the timed dtypes."""
        return TimedReference(self, self._memory)

    @property
    def first_loss(self) -> float:
        """Loss of the whole batch before the first update."""
        return float(self.truth[OWN].losses[0])

    @property
    def loss_tolerance(self) -> float:
        """Largest relative error of a loss in the timed dtypes."""
        return self.timed_eps**0.5

    def resolvable(self, eps: float) -> Flat:
        """Mask the elements whose gradient is at least eps^(1/4) of the typical one."""
        sgd = self.truth[SGD]
        gradients = {path: np.abs(sgd.first[path] - sgd.start[path]) for path in sgd.start}
        typical = length(gradients)
        return {path: leaf >= eps**0.25 * typical for path, leaf in gradients.items()}

    def prove_exact(self, implementation: Implementation) -> list[ProofCheck]:
        """Prove both float64 trajectories; WrongStepError, with a diagnosis, if one is wrong."""
        checks = []
        for name, problem in self.problems.items():
            with exact_arithmetic(self.programs):
                resolved = self.expected(OWN).mask
                train_step = build_step(implementation, problem, self.mesh)
                ours, _ = run_steps(problem, train_step, self.exact_batches, resolved=resolved)
                checks.append(self.check(name, ours))
        return checks

    def expected(self, name: str, *, again: bool = False) -> ExpectedTrajectory:
        """Return the reference trajectory and its tolerances; with `again`, on other batches."""
        return self._expected(name, again)

    def _expect(self, name: str, again: bool) -> ExpectedTrajectory:
        sgd, optimizer = name in (SGD, TIMED_SGD), self.optimizers.get(name)
        eps = self.exact_eps if optimizer is None else self.timed_eps
        mask = None if sgd else self.resolvable(eps)
        if optimizer is None:
            most = eps**0.5, (1 if sgd else 4) * eps**0.5
            return ExpectedTrajectory(self.truth[name], mask, most, most, most[1])
        wide = eps**0.5, eps**0.25
        batches = self.batches[STEPS:] if again else self.timed_batches
        if name == AS_TIMED and not again:
            truth = self.truth[OWN]
        else:
            with exact_arithmetic(self.programs):
                truth = self._truth_of(optimizer, [widened(batch) for batch in batches])
        orders = [self.reference.trajectory(optimizer, batches, apart=a) for a in (False, True)]
        for one in (truth, *orders):
            check_finite(name, one)
        whole, parts = truth.losses[0], self.reference.parts
        if parts > 1 and whole and np.isclose(parts * orders[0].losses[0], whole, rtol=0.05):
            raise WrongStepError(
                "the workload's loss is a sum over its batch, and must be the mean"
            )
        pairs = (orders[0], truth), (orders[1], truth), orders
        losses = max(loss_error(a.losses, b.losses) for a, b in pairs)
        updates = max(self.update_error(name, a, b, mask) for a, b in pairs)
        worst = losses, updates, max(self.state_error(a, b) for a, b in pairs)
        loss, update, state = (max(LEAST_ROUNDING, allowed(e, wide[1])) for e in worst)
        if name == TIMED_SGD:
            wide = max(loss, wide[0]), max(update, wide[1])
        return ExpectedTrajectory(truth, mask, (min(loss, wide[0]), update), wide, state)

    def update_error(
        self, name: str, a: Trajectory, b: Trajectory, mask: Flat | None, *, wide: bool = False
    ) -> float:
        """Return the distance of two trajectories' updates after all steps; NaN if any error is.

        For `as timed`, the first step's distance counts too; with `wide`, it alone counts.
        """
        ends = [(a.first, b.first)] if name == AS_TIMED else []
        if not (ends and wide):  # rounding of Adam's moments shows from the second step on
            ends.append((a.last, b.last))
        return float(np.max([[*update_errors(*end, b.start, mask).values()] for end in ends]))

    @staticmethod
    def state_error(ours: Trajectory, theirs: Trajectory) -> float:
        """Return the largest error of the model state, after the first step and after all."""
        (_, start), *ends = zip(ours.states, theirs.states, strict=True)
        return max((e for a, b in ends for e in state_errors(a, b, start).values()), default=0.0)

    def prove_rounding(self, implementation: Implementation) -> ProofCheck:
        """Prove the trajectory under SGD in the timed dtypes; WrongStepError if it is wrong."""
        problem = under_sgd(self.timed, self.rates[TIMED_SGD])
        build = partial(build_step, implementation, problem, self.mesh)
        with cheap_programs(self.programs):
            return self._prove_as_timed(TIMED_SGD, build(), build, repeated=False)[0]

    def prove_timed(
        self, train_step: TrainStep, build: Callable[[], TrainStep], *, repeated: bool = True
    ) -> tuple[ProofCheck, Any]:
        """Prove the program that will be timed; return the check and the last state.

        `build` makes another such step, to repeat the proof. If `repeated`, the first step is taken
        again from a copy of its state, which must hold all that it needs. WrongStepError if wrong.
        """
        proved, state = self._prove_as_timed(AS_TIMED, train_step, build, repeated=repeated)
        if not is_elsewhere(train_step):
            check_room(self.timed, self.reference.start, state)
        return proved, state

    def _prove_as_timed(
        self, name: str, train_step: TrainStep, build: Callable[[], TrainStep], *, repeated: bool
    ) -> tuple[ProofCheck, Any]:
        mask = self.expected(name).mask
        run = partial(run_steps, self.timed, mask=mask, resolved=mask)
        ours, state = run(train_step, self.timed_batches, repeated=repeated)
        self.check(name, ours, wide=True)
        if ours.repeated is not None:
            try:
                self.check(name, ours.repeated, wide=True)
            except WrongStepError:
                raise WrongStepError(
                    "the step keeps something outside of `state`: taken again from a copy of the "
                    "first state, the first step has another result"
                ) from None
        try:
            return self.check(name, ours), state
        except WrongStepError:
            once_more, _ = run(build(), self.batches[STEPS:])
            return self.check(name, once_more, again=True), state

    def check(
        self, name: str, ours: Trajectory, *, wide: bool = False, again: bool = False
    ) -> ProofCheck:
        """Compare a trajectory with the reference; WrongStepError if they differ.

        With `wide`, errors may reach the wider tolerance. Replicas may differ by rounding.
        """
        expected = self.expected(name, again=again)
        truth, mask = expected.truth, expected.mask
        loss_tolerance, update_tolerance = expected.wide if wide else expected.tolerance
        if ours.loss_eps <= 2 * self.timed_eps:  # a loss at the timed precision or better
            loss_tolerance = max(loss_tolerance, 2 * ours.loss_eps)
        check = ProofCheck(
            name=name,
            loss_error=loss_error(ours.losses, truth.losses),
            loss_tolerance=loss_tolerance,
            update_error=self.update_error(name, ours, truth, mask, wide=wide),
            update_tolerance=update_tolerance,
        )
        if self.division != (1, 1):
            check["parts"] = self.division.parts
        wrong_state = ""
        if truth.states[0]:
            check["state_error"] = self.state_error(ours, truth)
            most = check["state_tolerance"] = max(expected.state, expected.wide[1] if wide else 0.0)
            (_, start), *ends = zip(ours.states, truth.states, strict=True)
            wrong_state = next(filter(None, (named_state(*end, start, most) for end in ends)), "")
        alone = DRIFT * self.exact_eps if name == SGD else 0.0
        drift = drift_beyond_rounding(ours, check, expected, alone)
        right_loss = check["loss_error"] <= check["loss_tolerance"]
        right_update = check["update_error"] <= check["update_tolerance"]
        if right_loss and right_update and not drift and not wrong_state:
            return check
        raise WrongStepError(why_wrong(self, name, ours, check, drift, wrong_state, again=again))
