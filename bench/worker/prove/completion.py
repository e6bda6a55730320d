"""Checks that a step's work is done when its outputs are ready: no clock sees later work."""

import time
from collections.abc import Iterator

import jax
import jax.numpy as jnp

from bench.worker import process_exchange
from bench.worker.prove.failures import WrongStepError
from bench.worker.time.clock import MAX_STEPS, Arm

SPAN_S = 0.2
"""Seconds that a span takes at least, so that late work takes long as well."""

GRACE_S = 0.05
"""Threads of XLA's pool spin for some milliseconds before they sleep, and for tens of milliseconds
where cores are contended. CPU time in this period is not late work."""

WATCH_S = 0.05
WATCHED_S = 0.8
IDLE_SHARE = 0.05
IDLE_TIMES = 2
SETTLED_TIMES = 6
"""After the grace period a process is watched in intervals of WATCH_S, for at most WATCHED_S, until
it uses less than IDLE_SHARE of a core in IDLE_TIMES consecutive intervals. A single interval does
not suffice, because a thread may be waiting for a core. Once an arm is known to work late, it takes
SETTLED_TIMES."""

LATE_SHARE = 0.4
"""Most late work that is allowed, as a share of SPAN_S, or of the step's own time if that is
longer. It is not a share of the measured span, because another program that slows the span down
would hide late work. CPU time counts rather than wall time, because on a busy host right steps also
wait long, but use a few milliseconds of CPU time at most."""

REPEATS = 3
SETTLE_S = 30.0


GLANCE_S = (0.01, 0.02)
"""Seconds of the pause before a glance, and of the glance."""


def is_late() -> bool:
    """Glance at whether this process still works. That is not proof: XLA's threads may spin."""
    time.sleep(GLANCE_S[0])
    cpu = time.process_time()
    time.sleep(GLANCE_S[1])
    return any(process_exchange.gather(time.process_time() - cpu > LATE_SHARE * GLANCE_S[1]))


def check_completion(arm: Arm) -> None:
    """Raise WrongStepError if an arm still works once its outputs are ready.

    Late work shows in two ways: devices that respond slowly afterwards still have work queued, and
    a process that uses CPU time while it should be idle has a thread that continues. One clean span
    passes an arm, so that no arm is refused because of a disturbance.
    """
    step_s = min(arm.run(1) for _ in range(REPEATS)) / 1e9
    steps = process_exchange.from_main(max(1, min(MAX_STEPS, int(SPAN_S / step_s))))
    allowed_s = LATE_SHARE * max(SPAN_S, step_s)
    for _ in range(REPEATS):
        late = process_exchange.gather(late_work(arm, steps, allowed_s))
        if not any(late):
            return
    settle(arm)
    raise WrongStepError(f"the step returns before its work is done: {next(filter(None, late))}")


def settle(arm: Arm) -> None:
    """Wait until the process is idle, so that one arm's late work does not count against the next.

    After SETTLE_S this gives up; the next arms then run beside that work and are likely refused.
    """
    for _ in watch(arm, SETTLE_S, SETTLED_TIMES):
        pass


def watch(arm: Arm, seconds: float, times: int) -> Iterator[float]:
    """Yield CPU seconds of this process and the arm's own in each interval of WATCH_S.

    This ends after so many seconds, or once `times` consecutive intervals were idle.
    """
    end, idle = time.monotonic() + seconds, 0
    while time.monotonic() < end and idle < times:
        start, cpu = time.perf_counter(), time.process_time() + arm.children_cpu_s()
        time.sleep(WATCH_S)
        used_s = time.process_time() + arm.children_cpu_s() - cpu
        idle = idle + 1 if used_s < IDLE_SHARE * (time.perf_counter() - start) else 0
        yield used_s


def late_work(arm: Arm, steps: int, allowed_s: float) -> str:
    """Describe the work after the outputs of a span are ready; empty if there is none."""
    arm.run(steps)
    start, cpu = time.perf_counter(), time.process_time()
    jax.effects_barrier()
    for device in jax.local_devices():
        jax.device_put(jnp.zeros(()), device).block_until_ready()
    queued_s = time.perf_counter() - start
    if jax.default_backend() == "cpu":  # this process does the devices' work
        queued_s = min(queued_s, time.process_time() - cpu)
    if queued_s > allowed_s:
        return f"after {steps} steps the devices were busy for another {queued_s:.2f} s"
    time.sleep(GRACE_S)
    used_s = 0.0
    for more_s in watch(arm, WATCHED_S, IDLE_TIMES):
        used_s += more_s
        if used_s > allowed_s:
            return f"after {steps} steps its threads still used {used_s:.2f} s of CPU time"
    return ""
