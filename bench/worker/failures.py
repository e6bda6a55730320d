"""How a cell ends whose implementation raised something. It may raise anything, sys.exit too."""

from __future__ import annotations

import traceback
from pathlib import Path

from bench.readable import readable
from bench.rows import Status
from bench.worker.gate import WrongStepError


def failure(error: BaseException) -> tuple[Status, str]:
    """How a cell ends that raised, and why, on one line or a few."""
    text = str(error).strip()
    if isinstance(error, WrongStepError):
        return "wrong", readable(text)
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in text:
        return "oom", readable(text.splitlines()[0]) if text else "out of memory"
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return "crashed", readable(f"{name_and_text(error)}{place}")


def name_and_text(error: BaseException) -> str:
    """What was raised; for SystemExit, what was called."""
    if isinstance(error, SystemExit):
        return f"it calls sys.exit({error.code!r})"
    return f"{type(error).__name__}: {error}"
