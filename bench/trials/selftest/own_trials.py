"""Lockstep's own trials, in a worker process: the real clock on planted steps.

`python -m bench.trials.selftest.own_trials` reads a TrialJob from stdin and writes TrialEvents to
stdout, one a line.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Literal, TypedDict

import jax
import jax.numpy as jnp

from bench.records.rows import Turn
from bench.trials.selftest.planted_step import planted_step
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
    rounds: int
    """Rounds of a trial."""
    seconds: float
    """Duration of the rounds of a trial."""
    seed: int


class TrialEvent(TypedDict):
    """The samples of a trial, or of steps that do nothing."""

    event: Literal["trial", "overhead"]
    number: int
    turns: list[Turn]
    wall_s: float
    """Duration of all rounds and everything between them."""
    call_ns: float
    """Duration of a call of the step that does nothing, without a clock; 0 for a trial."""


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


def _timed(
    event: Literal["trial", "overhead"],
    arms: list[Arm],
    rounds: int,
    steps: int,
    seed: int = 0,
    number: int = 0,
) -> TrialEvent:
    with CompilationLog() as log:
        start = time.perf_counter()
        turns, compiled = measure(arms, rounds, steps, seed, log, lambda _: True)
        wall_s = time.perf_counter() - start
    if compiled:
        raise RuntimeError(f"planted steps compiled while they were timed: {compiled}")
    return TrialEvent(event=event, number=number, turns=turns, wall_s=wall_s, call_ns=0.0)


def call_ns(arm: Arm) -> float:
    """Nanoseconds of one call of the step in a bare loop: the median of several loops."""
    step, state, batch = arm.step, arm.state, arm.batch
    times = []
    for _ in range(OVERHEAD_ROUNDS):
        start = time.perf_counter_ns()
        for _ in range(OVERHEAD_STEPS):
            step(state, batch)
        times.append((time.perf_counter_ns() - start) / OVERHEAD_STEPS)
    return statistics.median(times)


def main() -> None:
    """Run one job."""
    with os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1) as events:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        job: TrialJob = json.load(sys.stdin)
        arms = planted_arms(job)
        for number in range(job["trials"]):
            # Every trial is calibrated anew, as in a worker that has just started.
            steps = steps_per_span(arms, job["rounds"], job["seconds"])
            seed = 1000 * job["seed"] + number
            event = _timed("trial", arms, job["rounds"], steps, seed, number)
            events.write(json.dumps(event) + "\n")
        empty = empty_arms()
        event = _timed("overhead", empty, OVERHEAD_ROUNDS, OVERHEAD_STEPS)
        events.write(json.dumps({**event, "call_ns": call_ns(empty[0])}) + "\n")


if __name__ == "__main__":
    main()
