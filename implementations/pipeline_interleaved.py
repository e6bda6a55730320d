"""Interleaved pipeline: every stage holds several short runs of blocks, for a smaller bubble.

This is pipeline_gpipe, except that a microbatch travels around the stages of `pipe` CHUNKS times,
through another run of blocks each time (Narayanan et al. 2021, https://arxiv.org/abs/2104.04473).
Ticks are 1 / CHUNKS as long, and a stage is still idle in S - 1 of them, so with M microbatches the
bubble is (S - 1) / (CHUNKS M + S - 1). The price is CHUNKS times as many ppermutes of activations.

The batch is also split over `data`, and blocks are sharded over `model` as in
tensor_parallel_shard_map. Gradients are all-reduced over `data`; those of parameters outside the
blocks are all-reduced over `pipe` as well.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from bench.contract import Batch, Params, Problem, TrainStep
from bench.contract.pipelines import (
    chain_on,
    into_microbatches,
    losses_over_stages,
    pipeline_step,
    run_blocks,
    why_no_pipeline,
)

CHUNKS = 2


def why_unsupported(problem: Problem, mesh: Mesh) -> str | None:
    return why_no_pipeline(problem, mesh, CHUNKS)


def build(problem: Problem, mesh: Mesh) -> TrainStep:
    stages, microbatches = mesh.shape["pipe"], problem.microbatches
    chain = chain_on(problem, mesh)

    def share_of_loss(params: tuple[Params, Params], batch: Batch) -> jax.Array:
        """Return this device's term of the mean loss."""
        ends, blocks = params
        stage = jax.lax.axis_index("pipe")
        parts = into_microbatches(batch, microbatches)
        entering = jax.vmap(partial(chain.first, ends))(parts)

        def tick(x: jax.Array, now: jax.Array) -> tuple[jax.Array, jax.Array]:
            # Microbatches travel in groups of one per stage; each group goes around CHUNKS times.
            turn = now - stage
            chunk = turn % (CHUNKS * stages) // stages
            part = turn // (CHUNKS * stages) * stages + turn % stages
            enters = (stage == 0) & (chunk == 0)
            x = jnp.where(enters, entering[jnp.clip(part, 0, microbatches - 1)], x)
            run = jax.tree.map(lambda x: x[0, chunk], blocks)
            busy = (turn >= 0) & (turn < CHUNKS * microbatches)
            x = jax.lax.cond(busy, partial(run_blocks, chain, run), lambda x: x, x)
            received = jax.lax.ppermute(x, "pipe", [(i, (i + 1) % stages) for i in range(stages)])
            return received, x

        nothing = jnp.zeros_like(entering[0])
        _, outputs = jax.lax.scan(tick, nothing, jnp.arange(CHUNKS * microbatches + stages - 1))
        groups = outputs[stages - 1 :].reshape(-1, CHUNKS, stages, *outputs.shape[1:])
        done = groups[:, -1].reshape(microbatches, *outputs.shape[1:])
        losses = losses_over_stages(chain, ends, done, parts)
        return losses / microbatches / jax.lax.axis_size("data")

    bubble = (stages - 1) / (CHUNKS * microbatches + stages - 1)
    loss_and_gradients = jax.value_and_grad(share_of_loss)
    return pipeline_step(problem, mesh, loss_and_gradients, bubble=bubble, chunks=CHUNKS)
