"""What a run says whose disk is full: where, and how to go on. Imports no jax."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FULL = {errno.ENOSPC, errno.EDQUOT}
"""No space left, or none that this user may have."""


class NotStoredError(Exception):
    """There is no room for what was to be written. The message names the folder and a way out."""


@contextmanager
def storing(folder: Path, resume: str = "") -> Iterator[None]:
    """Around writing into a folder.

    Args:
      folder: that is written to.
      resume: the run that can be continued, once there is room; empty where nothing is stored yet.

    Raises:
      NotStoredError: the disk is full. Whatever else the system refuses passes through.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        advice = "free space there"
        if resume:
            advice += f", then continue: python -m bench run --resume {resume}"
        raise NotStoredError(f"cannot write into {folder}: {error.strerror}; {advice}") from error
