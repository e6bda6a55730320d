"""`python -m bench.worker`: reads a job from stdin, writes events to stdout."""

from __future__ import annotations

import json
import os
import sys
from typing import cast

import jax

from bench.protocol import Event, Job
from bench.worker.block import BlockRun


def main() -> None:
    """Run one job."""
    # Events go to the stdout this process was started with; from here on, whatever libraries
    # and implementations print goes to stderr, on Python's level and below it.
    with os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1) as events:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        job = cast("Job", json.load(sys.stdin))
        if "cache_dir" in job:
            jax.config.update("jax_compilation_cache_dir", job["cache_dir"])
            jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)

        def emit(event: Event) -> None:
            events.write(json.dumps(event) + "\n")

        BlockRun(job, emit).run()


if __name__ == "__main__":
    main()
