"""Files that are there whole or not at all, and text that shows whether it was changed since.

Imports no jax.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHANGED = "differs from what was stored (CRC-32)"
"""What is wrong with it, in words."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A draft beside a file, which takes the file's place when the context ends without an error.

    Whoever is killed meanwhile leaves the file as it was, or not there.
    """
    # Two who write the same file at once each write their own draft.
    draft = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        yield draft
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def write(path: Path, content: str | bytes) -> None:
    """Write a whole file in one go; text as UTF-8 with its newlines as they are."""
    with replacing(path) as draft:
        draft.write_bytes(content.encode() if isinstance(content, str) else content)


def slug(text: str) -> str:
    """The text fit for a name of a file: small letters, digits, and a hyphen for all else."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def sealed(text: str) -> bytes:
    """The text of a JSON object, with a CRC-32 of all that precedes it as its last entry.

    It ends with a newline.
    """
    body = text.rstrip().removesuffix("}").rstrip().encode()
    return body + _ending(body)


def unsealed(text: bytes) -> dict[str, Any] | None:
    """The object that was sealed; None where any byte differs from what `sealed` returned."""
    body = text[: text.rfind(b",")]
    if text != body + _ending(body):
        return None
    found: dict[str, Any] = json.loads(text)
    del found["crc32"]
    return found


def _ending(body: bytes) -> bytes:
    return b', "crc32": "%08x"}\n' % zlib.crc32(body)
