"""No number without proof: does an implementation compute the right step?

Three trajectories of a few steps each, on the block's own mesh, batch and starting parameters:

1. `fp64 sgd`: everything in float64 under plain SGD, which shows the gradients as they are (Adam
   hides a constant factor on them, and so does clipping);
2. `fp64 optimizer`: in float64 under the workload's own optimizer;
3. `as timed`: the very program that will be timed, in its own dtypes.

All are compared with one truth: the same steps on the whole batch, on one device, in float64.
Float64 is what makes the proof sharp: two right programs differ by rounding alone, a wrong one by
far more. What is compared is the update, parameters after minus parameters before, since the
parameters themselves are mostly their initial values.

With eps the dtype's rounding, losses and updates under SGD must agree to sqrt(eps), half of the
digits. Adam divides a gradient by its own size and so turns the rounding of a small gradient into
a large part of its update. Under the workload's own optimizer, updates are therefore compared
where the gradient is at least eps^(1/4) of the typical one, and must agree to eps^(1/4). (There
are gradients of nothing but rounding: a key's bias shifts all scores of a softmax alike.) Under
SGD every element is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from bench.contract import Batch, Implementation, Params, Problem, TrainStep
from bench.records.rows import ProofCheck
from bench.worker import process_exchange
from bench.worker.prove.diagnosis import FirstStep, explain
from bench.worker.read.compilation import remembered_programs

STEPS = 3
LEARNING_RATE = 0.01
SGD = "fp64 sgd"
OWN = "fp64 optimizer"

Flat = dict[str, np.ndarray]
"""Parameters by path, float64 on the host."""


class WrongStepError(Exception):
    """The implementation does not compute the right step; the message says how."""


@dataclass(frozen=True)
class Trajectory:
    """What a few steps did."""

    losses: np.ndarray
    """(steps,) float64: every step's loss, before its update."""
    start: Flat
    first: Flat
    """Parameters after one step."""
    last: Flat
    """Parameters after all steps."""
    drift: str = ""
    """The first place where devices held different replicas; empty if they never did."""

    @property
    def finite(self) -> bool:
        """Whether no loss and no parameter is infinite or NaN."""
        snapshots = (self.start, self.first, self.last)
        return bool(np.isfinite(self.losses).all()) and all(map(all_finite, snapshots))


@contextmanager
def exact_arithmetic(programs: Path) -> Iterator[None]:
    """Float64, and compilation made cheap: what runs here is never timed."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        with jax.enable_x64(True), remembered_programs(programs):
            yield
    finally:
        jax.config.update("jax_disable_most_optimizations", before)


def widened(tree: Any) -> Any:
    """Host arrays: floats as float64, integers as they are."""

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


def build_step(implementation: Implementation, problem: Problem, mesh: Mesh) -> TrainStep:
    """What an implementation builds.

    Raises:
      WrongStepError: it is no TrainStep.
    """
    train_step: Any = implementation.build(problem, mesh)
    # Not by its class: an implementation of another revision has that revision's.
    parts = ("state", "place", "step", "params")
    if not is_dataclass(train_step) or not all(hasattr(train_step, part) for part in parts):
        raise WrongStepError(f"build returns a {type(train_step).__name__}, not a TrainStep")
    return cast("TrainStep", train_step)


def state_and_loss(returned: Any) -> tuple[Any, Any]:
    """The state and the loss that a step returned.

    Raises:
      WrongStepError: it returned something else.
    """
    if not isinstance(returned, tuple | list):
        what = f"a {type(returned).__name__}"
    elif len(returned) != 2:  # noqa: PLR2004 - a pair
        what = f"{len(returned)} values"
    else:
        return returned[0], returned[1]
    raise WrongStepError(f"the step returns {what}, not the pair (state, loss)")


def run_steps(train_step: TrainStep, batches: list[Batch]) -> Stepped:
    """Step through the batches, looking whether replicas still agree.

    Raises:
      WrongStepError: a step returns no pair, a loss is not a scalar, a loss or parameter is not
        finite, or an output cannot be waited for.
    """
    state = train_step.state
    losses: list[float] = []
    snapshots = [flatten(train_step.params(state))]
    drift = ""
    for number, batch in enumerate(batches):
        state, loss = state_and_loss(train_step.step(state, train_step.place(batch)))
        check_waitable(state, loss)
        if loss.shape:
            raise WrongStepError(f"the loss has shape {loss.shape}; it must be one scalar")
        drift = drift or find_drift({"the loss": loss})
        losses.append(float(loss))
        if number in (0, len(batches) - 1):
            params = train_step.params(state)
            drift = drift or find_drift(by_path(params))
            snapshots.append(flatten(params))
    trajectory = Trajectory(np.array(losses), snapshots[0], snapshots[1], snapshots[-1], drift)
    if not trajectory.finite:
        raise WrongStepError("the loss or a parameter is not finite")
    return Stepped(trajectory, state)


class Stepped(NamedTuple):
    """A trajectory, and the state it left."""

    trajectory: Trajectory
    state: Any


def check_waitable(state: Any, loss: Any) -> None:
    """Check that everything a step returns can be waited for.

    Raises:
      WrongStepError: the loss is no jax.Array, or the state holds something that is no array or
        number: work could hide behind it.
    """
    if not isinstance(loss, jax.Array):
        raise WrongStepError(
            f"the loss is a {type(loss).__name__}, not a jax.Array: it cannot be waited for"
        )
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        if not isinstance(leaf, jax.Array | np.ndarray | np.generic | int | float | complex):
            name = jax.tree_util.keystr(path)
            raise WrongStepError(
                f"the state holds a {type(leaf).__name__} at {name}: it cannot be waited for"
            )


def by_path(params: Params) -> dict[str, Any]:
    """Leaves by a readable path."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return {jax.tree_util.keystr(path): leaf for path, leaf in leaves}


def flatten(params: Params) -> Flat:
    """A copy on the host that no later donation can delete."""
    leaves = by_path(params).items()
    return {path: np.array(process_exchange.to_host(leaf), np.float64) for path, leaf in leaves}


def all_finite(params: Flat) -> bool:
    """No infinity and no NaN."""
    return all(np.isfinite(leaf).all() for leaf in params.values())


def find_drift(arrays: dict[str, Any]) -> str:
    """Compare replicas bit by bit; say where two differ, or return an empty string.

    All processes find the same.
    """
    found = next(filter(None, process_exchange.gather(find_local_drift(arrays))), "")
    return found or find_drift_of_processes(arrays)


def find_local_drift(arrays: dict[str, Any]) -> str:
    """Compare replicas on the devices of this process."""
    for path, array in arrays.items():
        seen: dict[str, Any] = {}
        for shard in array.addressable_shards:
            first = seen.setdefault(str(shard.index), shard)
            if shard is not first and not same_bits(shard.data, first.data):
                return (
                    f"replicas drift: {path} is not the same on "
                    f"device {first.device.id} and device {shard.device.id}"
                )
    return ""


def find_drift_of_processes(arrays: dict[str, Any]) -> str:
    """Compare the replicas of processes, each of which holds one, by their digests."""
    if jax.process_count() == 1:
        return ""
    own = [
        (path, str(shard.index), sha256(np.asarray(shard.data).tobytes()).hexdigest())
        for path, array in arrays.items()
        for shard in array.addressable_shards
    ]
    seen: dict[tuple[str, str], tuple[int, str]] = {}
    for rank, replicas in enumerate(process_exchange.gather(own)):
        for path, part, digest in replicas:
            first, theirs = seen.setdefault((path, part), (rank, digest))
            if digest != theirs:
                return f"replicas drift: {path} is not the same in process {first} and {rank}"
    return ""


def same_bits(one: jax.Array, other: jax.Array) -> bool:
    """Whether two arrays of one shape and dtype are the same bit by bit, NaNs included."""
    left, right = (np.asarray(array).reshape(-1).view(np.uint8) for array in (one, other))
    return np.array_equal(left, right)


def whole_batch_steps(
    start: Params,
    loss_and_gradients: Callable[[Params, Batch], tuple[jax.Array, Params]],
    optimizer: optax.GradientTransformation,
    batches: list[Batch],
) -> Trajectory:
    """The truth: every step on the whole batch, on one device."""
    params, opt_state = start, optimizer.init(start)

    @jax.jit
    def update(params: Params, opt_state: Any, grads: Params) -> tuple[Params, Any]:
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    losses: list[float] = []
    snapshots = [flatten(params)]
    for batch in batches:
        loss, grads = loss_and_gradients(params, batch)
        params, opt_state = update(params, opt_state, grads)
        losses.append(float(loss))
        snapshots.append(flatten(params))
    return Trajectory(np.array(losses), snapshots[0], snapshots[1], snapshots[-1])


def update_error(ours: Flat, theirs: Flat, start: Flat, mask: Flat | None) -> float:
    """The worst parameter's update error, relative to the size of the whole update.

    For each parameter: the root mean square, over its elements, of the difference of the two
    updates, divided by the root mean square of their update over all parameters. One denominator
    for all keeps a parameter whose gradient is mathematically zero (a key's bias, which softmax
    ignores) from being compared with its own rounding.

    Args:
      ours: parameters after the steps of the implementation.
      theirs: parameters after the steps of the truth.
      start: parameters before them.
      mask: bool per element, whether to compare it; all if None.

    Raises:
      WrongStepError: the parameters are not the model's, by name or by shape.
    """
    shapes = [{path: leaf.shape for path, leaf in flat.items()} for flat in (ours, theirs)]
    if shapes[0] != shapes[1]:
        raise WrongStepError("the parameters differ from the model's in names or shapes")
    scale = rms(np.concatenate([(theirs[path] - start[path]).ravel() for path in theirs]))
    differences = [
        (leaf - theirs[path])[mask[path]] if mask else leaf - theirs[path]
        for path, leaf in ours.items()
    ]
    return max(map(rms, differences)) / (scale or 1.0)


def rms(values: np.ndarray) -> float:
    """Root mean square; 0 of nothing."""
    return float(np.sqrt(np.mean(np.square(values)))) if values.size else 0.0


def loss_error(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Largest relative difference of two loss series (steps,)."""
    return float(np.max(np.abs(ours - theirs) / np.maximum(np.abs(theirs), 1e-30)))


class Gate:
    """Holds one block's truth, and proves implementations against it.

    Args:
      timed: the problem as it will be timed.
      exact: the same workload at precision `fp64`.
      mesh: the block's mesh; `shards` says into how many parts it splits the batch.
      precision: the timed problem's.
      programs: folder where compiled proofs are remembered.

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
            # The timed problem's: in another dtype other values would be drawn.
            own = replace(exact, start=widened(timed.draw()))
            self.problems = {SGD: replace(own, optimizer=optax.sgd(LEARNING_RATE)), OWN: own}
            self.exact_batches = [widened(batch) for batch in self.timed_batches]
            start, loss_fn = own.functional()
            # Its own program, which both truths run: it is most of what there is to compile.
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
                    "the workload itself is not finite, whoever computes it: losses or parameters "
                    f"of {STEPS} steps on one device ({name}; losses: {losses})"
                )

    @property
    def first_loss(self) -> float:
        """Of the whole batch, before the first update."""
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
        """The two float64 trajectories.

        Raises:
          WrongStepError: one of them is wrong; the message has the diagnosis.
        """
        checks = []
        for name, problem in self.problems.items():
            truth = self.truth[name]
            with exact_arithmetic(self.programs):
                train_step = build_step(implementation, problem, self.mesh)
                ours = run_steps(train_step, self.exact_batches).trajectory
                check = ProofCheck(
                    name=name,
                    loss_error=loss_error(ours.losses, truth.losses),
                    loss_tolerance=self.exact_eps**0.5,
                    update_error=update_error(
                        ours.last,
                        truth.last,
                        truth.start,
                        self.resolvable(self.exact_eps) if name == OWN else None,
                    ),
                    update_tolerance=self.exact_eps ** (0.25 if name == OWN else 0.5),
                )
                if not passed(check, ours):
                    raise WrongStepError(f"{self.diagnosis(ours, name)} ({describe(check)})")
            checks.append(check)
        return checks

    def diagnosis(self, ours: Trajectory, name: str) -> str:
        """What a failed float64 trajectory shows."""
        found = [ours.drift] if ours.drift else []
        if name == SGD:
            step = FirstStep(ours.start, ours.first, ours.losses[0])
            batch = self.exact_batches[0]
            found += explain(self.problems[name], batch, self.shards, LEARNING_RATE, step)
            fallback = "the loss or the gradients are wrong"
        else:
            fallback = "gradients are right under SGD, but the optimizer is not applied as given"
        return "; ".join(found) or fallback

    def prove_timed(self, train_step: TrainStep) -> tuple[ProofCheck, Any]:
        """The trajectory of the program that will be timed, and the state it leaves.

        The losses of all steps are compared, and the update of the first: in float32, later
        updates of Adam follow from the rounding of earlier ones. This shows that what was proved
        in float64 still holds in the timed dtypes, to their precision; it is no second proof: a
        gradient scale that is wrong in these dtypes alone would be hidden by Adam.

        Raises:
          WrongStepError: it is wrong.
        """
        ours, state = run_steps(train_step, self.timed_batches)
        truth = self.truth[OWN]
        check = ProofCheck(
            name="as timed",
            loss_error=loss_error(ours.losses, truth.losses),
            loss_tolerance=self.loss_tolerance,
            update_error=update_error(
                ours.first, truth.first, truth.start, self.resolvable(self.timed_eps)
            ),
            update_tolerance=self.timed_eps**0.25,
        )
        if not passed(check, ours):
            what = ours.drift or "right in float64, but not as it would be timed"
            raise WrongStepError(f"{what} ({describe(check)})")
        return check, state


def passed(check: ProofCheck, ours: Trajectory) -> bool:
    """Both errors within their tolerance, and no replica differs from another."""
    return (
        check["loss_error"] <= check["loss_tolerance"]
        and check["update_error"] <= check["update_tolerance"]
        and not ours.drift
    )


def describe(check: ProofCheck) -> str:
    """The check's numbers."""
    return (
        f"{check['name']}: relative error of the loss {check['loss_error']:.1e} "
        f"(allowed {check['loss_tolerance']:.1e}), "
        f"of the update {check['update_error']:.1e} (allowed {check['update_tolerance']:.1e})"
    )
