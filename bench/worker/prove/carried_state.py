"""Model state in the proof: the reference's steps with it, and its comparison."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bench.contract import Batch, Params, Problem, StateLossFn, TrainStep
from bench.contract.layer_stacks import reference_loss
from bench.contract.model_state import LOCAL, ModelState, is_float
from bench.contract.pipelines import into_microbatches
from bench.worker import process_exchange
from bench.worker.prove.failures import WrongStepError

Flat = dict[str, np.ndarray]
"""Leaves of parameters or of a state by path, on the host: floats as float64 unless stated
otherwise, PRNG keys as their words."""

SHARDS = "shards"
"""Name of the axis that stands for a mesh's shards on one device."""


def is_key(leaf: Any) -> bool:
    """Whether a leaf is an array of PRNG keys."""
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def words(leaf: Any) -> Any:
    """Return the words of PRNG keys, and other arrays as they are."""
    return jax.random.key_data(leaf) if is_key(leaf) else leaf


def leaves_by_path(tree: Any) -> dict[str, Any]:
    """Return the leaves of a tree by their paths as text, in the tree's order."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path): leaf for path, leaf in leaves}


def flat(tree: Any, dtype: Any = np.float64, *, copy: bool | None = True) -> Flat:
    """Copy a tree to the host, its floats in `dtype` or a wider one.

    With `copy` None, arrays that are already in host memory, in such a dtype, are not copied.
    """
    found = {}
    for path, leaf in leaves_by_path(tree).items():
        values = process_exchange.to_host(words(leaf))
        wanted = np.promote_types(values.dtype, dtype) if is_float(values) else values.dtype
        found[path] = np.array(values, wanted, copy=(copy and may_be_view(leaf)) or None)
    return found


def snapshot(tree: Any) -> Flat:
    """Return the leaves of a tree that no step donates, in their own dtype or at least float32."""
    return flat(tree, np.float32, copy=None)


def may_be_view(leaf: Any) -> bool:
    """Whether an array on the host may be a view of a leaf's buffer, which a step could donate."""
    if not isinstance(leaf, jax.Array) or next(iter(leaf.devices())).platform == "cpu":
        return True
    return leaf.sharding.memory_kind in ("pinned_host", "unpinned_host")


def not_finite(leaf: Any, before: Any) -> np.ndarray:
    """Mark the floats that are NaN or infinite, except infinities that were there before."""
    if not is_float(leaf):
        return np.zeros(leaf.shape, bool)
    return ~np.isfinite(leaf) & (leaf != before)


def of_words(numbers: Any, leaf: Any) -> Any:
    """Invert `words`: return the numbers as an array of the same kind as `leaf`."""
    if not is_key(leaf):
        return numbers
    return jax.random.wrap_key_data(jnp.asarray(numbers), impl=jax.random.key_impl(leaf))


def private(leaf: Any) -> Any:
    """Copy an array on its own devices. Reading the copy leaves no trace that a step could find."""
    if isinstance(leaf, jax.Array):
        return jax.device_put(leaf, leaf.sharding, may_alias=False)
    return np.array(leaf)


def on_host(tree: Any) -> Any:
    """Copy arrays so that no donation can delete them: to the host, except PRNG keys."""
    return jax.tree.map(lambda x: of_words(process_exchange.to_host(words(private(x))), x), tree)


def model_state_of(problem: Problem, train_step: TrainStep, state: Any) -> ModelState:
    """Return the model state of a step's state; empty if the problem has none."""
    read = getattr(train_step, "model_state", None)  # another revision's class may lack it
    return read(state) if read is not None and problem.state_names else {}


def whole_batch_loss(problem: Problem, shards: int, plain: Problem | None = None) -> StateLossFn:
    """Return the loss of a whole batch on one device, with the statistics the problem declares.

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
    statistics and random numbers, and starts with the model state left by the one before it.
    See `Problem.loss_with_state` for the axis.
    """
    loss_fn, count = problem.loss_with_state(axis), problem.microbatches

    def of_batch(params: Params, state: ModelState, batch: Batch) -> tuple[jax.Array, ModelState]:
        losses = []
        for number in range(count):
            part = strided_part(batch, count, number)
            loss, state = loss_fn(params, jax.lax.stop_gradient(state), part)
            losses.append(loss)
        return jnp.stack(losses).mean(), state

    return of_batch if count > 1 else loss_fn


def part_of(batch: Batch, parts: int, index: int) -> Batch:
    """Return one of a batch's parts of contiguous rows, such as a shard."""
    return jax.tree.map(lambda x: x[index], into_microbatches(batch, parts))


def strided_part(batch: Batch, parts: int, index: int) -> Batch:
    """Return rows i, i + n, i + 2n ... of part i of n, such as a microbatch."""
    return jax.tree.map(lambda x: x[index::parts], batch)


def in_shards(problem: Problem, shards: int) -> StateLossFn:
    """Return the mean of the shards' losses, and the model state that they agree on.

    It computes what jax.shard_map would over as many devices: random numbers depend only on
    a key, and are equal for all shards.
    """
    of_shards = jax.vmap(in_microbatches(problem, SHARDS), (None, None, 0), axis_name=SHARDS)

    def loss_fn(params: Params, state: ModelState, batch: Batch) -> tuple[jax.Array, ModelState]:
        losses, states = of_shards(params, state, into_microbatches(batch, shards))
        return losses.mean(), jax.tree.map(lambda leaf: leaf[0], states)

    return loss_fn


def check_draws(problem: Problem, batch: Batch) -> None:
    """Raise WrongStepError if a model draws float64 numbers, whose bits are not the timed ones."""
    if not problem.state_names:
        return
    params, model_state, loss_fn = problem.functional_with_state()
    if "bit_width=64" in str(jax.make_jaxpr(loss_fn)(params, model_state, batch)):
        raise WrongStepError(
            "the model draws other random numbers in float64 than in the timed dtypes: draw them "
            "as float32, as bench.contract.layers.SampleDropout does; nnx.Dropout does not"
        )


def differing_paths(ours: Flat, theirs: Flat) -> list[str]:
    """Return the paths of arrays that one side lacks, or has in another shape or kind of dtype."""
    kinds = [{p: (x.shape, x.dtype.kind) for p, x in one.items()} for one in (ours, theirs)]
    return sorted({path for path, _ in kinds[0].items() ^ kinds[1].items()})
