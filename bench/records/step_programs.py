"""The identity of a step's compiled programs, as a cell's row stores it."""

import base64
import json
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypedDict


class StepProgram(TypedDict):
    """A step's compiled programs, and its dispatch path on the host."""

    fingerprint: str
    """Hash of their canonical form, equal for programs that differ only in names: see
    bench.worker.read.step_program. Empty if they are unknown, or may have been compiled with
    options of their own, which programs do not show."""
    dispatch: str
    """Hash of the dispatch path: see bench.worker.read.step_program. Empty if two consecutive steps
    differed in it."""
    host_calls: int
    """Function calls in a step that Python's profiler hook saw."""
    operations: str
    """The operations, in the form of `packed`."""


def identity(program: Mapping[Any, Any]) -> str:
    """Return what only arms that are proved to run the same program share.

    `program` is a StepProgram, or another mapping with its fingerprint and dispatch path. The
    result is empty if either is unknown.
    """
    fingerprint, dispatch = program["fingerprint"], program["dispatch"]
    return f"{fingerprint} {dispatch}" if fingerprint and dispatch else ""


class Operation(NamedTuple):
    """Equal instructions of a step's programs, those inside fusions included."""

    source: str
    """Innermost source line; empty if unknown."""
    opcode: str
    result: str
    """Dtype, shape and layout: `f32[256,1024]{1,0}`."""
    runs: int
    """Runs per step and device, loops included."""
    bytes: int
    """Bytes of one result on a device; 0 if unknown."""


def packed(operations: Iterable[Operation]) -> str:
    """Compress operations into text."""
    return base64.b85encode(zlib.compress(json.dumps(list(operations)).encode(), 9)).decode()


def unpacked(text: str) -> list[Operation]:
    """Return the operations that `packed` compressed."""
    return [Operation(*row) for row in json.loads(zlib.decompress(base64.b85decode(text)))]
