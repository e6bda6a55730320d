"""The parts of a pipeline's step that do not depend on its schedule."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from bench.contract import WHOLE, Batch, ModelAxis, Params, Problem, Stages, TrainStep
from bench.contract.logical_axes import (
    TENSOR_PARALLEL,
    partition_specs,
    shapes_of_params,
    undivided,
)
from bench.contract.placement import (
    create_sharded_state,
    own_shard,
    shard_mapped_step,
    unknown_axes,
    why_not_in_shards,
)
from bench.contract.varying import zeros_for

BLOCKS = "blocks"
"""The key of the subtree with a chain's blocks, by number."""


def why_no_pipeline(problem: Problem, mesh: Mesh, chunks: int = 1) -> str | None:
    """Return why no pipeline can run over `pipe`, `data` and optionally `model`; None if one can.

    Each device holds `chunks` separate runs of blocks.
    """
    reason = unknown_axes(mesh, "data", "pipe", *(["model"] if "model" in mesh.shape else []))
    if reason is not None:
        return reason
    if problem.make_stages is None:
        return "the workload declares no chain of equal blocks (`make_stages`)"
    if problem.stacked:
        return "a pipeline already loops over each stage's blocks, so it takes no stacked layers"
    if mesh.shape.get("model", 1) > 1:
        reason = undivided(problem, TENSOR_PARALLEL, mesh, "mlp", "heads")
    reason = reason or why_not_in_shards(problem, mesh, "model")
    return reason or _why_not_even(problem, mesh, len(shapes_of_params(problem)[BLOCKS]), chunks)


def _why_not_even(problem: Problem, mesh: Mesh, blocks: int, chunks: int) -> str | None:
    stages, count = mesh.shape["pipe"], problem.microbatches
    if blocks % (stages * chunks):
        runs = f"{stages} stages" + (f" of {chunks} runs of blocks each" if chunks > 1 else "")
        return f"{blocks} block{'s do' if blocks > 1 else ' does'} not divide evenly into {runs}"
    if count % stages:
        return f"{stages} stages need a multiple of {stages} microbatches to be busy, not {count}"
    shard = problem.batch_size // mesh.shape["data"]
    if shard % count:
        return f"a device's batch of {shard} does not divide evenly into {count} microbatches"
    return None


def to_stages(params: Params, stages: int, chunks: int = 1) -> tuple[Params, Params]:
    """Return parameters outside the blocks, and blocks stacked as (stages, chunks, length, ...).

    Block i belongs to run i // length, and run j to stage j % stages.
    """
    ends = {name: own for name, own in params.items() if name != BLOCKS}
    blocks = [params[BLOCKS][number] for number in sorted(params[BLOCKS])]

    def stack(*leaves: Any) -> Any:
        xp = np if isinstance(leaves[0], np.ndarray) else jnp
        runs = xp.stack(leaves).reshape(chunks, stages, -1, *leaves[0].shape)
        return xp.swapaxes(runs, 0, 1)

    return ends, jax.tree.map(stack, *blocks)


def from_stages(ends: Params, stacked: Params) -> Params:
    """Restore the model's parameters from the result of `to_stages`."""

    def flat(leaf: jax.Array) -> jax.Array:
        return jnp.swapaxes(leaf, 0, 1).reshape(-1, *leaf.shape[3:])

    runs = jax.tree.map(flat, stacked)
    blocks = len(jax.tree.leaves(runs)[0])
    return {**ends, BLOCKS: {i: jax.tree.map(lambda x, i=i: x[i], runs) for i in range(blocks)}}


def chain_on(problem: Problem, mesh: Mesh) -> Stages:
    """Return the model as a chain, its blocks sharded over `model` if the mesh has that axis."""
    axis = ModelAxis("model", mesh.shape["model"]) if "model" in mesh.shape else WHOLE
    assert problem.make_stages is not None, "the model is not a chain"  # noqa: S101
    return problem.make_stages(axis)


def run_blocks(chain: Stages, blocks: Params, x: jax.Array) -> jax.Array:
    """Apply a run of blocks with parameters stacked as (length, ...)."""
    x, _ = jax.lax.scan(lambda x, block: (chain.block(block, x), None), x, blocks)
    return x


def into_microbatches(batch: Batch, count: int) -> Batch:
    """Reshape a device's batch (size, ...) to (count, size / count, ...)."""
    return jax.tree.map(lambda x: x.reshape(count, -1, *x.shape[1:]), batch)


def losses_over_stages(chain: Stages, ends: Params, left: jax.Array, parts: Batch) -> jax.Array:
    """Return the summed losses of this stage's share of the microbatches.

    A psum_scatter over `pipe` distributes the last stage's outputs `left` (microbatches, ...) over
    all stages. `ends` are the parameters outside the blocks; `parts` is the batch as returned by
    `into_microbatches`.
    """
    stage = jax.lax.axis_index("pipe")
    finished = jnp.where(stage == jax.lax.axis_size("pipe") - 1, left, 0)
    own = jax.lax.psum_scatter(finished, "pipe", scatter_dimension=0, tiled=True)
    own_parts = jax.tree.map(lambda x: own_shard("pipe", x, P("pipe")), parts)
    return jax.vmap(partial(chain.last, ends))(own, own_parts).sum()


def run_if(condition: jax.Array, function: Callable[[], Any]) -> Any:
    """Return `function()` where a scalar condition holds on this device, and zeros elsewhere."""
    nothing = jax.tree.map(zeros_for, jax.eval_shape(function))
    return jax.lax.cond(condition, function, lambda: nothing)


def at(stacked: Any, place: Any) -> Any:
    """Return a tree with each of its arrays indexed by `place`."""
    return jax.tree.map(lambda x: x[place], stacked)


def put(trees: dict[str, Any], place: jax.Array, **values: Any) -> dict[str, Any]:
    """Return `trees` with each value stored at index `place` of the tree of its name."""
    return trees | {
        name: jax.tree.map(lambda x, value: x.at[place].set(value), trees[name], own)
        for name, own in values.items()
    }


def add(trees: dict[str, Any], **values: Any) -> dict[str, Any]:
    """Return `trees` with each value added to the tree of its name."""
    return trees | {name: jax.tree.map(jnp.add, trees[name], own) for name, own in values.items()}


def pipeline_step(
    problem: Problem,
    mesh: Mesh,
    loss_and_gradients: Callable[[tuple[Params, Params], Batch], tuple[jax.Array, Any]],
    *,
    bubble: float,
    taken: float = 1.0,
    chunks: int = 1,
) -> TrainStep:
    """Return the step of a pipeline, given its schedule.

    Gradients are all-reduced over `data`; those outside the blocks over `pipe` as well. Inside
    jax.shard_map, `loss_and_gradients` maps this device's parameters, as `to_stages` arranges them,
    and its shard of the batch to terms of the mean loss and of its gradients. `bubble` is the
    fraction of the step in which a stage is idle by the schedule; for `taken` see TrainStep.
    """
    arrange = partial(to_stages, stages=mesh.shape["pipe"], chunks=chunks)
    ends = partition_specs(problem, TENSOR_PARALLEL, mesh)
    block = next(iter(ends.pop(BLOCKS).values()))
    stacked = jax.tree.map(lambda spec: P("pipe", None, None, *spec), block)
    return shard_mapped_step(
        problem,
        mesh,
        create_sharded_state(problem, mesh, (ends, stacked), arrange),
        "data",
        loss_and_gradients,
        ("data", "pipe"),
        params=jax.jit(lambda state: from_stages(*state[0])),
        held=lambda state: {**state[0][0], "blocks": state[0][1]},
        bubble=bubble,
        taken=taken,
    )
