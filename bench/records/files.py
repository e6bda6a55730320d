"""Whole files: replaced at once, sealed with a checksum, locked; and what to do on a full disk."""

from __future__ import annotations

import errno
import json
import os
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]

CHANGED = "differs from what was stored (CRC-32)"
"""The reason that is given for a file whose checksum does not match."""

DISK_FULL = {errno.ENOSPC, errno.EDQUOT}
"""No space is left, or none that this user may have."""


class NotStoredError(Exception):
    """The disk is full. The message names the folder and a way out."""


class LockedError(Exception):
    """Another process holds the lock."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a draft beside a file; it replaces the file when the context ends without an error.

    A process that is killed meanwhile leaves the file as it was, or absent.
    """
    # Two processes that write the same file at once each write their own draft.
    draft = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        yield draft
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def write(path: Path, content: str | bytes) -> None:
    """Replace a whole file at once; text is UTF-8 with its newlines as they are."""
    with replacing(path) as draft:
        draft.write_bytes(content.encode() if isinstance(content, str) else content)


def slug(text: str) -> str:
    """Turn a text into a file name of small letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def file_name(text: str) -> str:
    """Replace what a file name may not have, such as slashes and commas, by underscores."""
    return re.sub(r"[^\w.=-]", "_", text)


def sealed(text: str) -> bytes:
    """Add a CRC-32 of the text of a JSON object to it, as its last entry, and a newline."""
    body = text.rstrip().removesuffix("}").rstrip().encode()
    return body + _seal(body)


def unsealed(text: bytes) -> dict[str, Any] | None:
    """Read an object that `sealed` returned; None if any byte has changed since."""
    body = text[: text.rfind(b",")]
    if text != body + _seal(body):
        return None
    content: dict[str, Any] = json.loads(text)
    del content["crc32"]
    return content


def _seal(body: bytes) -> bytes:
    return b', "crc32": "%08x"}\n' % zlib.crc32(body)


@contextmanager
def storing(folder: Path, resume: str = "") -> Iterator[None]:
    """Explain a full disk while the context writes into a folder.

    Args:
      folder: The folder that is written to.
      resume: The run that can be continued once there is room; empty if nothing is stored yet.

    Raises:
      NotStoredError: The disk is full. Any other error passes through.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        advice = "free space there"
        if resume:
            advice += f", then continue: python -m bench run --resume {resume}"
        raise NotStoredError(f"cannot write into {folder}: {error.strerror}; {advice}") from error


def lock(path: Path) -> str:
    """Lock a file until this process ends, however it ends: the kernel releases the lock.

    Args:
      path: An existing file that is never replaced.

    Returns:
      Why the file cannot be locked here; empty if it is locked.

    Raises:
      LockedError: Another process holds the lock.
    """
    if fcntl is None:
        return "this system has no file locks"
    descriptor = os.open(path, os.O_RDWR)  # stays open: closing it would release the lock
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise LockedError(f"another process has locked {path}") from error
    except OSError as error:
        os.close(descriptor)
        return f"the file system does not lock {path.name}: {error.strerror}"
    return ""
