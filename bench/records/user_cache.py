"""The user's cache folder, for files that are slow to make and can be made again.

A missing, damaged or unreadable entry is a miss, and an entry that cannot be written is dropped;
neither is an error. Reading an entry marks it as used.
"""

import contextlib
import hashlib
import os
import time

from platformdirs import user_cache_path

from bench.records import files

_NAME = "lockstep"
MOST_BYTES = 2 << 30
MOST_UNUSED_S = 30 * 24 * 3600.0


def read(name: str) -> bytes | None:
    """Return the content of the entry with this path in the folder; None if there is none."""
    path = user_cache_path(_NAME) / name
    with contextlib.suppress(OSError):
        stored = path.read_bytes()
        with contextlib.suppress(OSError):  # the folder may be read-only
            os.utime(path)
        if hashlib.sha256(stored[32:]).digest() == stored[:32]:
            return stored[32:]
    return None


def write(name: str, content: bytes) -> None:
    """Store an entry atomically, so that other processes find all of it or nothing."""
    path = user_cache_path(_NAME) / name
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write(path, hashlib.sha256(content).digest() + content)


def prune() -> None:
    """Remove entries unused for MOST_UNUSED_S, and the oldest entries beyond MOST_BYTES in all."""
    found = []
    for path in user_cache_path(_NAME).rglob("*"):
        with contextlib.suppress(OSError):  # another process may be removing it
            if path.is_file():
                found.append((path.stat().st_mtime, path.stat().st_size, path))
    total = 0
    for used_at, size, path in sorted(found, reverse=True):
        total += size
        if total > MOST_BYTES or used_at < time.time() - MOST_UNUSED_S:
            with contextlib.suppress(OSError):
                path.unlink()
