"""`python -m bench.worker`: reads a job from stdin, writes events to stdout."""

from __future__ import annotations

import json
import os
import sys
import traceback
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from bench.protocol import MORE, Event, Job, TellEvent
from bench.worker import peers
from bench.worker.block import BlockRun


def main() -> None:
    """Run one job."""
    # Events go to the stdout this process was started with; from here on, whatever libraries
    # and implementations print goes to stderr, on Python's level and below it.
    with os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1) as events:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        job = cast("Job", json.loads(sys.stdin.readline()))

        def exchange(value: Any) -> list[Any]:
            events.write(json.dumps(TellEvent(event="tell", value=value)) + "\n")
            return cast("list[Any]", json.loads(sys.stdin.readline()))

        if "place" in job:
            peers.join(job["place"], exchange)
        # Rank 0 speaks for all. The others show that they are alive, and what they fail at.
        told = None if peers.is_main() else {"phase", "cell"}

        def emit(event: Event) -> None:
            if told is None or event["event"] in told:
                events.write(json.dumps(event) + "\n")

        def more() -> bool:
            return sys.stdin.readline().strip() == MORE

        # A worker that is killed leaves no folder behind: where launches share one, it makes none.
        shared = job.get("program_cache")
        with nullcontext(shared) if shared else TemporaryDirectory(prefix="lockstep-") as programs:
            BlockRun(job, emit, more, Path(programs)).run()
        peers.leave()


if __name__ == "__main__":
    code = 1
    try:
        main()
        code = 0
    except BaseException:  # noqa: BLE001 - sys.exit in a step is its failure too
        traceback.print_exc()
    # Everything is said. A thread that an implementation left behind would keep the process alive,
    # and a library that crashes while it is unloaded would cost what was measured.
    sys.stderr.flush()
    os._exit(code)
