"""How a cell ends whose implementation raised something. It may raise anything, sys.exit too."""

from __future__ import annotations

import traceback
from pathlib import Path

from bench.records.printable import readable
from bench.records.statuses import Status
from bench.worker.prove.gate import WrongStepError

Ended = tuple[Status, str]
"""How a cell ended that has no time, and why."""


class UnsupportedError(Exception):
    """An implementation cannot run this; the message is its reason."""


def failure(error: BaseException) -> Ended:
    """How a cell ends that raised, and why, on one line or a few."""
    text = readable(str(error).strip())
    if isinstance(error, WrongStepError):
        return "wrong", text
    if isinstance(error, UnsupportedError):
        return "unsupported", text
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in text:
        return "oom", text.splitlines()[0] if text else "out of memory"
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return "crashed", f"{readable(name_and_text(error))}{place}"


def name_and_text(error: BaseException) -> str:
    """What was raised; for SystemExit, what was called."""
    if isinstance(error, SystemExit):
        return f"it calls sys.exit({error.code!r})"
    text = str(error).strip()
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
