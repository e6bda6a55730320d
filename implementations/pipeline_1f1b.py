"""1F1B pipeline: backward passes begin early, so that few microbatches are in flight.

As in pipeline_gpipe, a device along `pipe` holds a run of blocks and passes microbatches on. Here a
microbatch's backward pass begins in the tick in which it reaches the last stage; from then on, each
tick is one forward and one backward pass (PipeDream-flush, Narayanan et al. 2021,
https://arxiv.org/abs/2104.04473). With S stages and M microbatches there are S - 1 ticks of forward
passes alone, M of both, and S - 1 of backward passes alone: the bubble equals GPipe's, (S - 1) / (M
+ S - 1). Stage s, from 0, has 2 (S - s) - 1 microbatches in flight for any M, where GPipe has M,
and saves only their inputs: the backward pass recomputes activations.

In each of M + 2 (S - 1) ticks, one ppermute passes activations on and one passes gradients back.
The batch is split over `data`, and blocks are sharded over `model` as in tensor_parallel_shard_map.
Gradients are all-reduced over `data`; those outside the blocks over `pipe` as well.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from bench.contract import Batch, Params, Problem, TrainStep
from bench.contract.pipelines import (
    chain_on,
    into_microbatches,
    pipeline_step,
    run_blocks,
    run_if,
    why_no_pipeline,
)
from bench.contract.varying import zeros_for


def why_unsupported(problem: Problem, mesh: Mesh) -> str | None:
    return why_no_pipeline(problem, mesh)


def build(problem: Problem, mesh: Mesh) -> TrainStep:
    stages, microbatches = mesh.shape["pipe"], problem.microbatches
    slots, scale = 2 * stages - 1, 1 / (microbatches * mesh.shape["data"])
    onward = [(i, i + 1) for i in range(stages - 1)]
    back = [(i + 1, i) for i in range(stages - 1)]
    chain = chain_on(problem, mesh)

    def loss_and_gradients(params: tuple[Params, Params], batch: Batch) -> tuple[Any, Any]:
        """Return this stage's terms of the mean loss and of its gradients."""
        stage, parts = jax.lax.axis_index("pipe"), into_microbatches(batch, microbatches)

        def run(params: tuple[Params, Params], x: jax.Array, number: jax.Array) -> Any:
            """Run this stage; return its output and the loss, which is 0 before the last stage."""
            ends, blocks = params
            part = jax.tree.map(lambda x: x[number], parts)
            x = jnp.where(stage == 0, chain.first(ends, part), x)
            y = run_blocks(chain, jax.tree.map(lambda x: x[0, 0], blocks), x)
            return y, run_if(stage == stages - 1, partial(chain.last, ends, y, part))

        def backward(x: jax.Array, d_y: jax.Array, number: jax.Array) -> Any:
            """Run this stage again; return the loss and the gradients of parameters and input."""
            with jax.named_scope("recomputed"):
                (_, loss), transposed = jax.vjp(partial(run, number=number), params, x)
            return loss, *transposed((d_y, jnp.full_like(loss, scale)))

        def tick(carry: Any, now: jax.Array) -> tuple[Any, None]:
            x, d_y, inputs, total = carry  # x is from the stage before, d_y from the one after
            f, b = now - stage, now - 2 * (stages - 1) + stage  # the two passes' microbatches
            inputs = inputs.at[f % slots].set(x)
            busy = (f >= 0) & (f < microbatches) & (stage < stages - 1)
            with jax.named_scope("forward"):
                y = jax.lax.cond(busy, lambda: run(params, x, f)[0], lambda: x)
            of_part = partial(backward, inputs[b % slots], d_y, b)
            loss, grads, d_x = run_if((b >= 0) & (b < microbatches), of_part)
            x = jax.lax.ppermute(y, "pipe", onward)
            d_y = jax.lax.ppermute(d_x, "pipe", back)
            total = jax.tree.map(jnp.add, total, (loss * scale, grads))
            return (x, d_y, inputs, total), None

        shapes = jax.eval_shape(lambda: (run(params, jnp.zeros(()), stage), params))
        (nothing, loss), grads = jax.tree.map(zeros_for, shapes)
        start = nothing, nothing, jnp.stack([nothing] * slots), (loss, grads)
        carry, _ = jax.lax.scan(tick, start, jnp.arange(microbatches + slots - 1))
        return carry[-1]

    each = microbatches + stages - 1  # ticks in which any stage runs a forward (backward) pass
    made = pipeline_step(problem, mesh, loss_and_gradients, bubble=(stages - 1) / each)
    return replace(made, taken=each / (microbatches + slots - 1))
