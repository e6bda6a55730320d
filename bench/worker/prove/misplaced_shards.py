"""Diagnosis of steps that exchange, mix or scale the shards of parameters or gradients."""

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import product

import jax
import numpy as np

from bench.records.numbers import count
from bench.worker.prove.known_mistakes import Observed
from bench.worker.prove.relative_errors import multiple_of, update_errors

LEAST_APART = 1e-4
"""Least relative difference of factors that differ."""


def misplaced_shards(seen: Observed, mesh: Mapping[str, int]) -> str:
    """Name what happens to the shards of all wrong parameters under SGD; empty if not known.

    `mesh` has the sizes of the mesh axes. How the step shards a parameter is not known: shards are
    looked for along any of its dimensions.
    """
    start, ours, truth = seen.truth.start, seen.ours.first, seen.truth.first
    errors = update_errors(ours, truth, start, None)
    wrong = [path for path, error in errors.items() if not error <= seen.match]

    def mistakes(path: str, axes: str, shards: int) -> Iterator[str]:
        """Yield the mistakes that make a parameter's update."""
        whole = start[path], ours[path] - start[path], truth[path] - start[path]
        for axis in [at for at, size in enumerate(start[path].shape) if size % shards == 0]:
            own = [np.stack(np.split(each, shards, axis)) for each in whole]
            for why, mistaken in _mistaken_updates(axes, *own):
                if seen.is_near(own[1], mistaken):
                    yield why

    for shards in sorted({size for size in mesh.values() if size > 1}):
        axes = " or ".join(f"`{name}`" for name, size in mesh.items() if size == shards)
        # A shard of one element is a multiple of any other.
        if any(start[path].size > shards for path in wrong):
            first, *others = ([*mistakes(path, axes, shards)] for path in wrong)
            if common := [why for why in first if all(why in each for each in others)]:
                return common[0]
        if why := _used_in_other_order(seen, axes, shards):
            return why
    return ""


def _mistaken_updates(
    axes: str, start: np.ndarray, update: np.ndarray, right: np.ndarray
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield mistakes, and the updates that they make of a parameter with the shards in axis 0."""
    shards = len(start)
    for by in range(1, shards):
        other = f"those of the device {count(by, 'position')} earlier along {axes}"
        why = "each device updates its shards with the gradients of other shards"
        yield f"{why}: {other}", np.roll(right, by, 0)
        why = f"the shards of the parameters change places: each device gets {other}"
        yield why, np.roll(start, by, 0) - start + right
    for what, factor in ("averaged", 1), ("summed", shards):
        why = f"the gradients are {what} over {axes}, where each device has other shards of them"
        yield why, 0 * right + factor * right.mean(axis=0)
    factors = [multiple_of(a.ravel(), b.ravel()) for a, b in zip(update, right, strict=True)]
    if right[0].size == 1 or np.ptp(factors) > LEAST_APART * np.abs(factors).max():
        why = f"the shards of the gradients along {axes} are multiplied by different factors"
        scaled = np.einsum("i,i...->i...", factors, right)
        yield f"{why}, as when each device clips by the norm of its own", scaled


def _used_in_other_order(seen: Observed, axes: str, shards: int) -> str:
    """Test whether a wrong first loss is that of parameters whose shards have changed places.

    Those are along the largest dimension that divides evenly, as in FSDP, or along the first. A
    right loss may be theirs too, because the units of a layer can be permuted.
    """
    if seen.is_near(seen.ours.losses[0], seen.truth.losses[0]):
        return ""

    def moved(leaf: jax.Array, by: int, *, largest: bool) -> np.ndarray:
        even = [axis for axis, size in enumerate(leaf.shape) if size % shards == 0]
        if not even:
            return np.asarray(leaf)
        axis = max(even, key=lambda axis: leaf.shape[axis]) if largest else even[0]
        return np.roll(leaf, by * leaf.shape[axis] // shards, axis)

    params, state = seen.start
    for by, largest in product(range(1, shards), (True, False)):
        other = jax.tree.map(partial(moved, by=by, largest=largest), params)
        (loss, _), _ = seen.gradients(other, state, seen.batches[0])
        if seen.is_near(seen.ours.losses[0], float(loss)):
            return (
                "the loss uses the shards of the parameters in another order: those of the device "
                f"{count(by, 'position')} earlier along {axes}"
            )
    return ""
