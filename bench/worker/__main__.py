"""`python -m bench.worker`: reads a job from stdin, writes events to stdout."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TextIO, cast

from bench.records.messages import MORE, Event, Job, TellEvent
from bench.worker import event_stream, process_exchange
from bench.worker.block import run_job


def main(events: TextIO) -> None:
    """Run one job.

    Args:
      events: the stdout that the process was started with.
    """
    job = cast("Job", json.loads(sys.stdin.readline()))

    def exchange(value: Any) -> list[Any]:
        events.write(json.dumps(TellEvent(event="tell", value=value)) + "\n")
        return cast("list[Any]", json.loads(sys.stdin.readline()))

    if "place" in job:
        process_exchange.join(job["place"], exchange)
    # Rank 0 speaks for all. The others show that they are alive, and what they fail at.
    told = None if process_exchange.is_main() else {"phase", "cell"}

    def emit(event: Event) -> None:
        if told is None or event["event"] in told:
            events.write(json.dumps(event) + "\n")

    def more() -> bool:
        return sys.stdin.readline().strip() == MORE

    # A worker that is killed leaves no folder behind: where launches share one, it makes none.
    shared = job.get("program_cache")
    with nullcontext(shared) if shared else TemporaryDirectory(prefix="lockstep-") as programs:
        run_job(job, emit, more, Path(programs))
    process_exchange.leave()


if __name__ == "__main__":
    event_stream.run(main)
