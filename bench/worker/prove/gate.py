"""The gate: proves that an implementation computes the right step before anything is timed.

It runs four trajectories of a few steps, on the block's own mesh, batch and initial parameters:

1. `fp64 sgd`: float64 under plain SGD, which exposes the gradients (Adam and clipping hide a
   constant factor);
2. `fp64 optimizer`: float64 under the workload's own optimizer;
3. `timed sgd`: the timed dtypes under SGD;
4. `as timed`: the very program that will be timed, in its own dtypes.

All are compared with one reference: the same steps on the whole batch, on one device, in float64.
Float64 makes the proof sharp: right programs differ by rounding alone, wrong ones by far more. The
gate compares updates (parameters after the steps minus parameters before), because the parameters
themselves are mostly their initial values.

With eps the dtype's rounding, losses and updates under SGD must agree to sqrt(eps), half of the
digits. Adam divides a gradient by its own magnitude, so the rounding of a small gradient becomes a
large part of its update. Under the workload's own optimizer, updates are therefore compared only
where the gradient is at least eps^(1/4) of the typical one, and must agree to eps^(1/4). (Some
gradients are pure rounding: a key's bias shifts all scores of a softmax equally.) Under SGD, every
element is compared.

In the timed dtypes, half of the digits would not reveal a step that computes in bfloat16. There, a
step may differ from float64 by ROUNDINGS times as much as the reference does in these dtypes, in
the worse of two orders of summation. One unlucky rounding may flip a ReLU, so a step beyond this
but within the wider tolerance is compared on other batches too, and refused if it fails again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from jax.sharding import Mesh

from bench.contract import Implementation, Problem, TrainStep
from bench.contract.layer_stacks import reference_loss
from bench.records.numbers import count
from bench.records.proof_rows import ProofCheck
from bench.worker.prove.diagnosis import MATCH, explain
from bench.worker.prove.exact_arithmetic import (
    cheap_programs,
    exact_arithmetic,
    rounding,
    widened,
)
from bench.worker.prove.failures import WrongStepError
from bench.worker.prove.relative_errors import loss_error, rms, update_errors
from bench.worker.prove.timed_reference import TimedReference
from bench.worker.prove.trajectory import (
    LOSS,
    Flat,
    Trajectory,
    build_step,
    run_steps,
    vector,
    whole_batch_steps,
)

STEPS = 3
LEARNING_RATE = 0.01
SGD = "fp64 sgd"
OWN = "fp64 optimizer"
TIMED_SGD = "timed sgd"
AS_TIMED = "as timed"

ROUNDINGS = 16
LEAST_ROUNDING = 64 * 2.0**-23
"""Smallest tolerance in the timed dtypes, whose parameters are float32."""
UPDATE_SHARE = 0.01
"""Size of an update under `timed sgd`, relative to that of the parameters, whose rounding would
drown a much smaller update."""
BF16 = (2.0**-12, 2.0**-6)
"""Range of relative errors that rounding to bfloat16 (8 bits) causes."""

DRIFT = 1000
"""Roundings by which replicas may differ after a few steps of SGD."""
FEW = 3
"""Most wrong parameters that a message names."""


class Expected(NamedTuple):
    """The reference and tolerances for a trajectory."""

    truth: Trajectory
    mask: Flat | None
    """Bool per element, whether its update is compared; all if None."""
    tolerance: tuple[float, float]
    """Largest relative error of a loss, and of an update."""
    wide: tuple[float, float]
    """The same errors, beyond which a step is wrong without a comparison on other batches."""


def under_sgd(problem: Problem, rate: float) -> Problem:
    """Replace a problem's optimizer by SGD, in its outline for other frameworks too."""
    outline = {**problem.outline, "optimizer": {"name": "sgd", "learning_rate": rate}}
    return replace(problem, optimizer=optax.sgd(rate), outline=outline if problem.outline else {})


class Gate:
    """Holds one block's reference, and proves implementations against it.

    Args:
      timed: the problem that will be timed.
      exact: the same workload at precision `fp64`.
      mesh: the block's mesh.
      shards: number of parts that the mesh splits the batch into.
      precision: precision of the timed problem.
      programs: folder of the proofs' compilation cache.
      reference: the exact problem without recomputation and stacked layers, if `exact` has either.

    Raises:
      WrongStepError: the workload itself has no finite loss or parameters.
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
        platform = mesh.devices.flat[0].platform
        self.mesh = mesh
        self.shards = shards
        self.exact_eps = rounding("fp64", platform)
        self.timed_eps = rounding(precision, platform)
        self.batches = [timed.batch(index) for index in range(2 * STEPS)]
        """Batches in the timed dtypes: the first STEPS for the proof, the rest to repeat it."""
        self.timed = timed
        self.timed_batches = self.batches[:STEPS]
        with exact_arithmetic(self.programs):
            # The timed problem's initial parameters: another dtype would draw other values.
            own = replace(exact, start=widened(timed.draw()))
            self.problems = {SGD: under_sgd(own, LEARNING_RATE), OWN: own}
            self.exact_batches = [widened(batch) for batch in self.timed_batches]
            loss_fn = own.loss_function() if reference is None else reference_loss(reference, own)
            # Jitted by itself, because both references share it and it takes most compile time.
            loss_and_gradients = jax.jit(jax.value_and_grad(loss_fn))
            self._truth_of = partial(whole_batch_steps, own.draw(), loss_and_gradients)
            self.truth = {
                name: self._truth_of(problem.optimizer, self.exact_batches)
                for name, problem in self.problems.items()
            }
        for name, truth in self.truth.items():
            if not truth.finite:
                losses = ", ".join(f"{loss:.3g}" for loss in truth.losses)
                raise WrongStepError(
                    f"the workload itself is not finite: {STEPS} steps on the whole batch, on one "
                    f"device, reach an infinity or NaN ({name}; losses: {losses})"
                )
        sgd = self.truth[SGD]
        length, size = rms(vector(sgd.first, sgd.start)), rms(vector(sgd.start))
        self.timed_rate = LEARNING_RATE * (UPDATE_SHARE * size / length if length and size else 1.0)
        self.optimizers = {TIMED_SGD: optax.sgd(self.timed_rate), AS_TIMED: timed.optimizer}
        self.reference = TimedReference(timed, shards, programs)
        self._expected: dict[tuple[str, bool], Expected] = {}

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
        typical = rms(vector(gradients))
        return {path: leaf >= eps**0.25 * typical for path, leaf in gradients.items()}

    def prove_exact(self, implementation: Implementation) -> list[ProofCheck]:
        """Prove both float64 trajectories.

        Raises:
          WrongStepError: one of them is wrong; the message has the diagnosis.
        """
        checks = []
        for name, problem in self.problems.items():
            with exact_arithmetic(self.programs):
                train_step = build_step(implementation, problem, self.mesh)
                ours = run_steps(train_step, self.exact_batches).trajectory
                checks.append(self.check(name, ours))
        return checks

    def expected(self, name: str, *, again: bool = False) -> Expected:
        """Return the reference trajectory and its tolerances; with `again`, on other batches."""
        if (name, again) not in self._expected:
            timed = name in self.optimizers
            eps = self.timed_eps if timed else self.exact_eps
            sgd = name in (SGD, TIMED_SGD)
            wide = (eps**0.5, eps ** (0.5 if name == SGD else 0.25))
            mask = None if sgd else self.resolvable(eps)
            if not timed:
                made = Expected(self.truth[name], mask, wide, wide)
            else:
                made = self._expected_as_timed(name, mask, wide, again=again)
            self._expected[name, again] = made
        return self._expected[name, again]

    def _expected_as_timed(
        self, name: str, mask: Flat | None, wide: tuple[float, float], *, again: bool
    ) -> Expected:
        optimizer = self.optimizers[name]
        batches = self.batches[STEPS:] if again else self.timed_batches
        if name == AS_TIMED and not again:
            truth = self.truth[OWN]
        else:
            with exact_arithmetic(self.programs):
                truth = self._truth_of(optimizer, [widened(batch) for batch in batches])
        orders = [self.reference.trajectory(optimizer, batches, apart=a) for a in (False, True)]
        errors = [
            (loss_error(a.losses, b.losses), self.update_error(name, a, b, mask))
            for a, b in ((orders[0], truth), (orders[1], truth), orders)
        ]
        loss, update = (max(LEAST_ROUNDING, ROUNDINGS * max(e)) for e in zip(*errors, strict=True))
        if name == TIMED_SGD:
            wide = max(loss, wide[0]), max(update, wide[1])
        return Expected(truth, mask, (min(loss, wide[0]), update), wide)

    def update_error(
        self, name: str, a: Trajectory, b: Trajectory, mask: Flat | None, *, wide: bool = False
    ) -> float:
        """Return the distance of two trajectories' updates after all steps.

        For `as timed`, the first step's distance counts too, and with `wide` it alone counts.
        """
        ends = [(a.first, b.first)] if name == AS_TIMED else []
        if not (ends and wide):  # rounding of Adam's moments shows from the second step on
            ends.append((a.last, b.last))
        return max(max(update_errors(*end, b.start, mask).values()) for end in ends)

    def prove_rounding(self, implementation: Implementation) -> ProofCheck:
        """Prove the trajectory under SGD in the timed dtypes.

        Raises:
          WrongStepError: it is wrong, or computed at lower precision than these dtypes have.
        """
        problem = under_sgd(self.timed, self.timed_rate)

        def build() -> TrainStep:
            return build_step(implementation, problem, self.mesh)

        with cheap_programs(self.programs):
            return self._proved_as_timed(TIMED_SGD, build(), build)[0]

    def prove_timed(
        self, train_step: TrainStep, build: Callable[[], TrainStep]
    ) -> tuple[ProofCheck, Any]:
        """Prove the trajectory of the program that will be timed; return also its last state.

        `build` makes another such step, to repeat the proof.

        Raises:
          WrongStepError: it is wrong.
        """
        return self._proved_as_timed(AS_TIMED, train_step, build)

    def _proved_as_timed(
        self, name: str, train_step: TrainStep, build: Callable[[], TrainStep]
    ) -> tuple[ProofCheck, Any]:
        mask = self.expected(name).mask
        ours, state = run_steps(train_step, self.timed_batches, mask)
        self.check(name, ours, wide=True)
        try:
            return self.check(name, ours), state
        except WrongStepError:
            once_more = run_steps(build(), self.batches[STEPS:], mask).trajectory
            return self.check(name, once_more, again=True), state

    def check(
        self, name: str, ours: Trajectory, *, wide: bool = False, again: bool = False
    ) -> ProofCheck:
        """Compare a trajectory with the reference, within the wider or the narrower tolerance.

        Raises:
          WrongStepError: an error exceeds its tolerance, or replicas differ.
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
        drift = self.drift(ours, check, truth)
        right_loss = check["loss_error"] <= check["loss_tolerance"]
        if right_loss and check["update_error"] <= check["update_tolerance"] and not drift:
            return check
        first = update_errors(ours.first, truth.first, truth.start, mask)
        right_start = (
            loss_error(ours.losses[:1], truth.losses[:1]) <= check["loss_tolerance"]
            and max(first.values()) <= check["update_tolerance"]
        )
        sentences = [drift] if drift else []
        if name == SGD:
            sentences += self.mistakes(ours)
        elif name == TIMED_SGD:
            match = 8 * check["update_tolerance"]
            sentences += self.mistakes(ours, self.timed_rate, match, again=again)
        worst = max(check["update_error"], check["loss_error"])
        if name in self.optimizers and not sentences and not wide and BF16[0] < worst < BF16[1]:
            sentences = ["computed in bf16: the error is of the size of bfloat16's rounding"]
        sentences = sentences or [_general_diagnosis(name, right_start=right_start)]
        # After the first step alone: from the second on, one wrong parameter spoils the others.
        wrong = [path for path, error in first.items() if error > check["update_tolerance"]]
        if 0 < len(wrong) <= FEW and len(wrong) < len(first):
            sentences.append(
                f"the first update of {', '.join(wrong)} is wrong, and that of the other "
                f"{count(len(first) - len(wrong), 'parameter')} is right"
            )
        raise WrongStepError(f"{'; '.join(sentences)} ({describe(check)})")

    def drift(self, ours: Trajectory, check: ProofCheck, truth: Trajectory) -> str:
        """Describe replicas that differ by more than rounding; note a smaller drift in the check.

        Two replicas may differ by as much as each may differ from the reference. Under SGD in
        float64, which does not amplify rounding, they may differ by rounding alone.
        """
        update = rms(vector(truth.first, truth.start))
        limits = {"loss": check["loss_tolerance"], "update": check["update_tolerance"]}
        if check["name"] == SGD:
            params = rms(np.concatenate([leaf.ravel() for leaf in truth.first.values()]))
            limits["loss"] = DRIFT * self.exact_eps
            limits["update"] = limits["loss"] * max(1.0, params / (update or 1.0))
        for drift in ours.drifts:
            for name, size in drift.sizes.items():
                loss = name == LOSS
                relative = size / (abs(truth.losses[0]) if loss else update) if size else 0.0
                if relative > limits["loss" if loss else "update"]:
                    return drift.where
                check["replica_drift"] = max(relative, check.get("replica_drift", 0.0))
        return ""

    def mistakes(
        self,
        ours: Trajectory,
        rate: float = LEARNING_RATE,
        match: float = MATCH,
        *,
        again: bool = False,
    ) -> list[str]:
        """Name known mistakes that reproduce the first step under SGD to within `match`."""
        update = vector(ours.first, ours.start)
        problem = self.problems[SGD]
        batch = widened(self.batches[STEPS]) if again else self.exact_batches[0]
        with exact_arithmetic(self.programs):
            return explain(problem, batch, self.shards, rate, update, ours.losses[0], match)


def _general_diagnosis(name: str, *, right_start: bool) -> str:
    """Describe a wrong trajectory that matches no known mistake."""
    if name in (TIMED_SGD, AS_TIMED):
        return "the step is right in float64, but not as it would be timed"
    if name == OWN:
        diagnosis = "the gradients are right under SGD, but the optimizer is not applied as given"
        return diagnosis + (": its first step is right, a later one is not" if right_start else "")
    if right_start:
        return "the first step is right, but a later one is not"
    return "the loss or the update has fewer correct digits than float64 gives"


def describe(check: Mapping[str, Any]) -> str:
    """State a check's numbers, and which of them are too large."""
    parts = []
    for what in ("loss", "update"):
        error, tolerance = check[f"{what}_error"], check[f"{what}_tolerance"]
        digits = 1 if f"{error:.1e}" != f"{tolerance:.1e}" else 4
        verdict = "more than" if error > tolerance else "within"
        parts.append(
            f"relative error of the {what} {error:.{digits}e}, "
            f"{verdict} the allowed {tolerance:.{digits}e}"
        )
    return f"{check['name']}: {'; '.join(parts)}"
