"""`python -m bench.worker`: reads a job from stdin and writes events to stdout."""

import os
import sys
from contextlib import nullcontext
from json import JSONDecoder, JSONEncoder
from pathlib import Path
from typing import Any, TextIO, cast

import jax

from bench.records.messages import GATE, Event, Job, TellEvent
from bench.records.temporary_folders import temporary_folder
from bench.worker import event_stream, process_exchange
from bench.worker.block import run_job
from bench.worker.read.compilation import remembered_programs

_encode, _decode = JSONEncoder().encode, JSONDecoder().decode
"""Bound before any file is loaded, because a file could replace the functions of `json`."""


def main(events: TextIO) -> None:
    """Run one job, and write its events."""
    read = os.fdopen(os.dup(sys.stdin.fileno()), closefd=False).readline  # files may close stdin

    def receive() -> Any:
        return _decode(read())

    job: Job = receive()

    def send(event: Event) -> None:
        events.write(_encode({**event, "attempt": job["attempt"]}) + "\n")

    def exchange(value: Any) -> list[Any]:
        send(TellEvent(event="tell", value=value))
        return cast("list[Any]", receive())

    if "place" in job:
        process_exchange.join(job["place"], exchange)
    is_main = process_exchange.is_main()

    def emit(event: Event) -> None:
        # Rank 0 reports for all. The others report only that they are alive, and their failures.
        if is_main or event["event"] in {"phase", "cell"}:
            send(event)

    shared = job.get("program_cache")
    with nullcontext(shared) if shared else temporary_folder() as programs:
        folder = Path(programs)
        with remembered_programs(folder / GATE):  # all but the arms' own, which have other folders
            run_job(job, emit, receive, folder)
    jax.distributed.shutdown()  # so that other processes do not treat the exit as a failure


if __name__ == "__main__":
    event_stream.run(main)
