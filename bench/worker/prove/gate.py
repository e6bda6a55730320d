"""The proof that comes before any time: does an implementation compute the right step?

Three trajectories of a few steps each, on the block's own mesh, batch and starting parameters:

1. `fp64 sgd`: everything in float64 under plain SGD, which shows the gradients as they are (Adam
   hides a constant factor on them, and so does clipping);
2. `fp64 optimizer`: in float64 under the workload's own optimizer;
3. `as timed`: the very program that will be timed, in its own dtypes.

All are compared with one reference: the same steps on the whole batch, on one device, in float64.
Float64 makes the proof sharp: two right programs differ by rounding alone, a wrong one by far more.
The gate compares updates (parameters after the steps minus parameters before), because the
parameters themselves are mostly their initial values.

With eps the dtype's rounding, losses and updates under SGD must agree to sqrt(eps), half of the
digits. Adam divides a gradient by its own size and so turns the rounding of a small gradient into
a large part of its update. Under the workload's own optimizer, updates are therefore compared
where the gradient is at least eps^(1/4) of the typical one, and must agree to eps^(1/4). (Some
gradients consist of nothing but rounding: a key's bias shifts all scores of a softmax alike.) Under
SGD every element is compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from bench.contract import Implementation, Problem, TrainStep
from bench.records.numbers import count
from bench.records.rows import ProofCheck
from bench.worker.prove.diagnosis import explain
from bench.worker.prove.failures import WrongStepError
from bench.worker.prove.trajectory import (
    Flat,
    Trajectory,
    build_step,
    run_steps,
    whole_batch_steps,
)
from bench.worker.read.compilation import remembered_programs

STEPS = 3
LEARNING_RATE = 0.01
SGD = "fp64 sgd"
OWN = "fp64 optimizer"
AS_TIMED = "as timed"

FEW = 3
"""A message names at most so many wrong parameters."""


@contextmanager
def exact_arithmetic(programs: Path) -> Iterator[None]:
    """Compute in float64, and compile cheaply: nothing that runs here is ever timed."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        with jax.enable_x64(True), remembered_programs(programs):
            yield
    finally:
        jax.config.update("jax_disable_most_optimizations", before)


def widened(tree: Any) -> Any:
    """Convert the floats of a tree to float64 on the host; integers stay as they are."""

    def widen(leaf: Any) -> np.ndarray:
        array = np.asarray(leaf)
        return array.astype(np.float64) if jnp.issubdtype(array.dtype, jnp.floating) else array

    return jax.tree.map(widen, tree)


def rounding(precision: str, platform: str) -> float:
    """2^-bits, with the bits of the shortest significand on the way from batch to update.

    On GPUs and TPUs, JAX's default for float32 matrix products is TensorFloat-32 (10 bits) and
    bfloat16 (7 bits), unless `jax_default_matmul_precision` asks for more.
    """
    bits = {"fp64": 52, "fp32": 23, "fp16": 10, "bf16": 7}[precision]
    config: Any = jax.config  # its flags are not in its stubs in every version
    if precision == "fp32" and config.jax_default_matmul_precision in (None, "default"):
        bits = {"gpu": 10, "tpu": 7}.get(platform, bits)
    return float(2.0**-bits)


def update_errors(ours: Flat, theirs: Flat, start: Flat, mask: Flat | None) -> dict[str, float]:
    """Each parameter's update error, relative to the size of the whole update.

    The root mean square, over a parameter's elements, of the difference of the two updates, divided
    by the root mean square of their update over all parameters. One denominator for all keeps a
    parameter whose gradient is mathematically zero (a key's bias, which softmax ignores) from being
    compared with its own rounding.

    Args:
      ours: parameters after the steps of the implementation.
      theirs: parameters after the steps of the reference.
      start: parameters before them.
      mask: bool per element, whether to compare it; all if None.

    Raises:
      WrongStepError: the parameters are not the model's, by name or by shape.
    """
    shapes = [{path: leaf.shape for path, leaf in flat.items()} for flat in (ours, theirs)]
    if shapes[0] != shapes[1]:
        differing = sorted({path for path, _ in shapes[0].items() ^ shapes[1].items()})
        raise WrongStepError(
            "the parameters differ from the model's in names or shapes: " + ", ".join(differing)
        )
    scale = rms(np.concatenate([(theirs[path] - start[path]).ravel() for path in theirs])) or 1.0
    return {
        path: rms((leaf - theirs[path])[mask[path]] if mask else leaf - theirs[path]) / scale
        for path, leaf in ours.items()
    }


def rms(values: np.ndarray) -> float:
    """Root mean square; 0 of nothing."""
    return float(np.sqrt(np.mean(np.square(values)))) if values.size else 0.0


def loss_error(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Largest relative difference of two loss series (steps,)."""
    return float(np.max(np.abs(ours - theirs) / np.maximum(np.abs(theirs), 1e-30)))


class Gate:
    """Holds one block's reference, and proves implementations against it.

    Args:
      timed: the problem as it will be timed.
      exact: the same workload at precision `fp64`.
      mesh: the block's mesh.
      shards: parts that the mesh splits the batch into.
      precision: the timed problem's.
      programs: folder of the compilation cache of proofs.

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
    ) -> None:
        self.programs = programs
        platform = mesh.devices.flat[0].platform
        self.mesh = mesh
        self.shards = shards
        self.exact_eps = rounding("fp64", platform)
        self.timed_eps = rounding(precision, platform)
        self.timed_batches = [timed.batch(index) for index in range(STEPS)]
        with exact_arithmetic(self.programs):
            # The timed problem's start: in another dtype other values would be drawn.
            own = replace(exact, start=widened(timed.draw()))
            self.problems = {SGD: replace(own, optimizer=optax.sgd(LEARNING_RATE)), OWN: own}
            self.exact_batches = [widened(batch) for batch in self.timed_batches]
            start, loss_fn = own.functional()
            # A program of its own, which both references run: it takes most of the compile time.
            loss_and_gradients = jax.jit(jax.value_and_grad(loss_fn))
            self.truth = {
                name: whole_batch_steps(
                    start, loss_and_gradients, problem.optimizer, self.exact_batches
                )
                for name, problem in self.problems.items()
            }
        for name, truth in self.truth.items():
            if not truth.finite:
                losses = ", ".join(f"{loss:.3g}" for loss in truth.losses)
                raise WrongStepError(
                    f"the workload itself is not finite: {STEPS} steps on the whole batch, on one "
                    f"device, reach an infinity or NaN ({name}; losses: {losses})"
                )

    @property
    def first_loss(self) -> float:
        """Loss of the whole batch before the first update."""
        return float(self.truth[OWN].losses[0])

    @property
    def loss_tolerance(self) -> float:
        """Largest relative difference of a loss, in the timed dtypes."""
        return self.timed_eps**0.5

    def resolvable(self, eps: float) -> Flat:
        """Per element: is its gradient at least eps^(1/4) of the typical one?"""
        sgd = self.truth[SGD]
        gradients = {path: np.abs(sgd.first[path] - sgd.start[path]) for path in sgd.start}
        typical = rms(np.concatenate([leaf.ravel() for leaf in gradients.values()]))
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

    def prove_timed(self, train_step: TrainStep) -> tuple[ProofCheck, Any]:
        """Prove the trajectory of the program that will be timed; also return the state it leaves.

        The losses of all steps are compared, and the update of the first: in float32, later
        updates of Adam follow from the rounding of earlier ones. This shows that what was proved
        in float64 still holds in the timed dtypes, to their precision. It is no second proof: Adam
        would hide a gradient scale that is wrong in these dtypes alone.

        Raises:
          WrongStepError: it is wrong.
        """
        ours, state = run_steps(train_step, self.timed_batches)
        return self.check(AS_TIMED, ours), state

    def check(self, name: str, ours: Trajectory) -> ProofCheck:
        """Compare a trajectory with the reference.

        Raises:
          WrongStepError: an error exceeds its tolerance, or replicas differ.
        """
        eps = self.timed_eps if name == AS_TIMED else self.exact_eps
        truth = self.truth[SGD if name == SGD else OWN]
        mask = None if name == SGD else self.resolvable(eps)
        timed = name == AS_TIMED
        updates = update_errors(
            ours.first if timed else ours.last,
            truth.first if timed else truth.last,
            truth.start,
            mask,
        )
        check = ProofCheck(
            name=name,
            loss_error=loss_error(ours.losses, truth.losses),
            loss_tolerance=eps**0.5,
            update_error=max(updates.values()),
            update_tolerance=eps ** (0.5 if name == SGD else 0.25),
        )
        right_loss = check["loss_error"] <= check["loss_tolerance"]
        if right_loss and check["update_error"] <= check["update_tolerance"] and not ours.drift:
            return check
        first = update_errors(ours.first, truth.first, truth.start, mask)
        right_start = (
            loss_error(ours.losses[:1], truth.losses[:1]) <= check["loss_tolerance"]
            and max(first.values()) <= check["update_tolerance"]
        )
        sentences = [ours.drift] if ours.drift else []
        if name == SGD:
            sentences += self.mistakes(ours)
        sentences = sentences or [_general_diagnosis(name, right_start=right_start)]
        # By the first step: from the second on, one wrong parameter spoils the others.
        wrong = [path for path, error in first.items() if error > check["update_tolerance"]]
        if 0 < len(wrong) <= FEW and len(wrong) < len(first):
            sentences.append(
                f"the first update of {', '.join(wrong)} is wrong, and that of the other "
                f"{count(len(first) - len(wrong), 'parameter')} is right"
            )
        raise WrongStepError(f"{'; '.join(sentences)} ({describe(check)})")

    def mistakes(self, ours: Trajectory) -> list[str]:
        """Name known mistakes that reproduce the first step under SGD."""
        update = np.concatenate([(ours.first[p] - ours.start[p]).ravel() for p in ours.start])
        problem, batch = self.problems[SGD], self.exact_batches[0]
        with exact_arithmetic(self.programs):
            return explain(problem, batch, self.shards, LEARNING_RATE, update, ours.losses[0])


def _general_diagnosis(name: str, *, right_start: bool) -> str:
    """Say what is known of a wrong trajectory that reproduces no known mistake."""
    if name == AS_TIMED:
        return "the step is right in float64, but not as it would be timed"
    if name == OWN:
        diagnosis = "the gradients are right under SGD, but the optimizer is not applied as given"
        return diagnosis + (": its first step is right, a later one is not" if right_start else "")
    if right_start:
        return "the first step is right, but a later one is not"
    return "the loss or the update has fewer correct digits than float64 gives"


def describe(check: Mapping[str, Any]) -> str:
    """Give a check's numbers, and say which of them are too large."""
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
