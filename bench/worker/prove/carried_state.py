"""Model state in the proof: the reference's steps with it, and its comparison."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bench.contract import Batch, Params, Problem, StateLossFn, TrainStep
from bench.contract.layer_stacks import reference_loss
from bench.contract.model_state import LOCAL, ModelState
from bench.worker import process_exchange
from bench.worker.prove.failures import FEW, WrongStepError

Flat = dict[str, np.ndarray]
"""Leaves of parameters or of a state by path, on the host: floats as float64 if not said otherwise,
keys as their words."""

SHARDS = "shards"
"""Name of the axis that stands for a mesh's shards on one device."""


def is_key(leaf: Any) -> bool:
    """Whether a leaf is an array of PRNG keys."""
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def words(leaf: Any) -> Any:
    """Return an array's numbers: of PRNG keys their words, of other arrays themselves."""
    return jax.random.key_data(leaf) if is_key(leaf) else leaf


def flat(tree: Any, dtype: Any = np.float64, *, copy: bool | None = True) -> Flat:
    """Copy a tree to the host, its floats in a dtype or a wider one.

    With `copy` None, arrays of such a dtype that are in the host's memory are not copied.
    """
    found = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        values = process_exchange.to_host(words(leaf))
        floats = jnp.issubdtype(values.dtype, jnp.floating)
        wanted = np.promote_types(values.dtype, dtype) if floats else values.dtype
        own = copy and may_be_view(leaf)
        found[jax.tree_util.keystr(path)] = np.array(values, wanted, copy=own or None)
    return found


def snapshot(tree: Any) -> Flat:
    """Return leaves that nothing donates, in their own dtype or at least float32."""
    return flat(tree, np.float32, copy=None)


def may_be_view(leaf: Any) -> bool:
    """Whether an array on the host may be a view of a leaf's buffer, which a step could donate."""
    if not isinstance(leaf, jax.Array) or next(iter(leaf.devices())).platform == "cpu":
        return True
    return leaf.sharding.memory_kind in ("pinned_host", "unpinned_host")


def not_finite(leaf: np.ndarray, before: np.ndarray | float = 0.0) -> np.ndarray:
    """Mark the elements that are NaN or infinite, except infinities that were there before."""
    return ~np.isfinite(leaf) & (leaf != before)


def of_words(numbers: Any, leaf: Any) -> Any:
    """Return an array of the kind of `leaf`, given its `words`."""
    if not is_key(leaf):
        return numbers
    return jax.random.wrap_key_data(jnp.asarray(numbers), impl=jax.random.key_impl(leaf))


def private(leaf: Any) -> Any:
    """Copy an array where it lies. Reading the copy leaves no trace that a step could find."""
    if isinstance(leaf, jax.Array):
        return jax.device_put(leaf, leaf.sharding, may_alias=False)
    return np.array(leaf)


def held_copy(leaf: Any) -> Any:
    """Copy an array so that no donation can delete it: to the host, but for PRNG keys."""
    return of_words(process_exchange.to_host(words(private(leaf))), leaf)


def model_state_of(problem: Problem, train_step: TrainStep, state: Any) -> ModelState:
    """Return the model state of a step's state; empty if the problem has none."""
    read = getattr(train_step, "model_state", None)  # another revision's class may lack it
    return read(state) if read is not None and problem.state_names else {}


def whole_batch_loss(problem: Problem, shards: int, plain: Problem | None = None) -> StateLossFn:
    """Return the loss of a whole batch on one device, by the statistics that the problem declares.

    Under local statistics, each of the batch's `shards` parts is normalized by itself. `plain` is
    the same problem without recomputation and stacked layers.
    """
    if not problem.state_names:
        loss_fn = reference_loss(plain, problem) if plain else problem.loss_function()
        return lambda params, model_state, batch: (loss_fn(params, batch), model_state)
    if problem.statistics == LOCAL and shards > 1:
        return in_shards(plain or problem, shards)
    return in_microbatches(plain or problem)


def in_microbatches(problem: Problem, axis: str = "") -> StateLossFn:
    """Return the loss of a batch whose microbatches are computed one after another.

    Without model state, this is the loss of the whole batch; with it, each microbatch has its own
    statistics and random numbers, and starts with the model state that the one before it has left.
    See `Problem.loss_with_state` for the axis.
    """
    loss_fn, count = problem.loss_with_state(axis), problem.microbatches

    def of_batch(
        params: Params, model_state: ModelState, batch: Batch
    ) -> tuple[jax.Array, ModelState]:
        losses = []
        for number in range(count):
            part = jax.tree.map(lambda x, first=number: x[first::count], batch)
            loss, model_state = loss_fn(params, jax.lax.stop_gradient(model_state), part)
            losses.append(loss)
        return jnp.stack(losses).mean(), model_state

    return of_batch if count > 1 else loss_fn


def parts_of(batch: Batch, shards: int) -> Batch:
    """Divide a global batch into the batches of shards, (shards, ...)."""
    return jax.tree.map(lambda x: x.reshape(shards, -1, *x.shape[1:]), batch)


def in_shards(problem: Problem, shards: int) -> StateLossFn:
    """Return the mean of the shards' losses, and the model state that they agree on.

    It computes what jax.shard_map would over as many devices: random numbers depend only on
    a key, and are equal for all shards.
    """
    of_shards = jax.vmap(in_microbatches(problem, SHARDS), (None, None, 0), axis_name=SHARDS)

    def loss_fn(
        params: Params, model_state: ModelState, batch: Batch
    ) -> tuple[jax.Array, ModelState]:
        losses, states = of_shards(params, model_state, parts_of(batch, shards))
        return losses.mean(), jax.tree.map(lambda leaf: leaf[0], states)

    return loss_fn


def check_draws(problem: Problem, batch: Batch) -> None:
    """Check that a model draws the same random numbers in float64 as in the timed dtypes.

    Raises:
      WrongStepError: it draws float64 numbers, whose bits are others.
    """
    if not problem.state_names:
        return
    params, model_state, loss_fn = problem.functional_with_state()
    if "bit_width=64" in str(jax.make_jaxpr(loss_fn)(params, model_state, batch)):
        raise WrongStepError(
            "the model draws other random numbers in float64 than in the timed dtypes: draw them "
            "as float32, as bench.contract.layers.SampleDropout does; nnx.Dropout does not"
        )


def state_errors(ours: Flat, theirs: Flat, start: Flat) -> dict[str, float]:
    """Return the error of each leaf, relative to the size of its change since `start`.

    Integers and keys must be equal: their error is 0 or infinite.

    Raises:
      WrongStepError: the states differ in names, shapes or kinds of leaves.
    """
    if differing := differing_paths(ours, theirs):
        if not ours:
            raise WrongStepError(
                "the step returns no model state: its TrainStep has no `model_state`"
            )
        raise WrongStepError(
            f"the model state differs from the model's in names, shapes or dtypes: "
            f"{', '.join(differing[:FEW])}"
        )
    return {path: _leaf_error(ours[path], theirs[path], start[path]) for path in theirs}


def differing_paths(ours: Flat, theirs: Flat) -> list[str]:
    """Return the paths of arrays that one side lacks, or has in another shape or kind of dtype."""
    kinds = [{p: (x.shape, x.dtype.kind) for p, x in one.items()} for one in (ours, theirs)]
    return sorted({path for path, _ in kinds[0].items() ^ kinds[1].items()})


def _leaf_error(ours: np.ndarray, theirs: np.ndarray, start: np.ndarray) -> float:
    if theirs.dtype.kind != "f":
        return 0.0 if np.array_equal(ours, theirs) else float("inf")
    size = _rms(_differences(theirs, start)) or _rms(theirs[np.isfinite(theirs)]) or 1.0
    return _rms(_differences(ours, theirs)) / size


def _differences(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Return the differences of two leaves; those of equal infinities, as in a mask, are 0."""
    with np.errstate(invalid="ignore"):
        return np.where(ours == theirs, 0.0, ours - theirs)


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(values)))) if values.size else 0.0


def named_states(ours: tuple[Flat, ...], theirs: tuple[Flat, ...], allowed: float) -> str:
    """Describe the model state after the first step, or else the last; empty if both are right.

    Both arguments are the states before the first step, after it, and after the last.
    """
    ends = zip(ours[1:], theirs[1:], strict=True)
    return next(filter(None, (named_state(a, b, theirs[0], allowed) for a, b in ends)), "")


def named_state(ours: Flat, theirs: Flat, start: Flat, allowed: float) -> str:
    """Describe what is wrong with the model state after some steps; empty if nothing is."""
    errors = state_errors(ours, theirs, start)
    wrong = [path for path, error in errors.items() if not error <= allowed]
    if not wrong:
        return ""
    still = [path for path in wrong if np.array_equal(ours[path], start[path])]
    if draws := [path for path in still if theirs[path].dtype.kind != "f"]:
        return (
            f"the model state's {some(draws)} does not change: every step draws the same random "
            "numbers"
        )
    if still:
        return f"the model state's {some(still)} does not change: statistics are not updated"
    exact = [path for path in wrong if theirs[path].dtype.kind != "f"]
    if exact:
        path = exact[0]
        return f"the model state's {path} is {ours[path]} and should be {theirs[path]}"
    worst = max(wrong, key=lambda path: errors[path])
    return (
        f"the model state's {some(wrong)} is wrong, by up to {errors[worst]:.1e} of its change, "
        f"more than the allowed {allowed:.1e}"
    )


def some(paths: list[str]) -> str:
    """List the first few of some paths."""
    more = f" (and {len(paths) - FEW} more)" if len(paths) > FEW else ""
    return f"{', '.join(paths[:FEW])}{more}"
