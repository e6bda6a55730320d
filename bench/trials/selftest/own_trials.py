"""Lockstep's own trials, in a worker process: the real clock on planted steps.

`python -m bench.trials.selftest.own_trials` reads a TrialJob from stdin. To stdout it writes the
rows of `trial_rows`, one a line, without the load and the number of the process.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, TypedDict

import jax
import jax.numpy as jnp
import pandas as pd

from bench.analyse.sample_rounds import Rounds
from bench.records.rows import Turn
from bench.trials.selftest.planted_step import planted_step
from bench.trials.selftest.trial_rows import BASE, ROUNDS, SLOWDOWNS
from bench.worker.read.compilation import CompilationLog
from bench.worker.time.clock import WARM_UP_STEPS, Arm, measure, steps_per_span

OVERHEAD_STEPS = 1000
OVERHEAD_ROUNDS = 100


class TrialJob(TypedDict):
    """The work of one process."""

    library: str
    """Path of the library that `planted_kernel.build_ffi` compiles."""
    iterations: dict[str, int]
    """Iterations of each arm's step, by arm."""
    trials: int
    seconds: float
    """Duration of the rounds of a trial."""
    seed: int


class Measured(NamedTuple):
    """The samples of all rounds."""

    turns: list[Turn]
    wall_s: float
    """Duration of the rounds and everything between them."""
    inside_s: float
    """Time within timed or wash-out steps."""


def planted_arms(job: TrialJob) -> list[Arm]:
    """One compiled arm for each number of iterations."""
    return [
        _warm(Arm(name, *planted_step(Path(job["library"]), iterations)))
        for name, iterations in job["iterations"].items()
    ]


def empty_arms() -> list[Arm]:
    """Arms whose step does nothing, to time the loop of the clock and the call of a function.

    They have no state, so that nothing is dispatched to a device.
    """
    loss = jnp.zeros(()).block_until_ready()

    def step(state: None, _: None) -> tuple[None, jax.Array]:
        return state, loss

    return [_warm(Arm(name, step, None, None)) for name in ("one", "other")]


def _warm(arm: Arm) -> Arm:
    for _ in range(WARM_UP_STEPS):
        arm.run(1)
    return arm


def _measure(arms: list[Arm], rounds: int, steps: int, seed: int) -> Measured:
    with CompilationLog() as log:
        start = time.perf_counter()
        turns, compiled = measure(arms, rounds, steps, seed, log, lambda _: True)
        wall_s = time.perf_counter() - start
    if compiled:
        raise RuntimeError(f"planted steps compiled while they were timed: {compiled}")
    inside_ns = sum(t["throughput_ns"] + t["latency_ns"] + t["wash_out_ns"] for t in turns)
    return Measured(turns, wall_s, inside_ns / 1e9)


def trial(arms: list[Arm], job: TrialJob, number: int) -> dict[str, Any]:
    """Run one trial."""
    # Every trial is calibrated anew, as in a worker that has just started.
    steps = steps_per_span(arms, ROUNDS, job["seconds"])
    turns, wall_s, inside_s = _measure(arms, ROUNDS, steps, 1000 * job["seed"] + number)
    rounds = Rounds.of(pd.DataFrame(turns).assign(attempt="", launch=0))
    log_ratios = {
        arm: [round(float(value), 6) for value in rounds.log_ratios(arm, BASE)[0]]
        for arm in SLOWDOWNS
    }
    return {
        "kind": "own", "number": number, "steps": turns[0]["steps"],
        "wall_s": wall_s, "inside_s": inside_s, "log_ratios": log_ratios,
    }  # fmt: skip


def overhead() -> dict[str, Any]:
    """Measure the cost of the clock with steps that do nothing."""
    arms = empty_arms()
    turns, wall_s, inside_s = _measure(arms, OVERHEAD_ROUNDS, OVERHEAD_STEPS, 0)
    steps = 1 + turns[0]["steps"] + turns[0]["latency_steps"]
    return {
        "kind": "overhead",
        "call_ns": call_ns(arms[0]),
        "throughput_ns": median(turn["throughput_ns"] / turn["steps"] for turn in turns),
        "latency_ns": median(turn["latency_ns"] / turn["latency_steps"] for turn in turns),
        "untimed_ns": 1e9 * (wall_s - inside_s) / len(turns) / steps,
    }


def call_ns(arm: Arm) -> float:
    """Nanoseconds of one call of the step in a bare loop: the median of several loops."""
    step, state, batch = arm.step, arm.state, arm.batch
    times = []
    for _ in range(OVERHEAD_ROUNDS):
        start = time.perf_counter_ns()
        for _ in range(OVERHEAD_STEPS):
            step(state, batch)
        times.append((time.perf_counter_ns() - start) / OVERHEAD_STEPS)
    return median(times)


def main() -> None:
    """Run one job."""
    with os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1) as rows:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        job: TrialJob = json.load(sys.stdin)
        arms = planted_arms(job)
        for number in range(job["trials"]):
            rows.write(json.dumps(trial(arms, job, number)) + "\n")
        rows.write(json.dumps(overhead()) + "\n")


if __name__ == "__main__":
    main()
