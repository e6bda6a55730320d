"""Whether a step's work is done when its outputs are ready: no clock sees what goes on later."""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp

from bench.worker import process_exchange
from bench.worker.prove.failures import WrongStepError
from bench.worker.time.clock import MAX_STEPS, Arm

SPAN_S = 0.2
"""A span takes at least this long, so that late work takes long as well."""

GRACE_S = 0.05
"""Threads of XLA's pool look for more work for some milliseconds before they sleep, and for tens of
them where cores are contended. This is not counted as late work."""

WATCH_S = 0.05
WATCHED_S = 0.4
IDLE_SHARE = 0.05
IDLE_TIMES = 2
"""After the grace period a process is watched in intervals of WATCH_S, for at most WATCHED_S, until
it uses less than IDLE_SHARE of a core in IDLE_TIMES intervals in a row: a thread may have to wait
for its turn."""

LATE_SHARE = 0.4
"""A step is refused if devices answer later than this share of a span, or if the process uses this
share of a span in CPU time while it is watched. CPU time rather than wall time, because threads
look for work for a number of iterations, however long these take on a busy host."""

REPEATS = 3
SETTLE_S = 30.0


def check_completion(arm: Arm) -> None:
    """Check that an arm does nothing any more once its outputs are ready.

    Late work shows in two ways: devices that answer slowly afterwards still have some queued, and a
    process that uses CPU time while it should be idle has a thread that goes on. One clean span
    acquits, so that a disturbance convicts nobody.

    Raises:
      WrongStepError: work goes on after the outputs are ready.
    """
    step_ns = min(arm.run(1) for _ in range(REPEATS))
    steps = process_exchange.from_main(max(1, min(MAX_STEPS, int(SPAN_S * 1e9 / step_ns))))
    for _ in range(REPEATS):
        late = next(filter(None, process_exchange.gather(late_work(arm, steps))), "")
        if not late:
            return
    settle()
    raise WrongStepError(f"the step returns before its work is done: {late}")


def settle() -> None:
    """Wait until this process is idle, so that one arm's late work is not held against the next.

    Gives up after SETTLE_S: the next arms are then measured beside it, and likely refused as well.
    """
    end = time.monotonic() + SETTLE_S
    while time.monotonic() < end and watch()[1] > LATE_SHARE:
        pass


def watch() -> tuple[float, float]:
    """CPU seconds that this process uses in an interval, and their share of a core."""
    start, cpu = time.perf_counter(), time.process_time()
    time.sleep(WATCH_S)
    used_s = time.process_time() - cpu
    return used_s, used_s / (time.perf_counter() - start)


def late_work(arm: Arm, steps: int) -> str:
    """Describe what goes on after the outputs of a span are ready; empty if nothing does."""
    span_s = max(arm.run(steps) / 1e9, SPAN_S)
    start = time.perf_counter()
    jax.effects_barrier()
    for device in jax.local_devices():
        jax.device_put(jnp.zeros(()), device).block_until_ready()
    queued_s = time.perf_counter() - start
    if queued_s > LATE_SHARE * span_s:
        return f"after {steps} steps the devices were busy for another {queued_s:.2f} s"
    time.sleep(GRACE_S)
    used_s, idle = 0.0, 0
    end = time.monotonic() + WATCHED_S
    while time.monotonic() < end and idle < IDLE_TIMES:
        more_s, share = watch()
        used_s += more_s
        idle = idle + 1 if share < IDLE_SHARE else 0
        if used_s > LATE_SHARE * span_s:
            return f"after {steps} steps its threads still used {used_s:.2f} s of CPU time"
    return ""
