"""A file that one process alone may own. Imports no jax."""

from __future__ import annotations

import os
from pathlib import Path

try:
    import fcntl
except ImportError:  # this is no POSIX system
    fcntl = None  # type: ignore[assignment]


class TakenError(Exception):
    """Another process owns the file."""


def hold(path: Path) -> str:
    """Own a file until this process ends, however it ends: the kernel lets go of it.

    Args:
      path: of a file that is there and is never replaced.

    Returns:
      Why nothing keeps others from it; empty if it is owned.

    Raises:
      TakenError: another process owns it.
    """
    if fcntl is None:
        return "this system has no file locks"
    descriptor = os.open(path, os.O_RDWR)  # left open: closing it would let go
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise TakenError(f"another process owns {path}") from error
    except OSError as error:
        os.close(descriptor)
        return f"the file system does not lock {path.name}: {error.strerror}"
    return ""
