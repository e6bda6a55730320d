"""Atomic replacement, checksums and locks of files, and the error of a full disk."""

import errno
import fcntl
import hashlib
import json
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.records.paths import as_typed

CHANGED = "differs from what was stored (CRC-32)"
"""The reason given for a file whose checksum does not match."""

DISK_FULL = {errno.ENOSPC, errno.EDQUOT}


class NotStoredError(Exception):
    """The disk is full; the message names the folder and a remedy."""


class LockedError(Exception):
    """Another process holds the lock."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a draft, which replaces the file if the context ends without an error.

    If the process is killed before that, the file stays as it was.
    """
    # The process id keeps two processes that write the same file from sharing a draft.
    draft = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        yield draft
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def write(path: Path, content: str | bytes, *, durable: bool = False) -> None:
    """Replace a file atomically; text is written as UTF-8 with newlines unchanged.

    If `durable`, it is on the disk when this returns, and survives a crash of the machine.
    """
    with replacing(path) as draft, draft.open("wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        if durable:
            file.flush()
            os.fsync(file.fileno())


def slug(text: str) -> str:
    """Turn a text into a file name of lower-case letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def digest(content: bytes, digits: int = 16) -> str:
    """Return the first hexadecimal digits of the SHA-256 hash of some content."""
    return hashlib.sha256(content).hexdigest()[:digits]


def sealed(text: str) -> bytes:
    """Add to the text of a JSON object its CRC-32, as the last entry, and a newline."""
    body = text.rstrip().removesuffix("}").rstrip().encode()
    return body + b", " + checksum(body)


def unsealed(text: bytes) -> dict[str, Any] | None:
    """Read an object that `sealed` returned; None if any byte has changed since."""
    body = text[: text.rfind(b",")]
    if text != body + b", " + checksum(body):
        return None
    return {key: value for key, value in json.loads(text).items() if key != "crc32"}


def checksum(text: bytes) -> bytes:
    """Return the end of an object in JSON: its last entry, the CRC-32 of all that is before it."""
    return b'"crc32": "%08x"}\n' % zlib.crc32(text)


def write_sealed(path: Path, content: Mapping[str, Any]) -> None:
    """Replace a file durably by an object in JSON with its CRC-32."""
    write(path, sealed(json.dumps(content, indent=2)), durable=True)


@contextmanager
def storing(folder: Path, resume: str = "") -> Iterator[None]:
    """Turn the error of a full disk, or of a deleted `folder` to write to, into NotStoredError.

    Its advice names the run `resume`, which can be continued later, unless nothing is stored yet.
    Any other error passes through.
    """
    try:
        yield
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not folder.exists():
            raise NotStoredError(f"{folder} was deleted while it was written to") from error
        if error.errno not in DISK_FULL:
            raise
        advice = "free space there"
        if resume:
            advice += f", then continue: {as_typed('run')} --resume {resume}"
        raise NotStoredError(f"cannot write into {folder}: {error.strerror}; {advice}") from error


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock in a context, by a file that is made; wait while another process holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def lock_until_exit(path: Path) -> str:
    """Lock a file until this process ends, however it ends: the kernel releases the lock.

    The file must exist; replacing it unlocks it. Returns why it cannot be locked; empty if it is.
    Raises LockedError if another process holds the lock.
    """
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
