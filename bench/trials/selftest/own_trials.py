"""Lockstep's own trials, in a worker process: the real clock on arms of known truth.

`python -m bench.trials.selftest.own_trials` reads a TrialJob from stdin. It writes JSON to stdout,
one row per line: trials with their samples, and the cost of the clock.
"""

import json
import math
import sys
import time
import timeit
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, TextIO, TypedDict

import jax
import jax.numpy as jnp

from bench.records.cells import Block, BlockText
from bench.records.messages import FIRST_LOOK
from bench.records.rows import Turn
from bench.trials.selftest.planted_kernel import SEED, spin_function
from bench.trials.selftest.real_step import calibrate, real_arms
from bench.worker import event_stream
from bench.worker.read.compilation import CompilationLog
from bench.worker.time.clock import Arm, measure, steps_per_span

ROUNDS = 128
"""Rounds of a trial, if its steps are short enough."""
MOST_ROUNDS = 256

OVERHEAD_STEPS = 1000
OVERHEAD_ROUNDS = 100


class TrialJob(TypedDict):
    """The work of one process."""

    block: BlockText | None
    """The block whose step is timed; None for spin."""
    library: str
    """Path of the library that `planted_kernel.build` compiles."""
    iterations: int
    """Iterations of spin in the base."""
    truths: dict[str, float]
    """True ratio of each arm's time to the base's."""
    trials: int
    """If 0, the process only reports the duration of a step and the relative cost of a product."""
    seconds: float
    """Duration of the rounds of a trial."""
    seed: int


def spin_arms(job: TrialJob) -> list[Arm]:
    """Return arms that spin in this thread, in the same machine code as for every other tool."""
    spin, done = spin_function(Path(job["library"])), jnp.zeros(()).block_until_ready()

    def step(state: float, iterations: int) -> tuple[float, jax.Array]:
        return spin(iterations, state), done

    iterations = {arm: round(job["iterations"] * truth) for arm, truth in job["truths"].items()}
    return [Arm(arm, step, SEED, count).warm_up() for arm, count in iterations.items()]


def _measure(
    arms: list[Arm], rounds: int, steps: int, seed: int, seconds: float
) -> tuple[list[Turn], float, float]:
    """Measure until the time is over, but at least up to the first look.

    Return the turns, the seconds that they took, and those within timed or wash-out steps.
    """
    with CompilationLog() as log:
        start = time.perf_counter()

        def arms_to_continue(turns: list[Turn]) -> list[str] | None:
            done = turns[-1]["round"] + 1
            late = done >= FIRST_LOOK and time.perf_counter() > start + seconds
            return [] if late or done == rounds else None

        turns, compiled = measure(arms, steps, seed, log, arms_to_continue)
        wall_s = time.perf_counter() - start
    if compiled:
        raise RuntimeError(f"steps compiled while they were timed: {compiled}")
    inside_ns = sum(t["throughput_ns"] + t["latency_ns"] + t["wash_out_ns"] for t in turns)
    return turns, wall_s, inside_ns / 1e9


def overhead() -> dict[str, Any]:
    """Return the row of the clock's cost, measured with steps that do nothing.

    They have no state, so nothing is dispatched to a device.
    """
    loss = jnp.zeros(()).block_until_ready()

    def step(state: None, _: None) -> tuple[None, jax.Array]:
        return state, loss

    arms = [Arm(name, step, None, None).warm_up() for name in ("one", "other")]
    bare_s = timeit.repeat(
        "step(None, None)", repeat=OVERHEAD_ROUNDS, number=OVERHEAD_STEPS, globals={"step": step}
    )
    turns, wall_s, inside_s = _measure(arms, OVERHEAD_ROUNDS, OVERHEAD_STEPS, 0, math.inf)
    steps = 1 + turns[0]["steps"] + turns[0]["latency_steps"]
    return {
        "kind": "overhead",
        "call_ns": 1e9 * median(bare_s) / OVERHEAD_STEPS,
        "throughput_ns": median(turn["throughput_ns"] / turn["steps"] for turn in turns),
        "untimed_ns": 1e9 * (wall_s - inside_s) / len(turns) / steps,
    }


def rows(job: TrialJob) -> Iterator[dict[str, Any]]:
    """Do a job and yield its rows."""
    block = Block.of(job["block"]) if job["block"] else None
    arms = real_arms(block, job["truths"]) if block else spin_arms(job)
    for number in range(job["trials"]):
        # Every trial is calibrated anew, as in a newly started worker.
        steps, seed = steps_per_span(arms, ROUNDS, job["seconds"]), 1000 * job["seed"] + number
        turns, wall_s, inside_s = _measure(arms, MOST_ROUNDS, steps, seed, job["seconds"])
        row = {"kind": "own", "number": number, "wall_s": wall_s, "inside_s": inside_s}
        yield row | {"turns": turns}
    if job["trials"]:
        yield overhead()
    else:
        step_s = median(arms[0].run(1) for _ in range(OVERHEAD_ROUNDS)) / 1e9
        yield {"step_s": step_s, "product": calibrate(arms[0])}


def main(answer: TextIO) -> None:
    """Read a job from stdin and write its rows to `answer`."""
    answer.writelines(json.dumps(row) + "\n" for row in rows(json.load(sys.stdin)))


if __name__ == "__main__":
    event_stream.run(main)
