"""The compiled programs of a step, as a cell's row stores them: what tells them apart."""

import base64
import json
import zlib
from collections.abc import Iterable
from typing import NamedTuple, TypedDict


class StepProgram(TypedDict):
    """The compiled programs of a step, and the host's way to run them."""

    fingerprint: str
    """Hash of their canonical form, equal for programs that differ in names alone: see
    bench.worker.read.canonical_program. Empty if they are not known, or may have been
    compiled with options of their own, which they do not show."""
    dispatch: str
    """Hash of what the host does in a step: see bench.worker.read.step_program. Empty if two steps
    in a row differed in that."""
    host_calls: int
    """Calls of functions that Python saw in a step."""
    operations: str
    """Written by `packed`."""


class Operation(NamedTuple):
    """Equal instructions of a step's programs, those inside fusions included."""

    source: str
    """Innermost source line; empty if unknown."""
    opcode: str
    result: str
    """Dtype, shape and layout: `f32[256,1024]{1,0}`."""
    runs: int
    """Per step and device, loops included."""
    bytes: int
    """Of one result on a device; 0 if unknown."""


def packed(operations: Iterable[Operation]) -> str:
    """Compress operations into text."""
    return base64.b85encode(zlib.compress(json.dumps(list(operations)).encode(), 9)).decode()


def unpacked(text: str) -> list[Operation]:
    """Return the operations that `packed` compressed."""
    return [Operation(*row) for row in json.loads(zlib.decompress(base64.b85decode(text)))]
