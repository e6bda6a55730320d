"""Diagnosis of gradients that are right for another batch, other labels or rounded parameters."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bench.contract import Batch, Problem
from bench.contract.model_state import is_float
from bench.worker.prove.carried_state import flat
from bench.worker.prove.failures import APPROXIMATE
from bench.worker.prove.known_mistakes import MATCH, Observed
from bench.worker.prove.relative_errors import close, multiple_of
from bench.worker.prove.trajectory import vector

MOST_CLASSES, CLASSES_AT_ONCE = 1 << 10, 16
"""Largest number of classes tried for label smoothing, and how many are computed at a time."""
MIXED = 1e-4
"""Relative distance below which a mixture with other gradients explains a difference."""


def altered_inputs(seen: Observed) -> str:
    """Name altered inputs of the loss that explain the first update up to a factor; else empty."""
    problem, batch, of = seen.problem, seen.batches[0], "the batch"
    gradients: Callable[..., Any] = seen.gradients
    if sequence := problem.sequence:
        of, batch = "`sequence.split(batch)`", sequence.split(batch)
        problem = replace(problem, loss=sequence.loss)
        gradients = jax.jit(jax.value_and_grad(problem.functional_with_state()[2], has_aux=True))
    for why, given, rounded in _inputs(seen, batch, of):
        found = vector(flat(gradients(*given)[1]))
        if rounded:  # the backward pass rounds as well
            found = np.asarray(jnp.asarray(found, rounded), float)
        match = 0.01 * float(jnp.finfo(rounded).eps) if rounded else MATCH
        if (by := multiple_of(seen.update, found)) and close(seen.update, by * found, match):
            return why
    return _smoothed(seen, problem, batch)


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


def _smoothed(seen: Observed, problem: Problem, batch: Batch) -> str:
    """Name label smoothing (Szegedy et al. 2016): the mean loss over all labels is mixed in."""
    *others, labels = jax.tree.leaves(batch)
    if is_float(labels) or not others or problem.state_names:
        return ""
    tree, params, loss_fn = jax.tree.structure(batch), problem.draw(), problem.loss_function()
    sizes = {size for leaf in jax.tree.leaves(params) for size in leaf.shape}
    for size in sorted(n for n in sizes if int(labels.max()) < n <= MOST_CLASSES):

        def of_all(params: Any, size: int = size) -> Any:
            def of_label(label: Any) -> Any:
                same = jnp.broadcast_to(label, labels.shape).astype(labels.dtype)
                return loss_fn(params, jax.tree.unflatten(tree, [*others, same]))

            run = jax.checkpoint(of_label)
            return jax.lax.map(run, jnp.arange(size), batch_size=CLASSES_AT_ONCE).mean()

        found = -seen.rate * vector(flat(jax.jit(jax.grad(of_all))(params)))
        way, rest = found - seen.right, seen.update - seen.right
        share = multiple_of(rest, way)
        if 0 < share < 1 and close(rest, share * way, MIXED):
            return f"the labels are smoothed: {share:.3g} of them are spread over all {size}"
    return ""
