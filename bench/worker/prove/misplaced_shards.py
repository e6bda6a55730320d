"""Diagnosis of steps that exchange, mix or scale shards, or reduce partial sums wrongly."""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import chain, product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

from bench.contract import ModelAxis
from bench.contract.logical_axes import TENSOR_PARALLEL, partition_specs, undivided
from bench.records.numbers import count
from bench.worker.prove.known_mistakes import Observed
from bench.worker.prove.relative_errors import multiple_of, update_errors

LEAST_APART = 1e-4
"""Least relative difference of factors that count as different."""


def misplaced_shards(seen: Observed, mesh: Mapping[str, int]) -> str:
    """Name the mistake with shards that explains the steps under SGD; empty if none does.

    `mesh` has the sizes of the mesh axes.
    """
    sizes = sorted({size for size in mesh.values() if size > 1})
    axes = {n: " or ".join(f"`{name}`" for name, size in mesh.items() if size == n) for n in sizes}
    if why := next(_of_wrong_parameters(seen, axes), ""):
        return why
    ours = seen.ours.losses[0]
    if seen.is_near(ours, seen.truth.losses[0]):
        return ""  # any order of shards may give this loss: a layer's units can be permuted
    for why, losses in chain(_other_orders(seen, axes), _other_sums(seen, mesh.get("model", 1))):
        if any(seen.is_near(ours, float(loss)) for loss in losses):
            return why
    return ""


def _of_wrong_parameters(seen: Observed, axes: Mapping[int, str]) -> Iterator[str]:
    """Yield the mistakes that explain the updates of all wrong parameters.

    `axes` names the mesh axes of each size. How the step shards a parameter is not known, so shards
    along each of its dimensions are tried.
    """
    start, ours, truth = seen.truth.start, seen.ours.first, seen.truth.first
    errors = update_errors(ours, truth, start, None)
    wrong = [path for path, error in errors.items() if not error <= seen.match]

    def mistakes(path: str, shards: int) -> Iterator[str]:
        whole = start[path], ours[path] - start[path], truth[path] - start[path]
        for axis in [at for at, size in enumerate(start[path].shape) if size % shards == 0]:
            own = [np.stack(np.split(each, shards, axis)) for each in whole]
            for why, mistaken in _mistaken_updates(axes[shards], *own):
                if seen.is_near(own[1], mistaken):
                    yield why

    for shards in axes:
        # A shard of one element is a multiple of any other.
        if any(start[path].size > shards for path in wrong):
            first, *others = ([*mistakes(path, shards)] for path in wrong)
            yield from (why for why in first if all(why in each for each in others))


def _mistaken_updates(
    axes: str, start: np.ndarray, update: np.ndarray, right: np.ndarray
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield mistakes, each with its update of a parameter, whose shards are along axis 0."""
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


def _other_orders(seen: Observed, axes: Mapping[int, str]) -> Iterator[tuple[str, Iterable[Any]]]:
    """Yield orders in which the shards of the parameters may be used, each with its first loss.

    Shards are along the largest dimension that divides evenly, as in FSDP, or along the first.
    """
    params, state = seen.start

    def moved(leaf: jax.Array, by: int, shards: int, *, largest: bool) -> np.ndarray:
        even = [axis for axis, size in enumerate(leaf.shape) if size % shards == 0]
        if not even:
            return np.asarray(leaf)
        axis = max(even, key=lambda axis: leaf.shape[axis]) if largest else even[0]
        return np.roll(leaf, by * leaf.shape[axis] // shards, axis)

    for shards, names in axes.items():
        for by, largest in product(range(1, shards), (True, False)):
            other = jax.tree.map(partial(moved, by=by, shards=shards, largest=largest), params)
            order = f"those of the device {count(by, 'position')} earlier along {names}"
            (loss, _), _ = seen.gradients(other, state, seen.batches[0])
            yield f"the loss uses the shards of the parameters in another order: {order}", [loss]


class _Averaging(ModelAxis):
    def total(self, partial: jax.Array) -> jax.Array:
        return jax.lax.pmean(partial, self.name)


class _Omitting(ModelAxis):
    def total(self, partial: jax.Array) -> jax.Array:
        return partial


def _other_sums(seen: Observed, shards: int) -> Iterator[tuple[str, Iterable[Any]]]:
    """Yield wrong reductions of tensor parallelism's partial sums, and each device's first loss."""
    problem, mesh = seen.problem, AbstractMesh((shards,), ("model",))
    if shards == 1 or problem.make_part is None or problem.state_names:
        return
    if undivided(problem, TENSOR_PARALLEL, mesh, "mlp", "heads"):
        return
    leaves, tree = jax.tree.flatten(seen.start[0])
    specs: list[P] = jax.tree.leaves(partition_specs(problem, TENSOR_PARALLEL, mesh))
    places = [spec.index("model") if "model" in spec else None for spec in specs]
    parts = [
        leaf if at is None else jnp.stack(jnp.split(leaf, shards, at), at)
        for leaf, at in zip(leaves, places, strict=True)
    ]
    in_axes = jax.tree.unflatten(tree, places), None
    for what, axis in ("averaged instead of summed", _Averaging), ("not summed", _Omitting):
        loss_fn = problem.loss_function(axis("model", shards))
        each = jax.jit(jax.vmap(loss_fn, in_axes, axis_name="model"))
        losses = each(jax.tree.unflatten(tree, parts), seen.batches[0])
        yield f"partial sums over `model` are {what}", losses
