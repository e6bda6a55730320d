"""Diagnosis of steps that mix or scale shards, or reduce partial sums wrongly."""

from collections.abc import Iterator, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

from bench.contract import ModelAxis
from bench.contract.logical_axes import TENSOR_PARALLEL, partition_specs, undivided
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
    return next(_of_wrong_parameters(seen, axes), "") or _wrong_sum(seen, mesh.get("model", 1))


def _of_wrong_parameters(seen: Observed, axes: Mapping[int, str]) -> Iterator[str]:
    """Yield the mistakes that explain the updates of all wrong parameters.

    `axes` names the mesh axes of each size. How the step shards a parameter is not known, so shards
    along each of its dimensions are tried.
    """
    start, ours, truth = seen.truth.start, seen.ours.first, seen.truth.first
    errors = update_errors(ours, truth, start, None)
    wrong = [path for path, error in errors.items() if not error <= seen.match]

    def mistakes(path: str, shards: int) -> Iterator[str]:
        whole = ours[path] - start[path], truth[path] - start[path]
        for axis in [at for at, size in enumerate(start[path].shape) if size % shards == 0]:
            own = [np.stack(np.split(each, shards, axis)) for each in whole]
            for why, mistaken in _mistaken_updates(axes[shards], *own):
                if seen.is_near(own[0], mistaken):
                    yield why

    for shards in axes:
        # A shard of one element is a multiple of any other.
        if any(start[path].size > shards for path in wrong):
            first, *others = ([*mistakes(path, shards)] for path in wrong)
            yield from (why for why in first if all(why in each for each in others))


def _mistaken_updates(
    axes: str, update: np.ndarray, right: np.ndarray
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield mistakes, each with its update of a parameter, whose shards are along axis 0."""
    shards = len(right)
    for what, factor in ("averaged", 1), ("summed", shards):
        why = f"the gradients are {what} over {axes}, where each device has other shards of them"
        yield why, 0 * right + factor * right.mean(axis=0)
    factors = [multiple_of(a.ravel(), b.ravel()) for a, b in zip(update, right, strict=True)]
    if right[0].size == 1 or np.ptp(factors) > LEAST_APART * np.abs(factors).max():
        why = f"the shards of the gradients along {axes} are multiplied by different factors"
        scaled = np.einsum("i,i...->i...", factors, right)
        yield f"{why}, as when each device clips by the norm of its own", scaled


class _Averaging(ModelAxis):
    def total(self, partial: jax.Array) -> jax.Array:
        return jax.lax.pmean(partial, self.name)


class _Omitting(ModelAxis):
    def total(self, partial: jax.Array) -> jax.Array:
        return partial


def _wrong_sum(seen: Observed, shards: int) -> str:
    """Name a wrong reduction of tensor parallelism's partial sums that gives a device's first loss.

    It is empty if there is none, or if the loss is right.
    """
    ours = seen.ours.losses[0]
    problem, mesh = seen.problem, AbstractMesh((shards,), ("model",))
    if shards == 1 or problem.make_part is None or problem.state_names:
        return ""
    if seen.is_near(ours, seen.truth.losses[0]):
        return ""
    if undivided(problem, TENSOR_PARALLEL, mesh, "mlp", "heads"):
        return ""
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
        if any(seen.is_near(ours, float(loss)) for loss in losses):
            return f"partial sums over `model` are {what}"
    return ""
