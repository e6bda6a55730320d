"""The identity of a step's compiled programs, and values of rows as compressed text."""

import base64
import json
import zlib
from collections.abc import Callable, Iterable, Mapping
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
    return compressed(list(operations), base64.b85encode)


def unpacked(text: str) -> list[Operation]:
    """Return the operations that `packed` compressed."""
    return [Operation(*row) for row in expanded(text, base64.b85decode)]


def compressed(value: Any, encode: Callable[[bytes], bytes] = base64.b64encode) -> str:
    """Return the zlib-compressed JSON of a value, as base64 unless another encoding is given."""
    text = json.dumps(value, separators=(",", ":"))
    return encode(zlib.compress(text.encode(), 9)).decode()


def expanded(text: str, decode: Callable[[str], bytes] = base64.b64decode) -> Any:
    """Return the value that `compressed` compressed."""
    return json.loads(zlib.decompress(decode(text)))
