"""GPipe: each stage of `pipe` holds a run of blocks and passes microbatches on by ppermute.

Every device along `pipe` holds an equal run of the model's blocks. In each tick of a scan, a stage
processes the microbatch that the previous stage has finished and passes its activations on by
ppermute. With S stages and M microbatches this takes M + S - 1 ticks; each stage is idle in S - 1
of them, so the bubble is (S - 1) / (M + S - 1). jax.grad runs the same schedule backwards (Huang et
al. 2019, https://arxiv.org/abs/1811.06965). A psum_scatter distributes the last stage's outputs, so
that every stage computes the loss of its share of the microbatches.

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


def why_unsupported(problem: Problem, mesh: Mesh) -> str | None:
    return why_no_pipeline(problem, mesh)


def build(problem: Problem, mesh: Mesh) -> TrainStep:
    stages, microbatches = mesh.shape["pipe"], problem.microbatches
    chain = chain_on(problem, mesh)

    def share_of_loss(params: tuple[Params, Params], batch: Batch) -> jax.Array:
        """Return this device's term of the mean loss."""
        ends, blocks = params
        blocks = jax.tree.map(lambda x: x[0, 0], blocks)
        stage = jax.lax.axis_index("pipe")
        parts = into_microbatches(batch, microbatches)
        entering = jax.vmap(partial(chain.first, ends))(parts)

        def tick(x: jax.Array, now: jax.Array) -> tuple[jax.Array, jax.Array]:
            x = jnp.where(stage == 0, entering[jnp.minimum(now, microbatches - 1)], x)
            busy = (now >= stage) & (now < stage + microbatches)
            x = jax.lax.cond(busy, partial(run_blocks, chain, blocks), lambda x: x, x)
            received = jax.lax.ppermute(x, "pipe", [(i, i + 1) for i in range(stages - 1)])
            return received, x

        nothing = jnp.zeros_like(entering[0])
        _, outputs = jax.lax.scan(tick, nothing, jnp.arange(microbatches + stages - 1))
        losses = losses_over_stages(chain, ends, outputs[stages - 1 :], parts)
        return losses / microbatches / jax.lax.axis_size("data")

    bubble = (stages - 1) / (microbatches + stages - 1)
    return pipeline_step(problem, mesh, jax.value_and_grad(share_of_loss), bubble=bubble)
