"""Lockstep's own trials, in a worker process: the real clock on planted steps.

`python -m bench.trials.selftest.own_trials` reads a TrialJob from stdin
and writes TrialEvents to stdout, one a line.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
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
    """What one process is to do."""

    library: str
    """As `bench.trials.selftest.planted_kernel.build_ffi` makes it."""
    iterations: dict[str, int]
    """Of each arm's step, by its name."""
    trials: int
    rounds: int
    """Rounds of a trial."""
    seconds: float
    """Time that a trial's rounds take."""
    seed: int


class TrialEvent(TypedDict):
    """The samples of a trial, or what the clock costs."""

    event: Literal["trial", "overhead"]
    number: int
    turns: list[Turn]
    wall_s: float
    """Of all rounds, with everything between them."""
    call_ns: float
    """Calling the step that does nothing, without a clock; 0 for a trial."""


def warm(arm: Arm) -> Arm:
    """An arm that has compiled."""
    for _ in range(WARM_UP_STEPS):
        arm.run(1)
    return arm


def planted_arms(job: TrialJob) -> list[Arm]:
    """One arm for each number of iterations."""
    return [
        warm(Arm(name, *planted_step(Path(job["library"]), iterations)))
        for name, iterations in job["iterations"].items()
    ]


def empty_arms() -> list[Arm]:
    """Arms whose step does nothing: what is timed is the clock's own loop, and calling a function.

    They keep no state, so that nothing is dispatched to a device.
    """
    loss = jnp.zeros(()).block_until_ready()

    def step(state: None, _: None) -> tuple[None, jax.Array]:
        return state, loss

    return [warm(Arm(name, step, None, None)) for name in ("one", "other")]


def timed(
    event: Literal["trial", "overhead"],
    number: int,
    run: Callable[[CompilationLog], tuple[list[Turn], dict[str, int]]],
) -> TrialEvent:
    """Run rounds and time them from outside."""
    with CompilationLog() as log:
        start = time.perf_counter()
        turns, compiled = run(log)
        wall_s = time.perf_counter() - start
    if compiled:
        raise RuntimeError(f"planted steps compiled while they were timed: {compiled}")
    return TrialEvent(event=event, number=number, turns=turns, wall_s=wall_s, call_ns=0.0)


def call_ns(arm: Arm) -> float:
    """Nanoseconds of a bare loop of calls, a call: the median of several loops."""
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
            # Calibrated anew, as a worker of a run is that has just started.
            steps = steps_per_span(arms, job["rounds"], job["seconds"])
            seed = 1000 * job["seed"] + number
            event = timed(
                "trial",
                number,
                lambda log, steps=steps, seed=seed: measure(  # type: ignore[misc]
                    arms, job["rounds"], steps, seed, log, lambda _: True
                ),
            )
            events.write(json.dumps(event) + "\n")
        empty = empty_arms()
        event = timed(
            "overhead",
            0,
            lambda log: measure(empty, OVERHEAD_ROUNDS, OVERHEAD_STEPS, 0, log, lambda _: True),
        )
        events.write(json.dumps(event | {"call_ns": call_ns(empty[0])}) + "\n")


if __name__ == "__main__":
    main()
