"""Is a step's work done when its outputs are ready? A clock cannot see what is not waited for."""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp

from bench.worker.clock import Arm
from bench.worker.gate import WrongStepError

LATE_SHARE = 0.25
"""Late work beyond this share of the step's own time is refused. Threads that spin for a moment
before they sleep, and clocks of a millisecond, stay far below it."""

REPEATS = 3
SHORTEST_S, LONGEST_S = 0.02, 0.2
"""Bounds of the time that an arm is watched for, once it says that it is done."""


def check_completion(arm: Arm) -> None:
    """Check that an arm does nothing any more once its outputs are ready.

    Work is found in two ways: devices that are slow to answer afterwards still have some queued;
    CPU time that this process uses while it should be idle is a thread that goes on. The smallest
    of several findings counts, so that a disturbance does not convict anybody.

    Raises:
      WrongStepError: work goes on after the outputs are ready.
    """
    step_ns = min(arm.run(1) for _ in range(REPEATS))
    steps = max(1, int(SHORTEST_S * 1e9 / step_ns))
    late = min(_late_share(arm, steps) for _ in range(REPEATS))
    if late > LATE_SHARE:
        raise WrongStepError(
            f"the step returns before its work is done: after its outputs were ready, work of "
            f"{late:.0%} of its time went on"
        )


def _late_share(arm: Arm, steps: int) -> float:
    """Late work of a span, as a share of the time it is watched for."""
    span_s = arm.run(steps) / 1e9
    start, cpu = time.perf_counter(), time.process_time()
    jax.effects_barrier()
    for device in jax.local_devices():
        jax.device_put(jnp.zeros(()), device).block_until_ready()
    queued_s = time.perf_counter() - start
    watched_s = min(max(span_s, SHORTEST_S), LONGEST_S)
    time.sleep(watched_s)
    going_on_s = time.process_time() - cpu
    return max(queued_s, going_on_s) / max(span_s, watched_s)
