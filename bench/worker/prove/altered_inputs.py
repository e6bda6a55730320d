"""Diagnosis of gradients that are right for another batch, other labels or rounded parameters."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bench.contract.model_state import is_float
from bench.worker.prove.carried_state import flat
from bench.worker.prove.failures import APPROXIMATE
from bench.worker.prove.known_mistakes import MATCH, Observed
from bench.worker.prove.relative_errors import close, multiple_of
from bench.worker.prove.trajectory import vector

MOST_CLASSES, CLASSES_AT_ONCE = 1 << 10, 16
"""Most labels that are tried for label smoothing, and how many of them at a time."""
MIXED = 1e-4
"""Relative distance below which a difference is that of other gradients."""


def altered_inputs(seen: Observed) -> str:
    """Name the other inputs of the loss that make the first update, up to a factor; else empty."""
    for why, given, rounded in _inputs(seen):
        found = vector(flat(seen.gradients(*given)[1]))
        if rounded:  # the backward pass rounds as well
            found = np.asarray(jnp.asarray(found, rounded), float)
        match = 0.01 * float(jnp.finfo(rounded).eps) if rounded else MATCH
        if (by := multiple_of(seen.update, found)) and close(seen.update, by * found, match):
            return why
    return _smoothed(seen)


def _inputs(seen: Observed) -> Iterator[tuple[str, tuple[Any, Any, Any], str]]:
    """Yield what may be wrong, the parameters, model state and batch, and a dtype of gradients."""
    (params, state), batch = seen.start, seen.batches[0]
    leaves, tree = jax.tree.flatten(batch)
    parts = [("", 1, slice(None))]
    if seen.shards > 1:
        parts += [(" within each shard", seen.shards, slice(None))]
        alone = range(seen.shards)
        parts += [(f" in shard {i} alone", seen.shards, slice(i, i + 1)) for i in alone]
    for place, leaf in reversed([*enumerate(leaves)]):  # labels come last
        for axis, by, (where, shards, own) in product(range(np.ndim(leaf))[:2], (1, -1), parts):
            moved = np.array(leaf)
            apart = moved.reshape(shards, -1, *moved.shape[1:])
            apart[own] = np.roll(apart[own], by, axis + 1)
            other = [moved if at == place else x for at, x in enumerate(leaves)]
            why = f"array {place} of the batch is shifted by {by} along axis {axis}{where}"
            yield why, (params, state, jax.tree.unflatten(tree, other)), ""
    floats = [at for at, leaf in enumerate(leaves) if is_float(leaf)]
    for name in ("bfloat16", "float16"):

        def rounded(leaf: Any, dtype: str = name) -> Any:
            return jnp.asarray(leaf).astype(dtype).astype(leaf.dtype)

        why = f"the parameters are rounded to {name} before the loss ({APPROXIMATE})"
        yield why, (jax.tree.map(rounded, params), state, batch), name
        for places in dict.fromkeys(((*floats[:1],), (*floats[1:],), (*floats,))):
            cast = [rounded(x) if at in places else x for at, x in enumerate(leaves)]
            listed = " and ".join(map(str, places))
            why = f"the batch is rounded to {name} before the loss, in array {listed}"
            if places:
                yield why, (params, state, jax.tree.unflatten(tree, cast)), ""


def _smoothed(seen: Observed) -> str:
    """Name label smoothing (Szegedy et al. 2016): a mean with the loss of all labels."""
    problem, batch = seen.problem, seen.batches[0]
    if sequence := problem.sequence:
        problem, batch = replace(problem, loss=sequence.loss), sequence.split(batch)
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
