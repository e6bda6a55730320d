"""Profiler traces, in a pass of their own: a traced step is never a timed one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax

from bench.worker.clock import Arm


def trace(arm: Arm, logdir: Path, run: str, steps: int) -> None:
    """Record `steps` steps, each waited for, as the TensorBoard run named `run`.

    TensorBoard lists a trace under <folders>/<session>, so the run's last part is the session.
    """
    folder, _, session = run.rpartition("/")
    options: Any = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # most of a trace's size, and none of its device time
    options.session_id = session
    with jax.profiler.trace(str(logdir / folder), profiler_options=options):
        for number in range(steps):
            with jax.profiler.StepTraceAnnotation(arm.name, step_num=number):
                arm.run(1)
