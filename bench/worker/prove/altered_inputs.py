"""Diagnosis of gradients that are right for another batch, other labels or rounded parameters."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bench.contract import Batch
from bench.contract.model_state import is_float
from bench.worker.prove.carried_state import flat
from bench.worker.prove.divided_gradients import mean_of
from bench.worker.prove.failures import APPROXIMATE
from bench.worker.prove.known_mistakes import MATCH, Observed
from bench.worker.prove.relative_errors import close, multiple_of
from bench.worker.prove.trajectory import vector

MOST_CLASSES = 1 << 10
"""Largest number of classes tried for label smoothing."""
MIXED = 1e-4
"""Relative distance below which a mixture with other gradients explains a difference."""


def altered_inputs(seen: Observed) -> str:
    """Name altered inputs of the loss that explain the first update up to a factor; else empty."""
    gradients, batch, of = seen.gradients, seen.batches[0], "the batch"
    if sequence := seen.problem.sequence:
        of, batch = "`sequence.split(batch)`", sequence.split(batch)
        loss_fn = replace(seen.problem, loss=sequence.loss).functional_with_state()[2]
        gradients = jax.jit(jax.value_and_grad(loss_fn, has_aux=True))
    for why, given, rounded in _inputs(seen, batch, of):
        found = vector(flat(gradients(*given)[1]))
        if rounded:  # the backward pass rounds as well
            found = np.asarray(jnp.asarray(found, rounded), float)
        match = 0.01 * float(jnp.finfo(rounded).eps) if rounded else MATCH
        if (by := multiple_of(seen.update, found)) and close(seen.update, by * found, match):
            return why
    return _smoothed(seen, gradients, batch)


def _inputs(
    seen: Observed, batch: Batch, of: str
) -> Iterator[tuple[str, tuple[Any, Any, Any], str]]:
    """Yield mistakes, each with the loss's inputs, and the dtype of rounded gradients or ""."""
    params, state = seen.start
    leaves, tree = jax.tree.flatten(batch)
    for place, leaf in reversed([*enumerate(leaves)]):  # labels come last
        alike = [x is not leaf and (x.shape, x.dtype) == (leaf.shape, leaf.dtype) for x in leaves]
        others = [(f"is replaced by array {at}", leaves[at]) for at in np.flatnonzero(alike)]
        for how, other in (*others, *_rearranged(leaf, seen.shards)):
            altered = [other if at == place else x for at, x in enumerate(leaves)]
            why = f"array {place} of {of} {how}"
            yield why, (params, state, jax.tree.unflatten(tree, altered)), ""
    floats = [at for at, leaf in enumerate(leaves) if is_float(leaf)]
    for name in ("bfloat16", "float16"):

        def rounded(leaf: Any, dtype: str = name) -> Any:
            return jnp.asarray(leaf).astype(dtype).astype(leaf.dtype)

        why = f"the parameters are rounded to {name} before the loss ({APPROXIMATE})"
        yield why, (jax.tree.map(rounded, params), state, batch), name
        for places in dict.fromkeys(((*floats[:1],), (*floats[1:],), (*floats,))):
            cast = [rounded(x) if at in places else x for at, x in enumerate(leaves)]
            listed = " and ".join(map(str, places))
            why = f"{of} is rounded to {name} before the loss, in array {listed}"
            if places:
                yield why, (params, state, jax.tree.unflatten(tree, cast)), ""


def _rearranged(leaf: Any, shards: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yield ways to move rows or columns of an array or its shards, and the resulting arrays."""
    whole = np.asarray(leaf)
    for axis in range(whole.ndim)[:2]:
        yield f"is reversed along axis {axis}", np.flip(whole, axis)
    apart = whole.reshape(shards, -1, *whole.shape[1:])
    for axis, by in product(range(whole.ndim)[:2], (1, -1)):
        how = f"is shifted by {by} along axis {axis}"
        yield how, np.roll(whole, by, axis)
        if shards == 1:
            continue
        moved = np.roll(apart, by, axis + 1)
        if axis == 0:  # columns move within their shards anyway
            yield f"{how} within each shard", moved.reshape(whole.shape)
        for index in range(shards):
            alone = np.concatenate([apart[:index], moved[index : index + 1], apart[index + 1 :]])
            yield f"{how} in shard {index} alone", alone.reshape(whole.shape)
    # With two shards, the previous one is also the next; a single shard has neither.
    for by, other in ((1, "previous"), (-1, "next"))[: shards - 1]:
        yield f"is that of the {other} shard", np.roll(apart, by, 0).reshape(whole.shape)


def _smoothed(seen: Observed, gradients: Callable[..., Any], batch: Batch) -> str:
    """Name label smoothing (Szegedy et al. 2016): the mean loss over all labels is mixed in."""
    *others, labels = jax.tree.leaves(batch)
    if is_float(labels) or not others or seen.problem.state_names:
        return ""
    tree, rest = jax.tree.structure(batch), seen.update - seen.right
    sizes = {size for leaf in seen.truth.start.values() for size in leaf.shape}
    for size in sorted(n for n in sizes if int(labels.max()) < n <= MOST_CLASSES):
        same = ([*others, np.full_like(labels, label)] for label in range(size))
        mean = mean_of(
            gradients(*seen.start, jax.tree.unflatten(tree, leaves))[1] for leaves in same
        )
        way = -seen.rate * vector(flat(mean)) - seen.right
        share = multiple_of(rest, way)
        if 0 < share < 1 and close(rest, share * way, MIXED):
            return f"the labels are smoothed: {share:.3g} of them are spread over all {size}"
    return ""
