"""Checks of an arm's steps: their work is done when their outputs are ready, and they still train.

No clock sees work that continues after a span. Steps on NaNs and infinities may run at another
speed than steps on finite numbers, and a step whose loss grows without bound no longer does what
the gate proved. Arms train on one batch repeatedly, so a right step's loss falls, or stays at the
best that the model can reach.
"""

import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp

from bench.records.host import shown
from bench.records.messages import UNFINISHED
from bench.records.numbers import count
from bench.worker import process_exchange
from bench.worker.prove.failures import WrongStepError
from bench.worker.time.clock import MAX_STEPS, Arm

SPAN_S = 0.2
"""Shortest duration of a span in seconds, so that late work takes long as well."""

GRACE_S = 0.05
"""Threads of XLA's pool spin for some milliseconds before they sleep, and for tens of milliseconds
where cores are contended. CPU time in this period is not late work."""

WATCH_S = 0.05
WATCHED_S = 0.8
PATIENCE_S = 5.0
IDLE_SHARE = 0.05
IDLE_TIMES = 2
SETTLED_TIMES = 6
"""After the grace period a process is watched in intervals of WATCH_S, for at most WATCHED_S, until
it uses less than IDLE_SHARE of a core in IDLE_TIMES consecutive intervals, at whose ends no thread
is waiting for a core. Where one is, time without a core does not count, up to PATIENCE_S: on a busy
host, late work is slow. Once an arm is known to work late, SETTLED_TIMES intervals are needed."""

LATE_SHARE = 0.4
"""Most late work that is allowed, as a share of SPAN_S, or of the step's own time if that is
longer. It is not a share of the measured span, because another program that slows the span down
would hide late work. CPU time counts rather than wall time, because on a busy host right steps also
wait long, but use a few milliseconds of CPU time at most."""

REPEATS = 3
SETTLE_S = 5.0
ENDLESS = f", and still work {SETTLE_S:g} s later"
GLANCE_S = (0.01, 0.02)
"""Seconds of the pause before a glance, and of the glance."""

FACTOR = 10.0
"""A loss diverges at this multiple of the first loss. To cover losses of any sign, the limit is a
rise by `FACTOR - 1` times the first loss's absolute value. A first loss of 0 sets no limit."""


def is_late() -> bool:
    """Glance at whether any process still works. That is no proof: XLA's threads may spin."""
    time.sleep(GLANCE_S[0])
    cpu = time.process_time()
    time.sleep(GLANCE_S[1])
    works = time.process_time() - cpu > LATE_SHARE * GLANCE_S[1] or _waits_for_a_core()
    return any(process_exchange.gather(works))


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
    more = ENDLESS if any(process_exchange.gather(settle(arm))) else ""
    raise WrongStepError(f"{UNFINISHED}: {next(filter(None, late))}{more}")


def settle(arm: Arm) -> bool:
    """Wait until the process is idle, SETTLE_S at most; return whether it still works then."""
    end = time.monotonic() + SETTLE_S
    for _ in watch(arm, SETTLE_S, SETTLED_TIMES):
        pass
    return time.monotonic() >= end


def watch(arm: Arm, seconds: float, times: int, patience_s: float = 0.0) -> Iterator[float]:
    """Yield the CPU seconds of this process and the arm's own processes in each WATCH_S.

    The intervals end after `seconds`, or once `times` consecutive ones were idle. Time that threads
    wait for a core does not count, up to `patience_s`.
    """
    end, idle = time.monotonic() + seconds, 0
    while time.monotonic() < end and idle < times:
        start, cpu = time.perf_counter(), time.process_time() + arm.children_cpu_s()
        time.sleep(WATCH_S)
        used_s = time.process_time() + arm.children_cpu_s() - cpu
        took_s, waits = time.perf_counter() - start, _waits_for_a_core()
        idle = idle + 1 if used_s < IDLE_SHARE * took_s and not waits else 0
        waited_s = min(patience_s, max(0.0, took_s - used_s)) if waits else 0.0
        patience_s, end = patience_s - waited_s, end + waited_s
        yield used_s


def _waits_for_a_core() -> bool:
    """Whether another thread of this process could run now; False where the system does not say."""
    own = str(threading.get_native_id())
    others = (task for task in Path("/proc/self/task").glob("*") if task.name != own)
    states = (shown(task / "stat").rpartition(")")[2].split() for task in others)
    return any(state[:1] == ["R"] for state in states)


def late_work(arm: Arm, steps: int, allowed_s: float) -> str:
    """Run a span; describe the work that continues after its outputs are ready, or return ""."""
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
    for more_s in watch(arm, WATCHED_S, IDLE_TIMES, PATIENCE_S):
        used_s += more_s
        if used_s > allowed_s:
            return f"after {steps} steps its threads still used {used_s:.2f} s of CPU time"
    return ""


def why_diverged(arm: Arm, first: float) -> str:
    """Describe what is wrong with an arm's losses so far; empty if nothing is.

    `first` is the loss before the first update.
    """
    useless = f"its times, of {arm.steps} steps in all, are not those of a step that trains"
    for steps, loss in arm.losses:
        # A step may keep its loss in the state and donate it; the last loss always exists.
        if loss.is_deleted():
            continue
        value = float(loss)
        if not math.isfinite(value):
            return f"the loss is {value} after {count(steps, 'step')}: {useless}"
        if first and value - first > (FACTOR - 1) * abs(first):
            return (
                f"the loss diverges: {value:.3g} after {count(steps, 'step')}, and {first:.3g} "
                f"before the first: {useless}"
            )
    return ""


def diverged(arms: Sequence[Arm], first: float, found: Mapping[str, str] = {}) -> dict[str, str]:
    """Return the reason for each arm that diverged; if all did, the workload is to blame.

    `found` has reasons from earlier checks by arm, which take precedence.
    """
    whys = {arm.name: why_diverged(arm, first) for arm in arms}
    reasons = {name: found.get(name, why) for name, why in whys.items() if why}
    if len(reasons) == len(arms) > 1:
        note = "; all arms of the block diverge: the workload itself does not train for that long"
        return {name: why + note for name, why in reasons.items()}
    return reasons
