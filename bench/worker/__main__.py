"""`python -m bench.worker`: reads a job from stdin, writes events to stdout."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

from bench.protocol import MORE, Event, Job
from bench.worker.block import BlockRun


def main() -> None:
    """Run one job."""
    # Events go to the stdout this process was started with; from here on, whatever libraries
    # and implementations print goes to stderr, on Python's level and below it.
    with os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1) as events:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        job = cast("Job", json.loads(sys.stdin.readline()))

        def emit(event: Event) -> None:
            events.write(json.dumps(event) + "\n")

        def more() -> bool:
            return sys.stdin.readline().strip() == MORE

        with TemporaryDirectory(prefix="lockstep-") as own:
            BlockRun(job, emit, more, Path(job.get("program_cache", own))).run()
    # Everything is said. A thread that an implementation left behind would keep the process alive,
    # and a library that crashes while it is unloaded would cost what was measured.
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
