"""Zero-bubble pipeline (ZB-H1): gradients of weights wait until a stage would be idle.

As in pipeline_1f1b, a device along `pipe` holds a run of blocks and passes microbatches on, but the
backward pass is two: B computes the gradient of a stage's input, for which the stage before waits,
and W those of its weights, for which none waits (Qi et al. 2023, https://arxiv.org/abs/2401.10241).
A slot is F (forward), B, W or idle. With S stages and M microbatches, a stage is idle in S - 1 of
3 M + S - 1 slots: if F, B and W take equally long, the bubble is (S - 1) / (3 M + S - 1), a third
of 1F1B's. At most S microbatches are between F and W, and their activations are saved.
In each slot, one ppermute passes activations on and one gradients back, even if none are due. The
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


def schedule(stages: int, count: int) -> list[list[tuple[int, int]]]:
    """Return the pass and the microbatch of each stage in each slot."""
    done, slots = [[0, 0, 0] for _ in range(stages)], []
    while done[0][W] < count:
        slots.append([(IDLE, 0)] * stages)
        before = [count, *(own[F] for own in done)]
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
    stages, count = mesh.shape["pipe"], problem.microbatches
    slots, scale = schedule(stages, count), 1 / (count * mesh.shape["data"])
    chain, pairs = pipelines.chain_on(problem, mesh), [(i, i + 1) for i in range(stages - 1)]

    def loss_and_gradients(params: tuple[Params, Params], batch: Batch) -> tuple[Any, Any]:
        """Return this stage's terms of the mean loss and of its gradients."""
        stage, parts = jax.lax.axis_index("pipe"), pipelines.into_microbatches(batch, count)
        ends, blocks = params[0], at(params[1], (0, 0))

        def first(ends: Params, number: jax.Array) -> jax.Array:
            return chain.first(ends, at(parts, number))

        def last(ends: Params, y: jax.Array, number: jax.Array) -> jax.Array:
            return chain.last(ends, y, at(parts, number)) * scale

        def forward(now: dict[str, Any], number: jax.Array) -> Any:
            x = jnp.where(stage == 0, first(ends, number), at(now["x"], number % stages))
            y, kept = run.forward(blocks, x)
            of_last = partial(jax.value_and_grad(last, (0, 1)), ends, y, number)
            loss, (of_ends, of_y) = run_if(stage == stages - 1, of_last)
            return {"kept": kept, "of_y": of_y}, {"loss": loss, "of_ends": of_ends}, {"sent": y}

        def of_input(now: dict[str, Any], number: jax.Array) -> Any:
            kept, of_y = at((now["kept"], now["of_y"]), number % stages)
            of_x, more = run.of_input(blocks, kept, of_y)
            of_first = jax.vjp(partial(first, number=number), ends)[1]
            of_ends = run_if(stage == 0, lambda: of_first(of_x)[0])
            return {"more": more}, {"of_ends": of_ends}, {"returned": of_x}

        def of_weights(now: dict[str, Any], number: jax.Array) -> Any:
            kept, more = at((now["kept"], now["more"]), number % stages)
            return {}, {"of_blocks": run.of_params(blocks, kept, more)}, {}

        def slot(now: dict[str, Any], row: jax.Array) -> tuple[dict[str, Any], None]:
            does, number = row[stage]
            # A switch would copy all of `now` in each slot. Places beyond the last are dropped.
            for this, run_pass in zip((F, B, W), (forward, of_input, of_weights), strict=True):
                stored, added, passed = run_if(does == this, partial(run_pass, now, number))
                now = put(now, jnp.where(does == this, number % stages, stages), **stored)
                now = add(now, **added) | passed
            x = jax.lax.ppermute(now["sent"], "pipe", pairs)
            of_y = jax.lax.ppermute(now["returned"], "pipe", [(j, i) for i, j in pairs])
            (before, i), (after, j) = row[stage - 1], row[(stage + 1) % stages]
            now = put(now, jnp.where((before == F) & (stage > 0), i % stages, stages), x=x)
            came = (after == B) & (stage < stages - 1)
            return put(now, jnp.where(came, j % stages, stages), of_y=of_y), None

        x = zeros_for(jax.eval_shape(first, ends, stage))
        run = over_run(split_backward(chain.block, at(blocks, 0), x))
        _, kept = jax.eval_shape(run.forward, blocks, x)
        _, more = jax.eval_shape(run.of_input, blocks, kept, x)
        loss, sums = jax.eval_shape(lambda: (last(ends, x, stage), params))
        start = {"loss": loss, "of_ends": sums[0], "of_blocks": sums[1], "sent": x, "returned": x}
        start = jax.tree.map(zeros_for, start)
        places = {"x": x, "of_y": x, "kept": kept, "more": more}
        start |= jax.tree.map(lambda x: jnp.stack([zeros_for(x)] * stages), places)
        done, _ = jax.lax.scan(slot, start, jnp.array(slots))
        return done["loss"], (done["of_ends"], done["of_blocks"])

    bubble = (stages - 1) / (3 * count + stages - 1)
    return pipelines.pipeline_step(problem, mesh, loss_and_gradients, bubble=bubble)
