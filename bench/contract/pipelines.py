"""What pipelines share: which devices hold which blocks, and what comes around a schedule."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from bench.contract import (
    WHOLE,
    Batch,
    ModelAxis,
    Params,
    Problem,
    Stages,
)
from bench.contract.logical_axes import TENSOR_PARALLEL, partition_specs, undivided
from bench.contract.placement import shapes_of_params, unknown_axes

BLOCKS = "blocks"
"""Where a chain's parameters hold those of its blocks, by number."""


def why_no_pipeline(problem: Problem, mesh: Mesh, chunks: int = 1) -> str | None:
    """Why a pipeline cannot be made over `pipe`, beside `data` and maybe `model`; None if it can.

    Args:
      problem: what is to be computed.
      mesh: where.
      chunks: runs of blocks that a device holds.
    """
    reason = unknown_axes(mesh, "data", "pipe", *(["model"] if "model" in mesh.shape else []))
    if reason is not None:
        return reason
    if problem.make_stages is None:
        return "the model is not a chain of equal blocks"
    shapes = shapes_of_params(problem)
    if mesh.shape.get("model", 1) > 1:
        reason = undivided(problem, shapes, TENSOR_PARALLEL, mesh, "mlp", "heads")
    return reason or _why_not_even(problem, mesh, len(shapes[BLOCKS]), chunks)


def _why_not_even(problem: Problem, mesh: Mesh, blocks: int, chunks: int) -> str | None:
    stages, count = mesh.shape["pipe"], problem.microbatches
    if blocks % (stages * chunks):
        runs = f"{stages} stages" + (f" of {chunks} runs of blocks each" if chunks > 1 else "")
        return f"{blocks} blocks do not divide into {runs}"
    if count < stages:
        return (
            f"{stages} stages need at least {stages} microbatches to be busy, and there are {count}"
        )
    if count % stages:
        return f"{count} microbatches do not divide by {stages} stages"
    shard = problem.batch_size // mesh.shape["data"]
    if shard % count:
        return f"a device's batch of {shard} does not divide into {count} microbatches"
    return None


def to_stages(params: Params, stages: int, chunks: int = 1) -> tuple[Params, Params]:
    """The model's parameters as a pipeline holds them.

    Block i belongs to run i // length, and run j to stage j % stages.

    Returns:
      Those beside the blocks, and those of the blocks, stacked: (stages, chunks, length, ...).
    """
    ends = {name: own for name, own in params.items() if name != BLOCKS}
    blocks = [params[BLOCKS][number] for number in sorted(params[BLOCKS])]

    def stack(*leaves: Any) -> Any:
        xp = np if isinstance(leaves[0], np.ndarray) else jnp
        runs = xp.stack(leaves).reshape(chunks, stages, -1, *leaves[0].shape)
        return xp.swapaxes(runs, 0, 1)

    return ends, jax.tree.map(stack, *blocks)


def from_stages(ends: Params, stacked: Params) -> Params:
    """The inverse of `to_stages`."""

    def flat(leaf: jax.Array) -> jax.Array:
        return jnp.swapaxes(leaf, 0, 1).reshape(-1, *leaf.shape[3:])

    runs = jax.tree.map(flat, stacked)
    blocks = len(jax.tree.leaves(runs)[0])
    return {**ends, BLOCKS: {i: jax.tree.map(lambda x, i=i: x[i], runs) for i in range(blocks)}}


def stage_specs(problem: Problem, mesh: Mesh) -> tuple[Params, Params]:
    """How what `to_stages` returns is divided: blocks over `pipe`, and all over `model`."""
    specs = partition_specs(problem, shapes_of_params(problem), TENSOR_PARALLEL, mesh)
    ends = {name: own for name, own in specs.items() if name != BLOCKS}
    first = next(iter(specs[BLOCKS].values()))
    return ends, jax.tree.map(lambda spec: P("pipe", None, None, *spec), first)


def chain_on(problem: Problem, mesh: Mesh) -> Stages:
    """The model as a chain, its blocks divided over `model` where the mesh has it."""
    axis = ModelAxis("model", mesh.shape["model"]) if "model" in mesh.shape else WHOLE
    return problem.stages(axis)


def run_blocks(chain: Stages, blocks: Params, x: jax.Array) -> jax.Array:
    """A run of blocks, whose parameters are stacked: (length, ...)."""
    x, _ = jax.lax.scan(lambda x, block: (chain.block(block, x), None), x, blocks)
    return x


def into_microbatches(batch: Batch, count: int) -> Batch:
    """A device's batch (size, ...) as (count, size / count, ...)."""
    return jax.tree.map(lambda x: x.reshape(count, -1, *x.shape[1:]), batch)


def losses_over_stages(chain: Stages, ends: Params, left: jax.Array, parts: Batch) -> jax.Array:
    """The sum of the losses of this stage's share of the microbatches.

    What has left the last stage is scattered over all of them (psum_scatter over `pipe`).

    Args:
      chain: the model.
      ends: its parameters beside the blocks.
      left: what leaves the last block, (microbatches, ...); on other stages, anything.
      parts: the batch, as `into_microbatches` makes it.
    """
    stage = jax.lax.axis_index("pipe")
    finished = jnp.where(stage == jax.lax.axis_size("pipe") - 1, left, 0)
    own = jax.lax.psum_scatter(finished, "pipe", scatter_dimension=0, tiled=True)
    own_parts = jax.tree.map(
        lambda x: jax.lax.dynamic_slice_in_dim(x, stage * len(own), len(own)), parts
    )
    return jax.vmap(partial(chain.last, ends))(own, own_parts).sum()
