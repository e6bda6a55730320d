"""Zero-bubble pipeline (ZB-H1): gradients of weights wait until a stage would be idle.

As in pipeline_1f1b, a device along `pipe` holds a run of blocks and passes microbatches on, but the
backward pass has two parts: B computes the gradient of a stage's input, for which the stage before
waits, and W those of its weights, for which none waits (Qi et al. 2023,
https://arxiv.org/abs/2401.10241). A slot is F (forward), B, W or idle. With S stages and M
microbatches, a stage is idle in S - 1 of 3 M + S - 1 slots: a third of 1F1B's idle time if F, B and
W take equally long. At most S microbatches are between F and W, and their activations are saved. In
each slot, one ppermute passes activations on and one gradients back, even if none are due. The
batch and the blocks are split, and gradients are reduced, as in pipeline_1f1b.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from bench.contract import Batch, Params, Problem, TrainStep, pipelines
from bench.contract.pipelines import add, at, put, run_if
from bench.contract.split_backward import over_run, split_backward
from bench.contract.varying import zeros_for

F, B, W, IDLE = range(4)


def schedule(stages: int, microbatches: int) -> list[list[tuple[int, int]]]:
    """Return the pass and the microbatch of each stage in each slot."""
    done, slots = [[0, 0, 0] for _ in range(stages)], []
    while done[0][W] < microbatches:
        slots.append([(IDLE, 0)] * stages)
        before = [microbatches, *(own[F] for own in done)]
        after = [*(own[B] for own in done[1:]), done[-1][F]]
        for stage, (f, b, w) in enumerate(map(tuple, done)):
            # As many microbatches ahead as in 1F1B, and nowhere more activations than on stage 0.
            ahead = f < before[stage] and f - b < stages - stage and f - w < stages
            does = F if ahead else B if b < after[stage] else W if w < b else IDLE
            if does != IDLE:
                slots[-1][stage] = does, done[stage][does]
                done[stage][does] += 1
    return slots


def why_unsupported(problem: Problem, mesh: Mesh) -> str | None:
    return pipelines.why_no_pipeline(problem, mesh)


def build(problem: Problem, mesh: Mesh) -> TrainStep:
    stages, microbatches = mesh.shape["pipe"], problem.microbatches
    slots, scale = schedule(stages, microbatches), 1 / (microbatches * mesh.shape["data"])
    chain, onward = pipelines.chain_on(problem, mesh), [(i, i + 1) for i in range(stages - 1)]

    def loss_and_gradients(params: tuple[Params, Params], batch: Batch) -> tuple[Any, Any]:
        """Return this stage's terms of the mean loss and of its gradients."""
        stage, parts = jax.lax.axis_index("pipe"), pipelines.into_microbatches(batch, microbatches)
        ends, blocks = params[0], at(params[1], (0, 0))

        def first(ends: Params, number: jax.Array) -> jax.Array:
            return chain.first(ends, at(parts, number))

        def last(ends: Params, y: jax.Array, number: jax.Array) -> jax.Array:
            return chain.last(ends, y, at(parts, number)) * scale

        def forward(now: dict[str, Any], number: jax.Array) -> Any:
            x = jnp.where(stage == 0, first(ends, number), at(now["x"], number % stages))
            y, residuals = run.forward(blocks, x)
            value_and_grad = partial(jax.value_and_grad(last, (0, 1)), ends, y, number)
            loss, (d_ends, d_y) = run_if(stage == stages - 1, value_and_grad)
            return {"residuals": residuals, "d_y": d_y}, {"loss": loss, "d_ends": d_ends}, {"y": y}

        def backward_input(now: dict[str, Any], number: jax.Array) -> Any:
            residuals, d_y = at((now["residuals"], now["d_y"]), number % stages)
            d_x, more = run.backward_input(blocks, residuals, d_y)
            _, transposed = jax.vjp(partial(first, number=number), ends)
            d_ends = run_if(stage == 0, lambda: transposed(d_x)[0])
            return {"more_residuals": more}, {"d_ends": d_ends}, {"d_x": d_x}

        def backward_weights(now: dict[str, Any], number: jax.Array) -> Any:
            saved = at((now["residuals"], now["more_residuals"]), number % stages)
            return {}, {"d_blocks": run.backward_weights(blocks, *saved)}, {}

        def slot(now: dict[str, Any], row: jax.Array) -> tuple[dict[str, Any], None]:
            does, number = row[stage]
            # A switch would copy all of `now` in each slot. Places beyond the last are dropped.
            for this, run_pass in {F: forward, B: backward_input, W: backward_weights}.items():
                stored, added, sent = run_if(does == this, partial(run_pass, now, number))
                now = put(now, jnp.where(does == this, number % stages, stages), **stored)
                now = add(now, **added) | sent
            x = jax.lax.ppermute(now["y"], "pipe", onward)
            d_y = jax.lax.ppermute(now["d_x"], "pipe", [(j, i) for i, j in onward])
            (before, i), (after, j) = row[stage - 1], row[(stage + 1) % stages]
            has_x, has_d_y = (before == F) & (stage > 0), (after == B) & (stage < stages - 1)
            now = put(now, jnp.where(has_x, i % stages, stages), x=x)
            return put(now, jnp.where(has_d_y, j % stages, stages), d_y=d_y), None

        x = zeros_for(jax.eval_shape(first, ends, stage))
        run = over_run(split_backward(chain.block, at(blocks, 0), x))
        _, residuals = jax.eval_shape(run.forward, blocks, x)
        _, more = jax.eval_shape(run.backward_input, blocks, residuals, x)
        loss, sums = jax.eval_shape(lambda: (last(ends, x, stage), params))
        start = {"loss": loss, "d_ends": sums[0], "d_blocks": sums[1], "y": x, "d_x": x}
        start = jax.tree.map(zeros_for, start)
        places = {"x": x, "d_y": x, "residuals": residuals, "more_residuals": more}
        start |= jax.tree.map(lambda x: jnp.stack([zeros_for(x)] * stages), places)
        done, _ = jax.lax.scan(slot, start, jnp.array(slots))
        return done["loss"], (done["d_ends"], done["d_blocks"])

    bubble = (stages - 1) / (3 * microbatches + stages - 1)
    return pipelines.pipeline_step(problem, mesh, loss_and_gradients, bubble=bubble, taken=1 / 3)
