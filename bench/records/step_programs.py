"""Figures that are read from a step's compiled programs, and compression of values into text."""

import base64
import json
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, NotRequired, TypedDict, cast


class StepProgram(TypedDict):
    """A step's compiled programs, and its dispatch path on the host."""

    fingerprint: str
    """Hash of their canonical form, equal for programs that differ only in names: see
    bench.worker.read.step_program. Empty if they are unknown, or may have been compiled with
    options of their own, which programs do not show."""
    dispatch: str
    """Hash of the dispatch path: see there. Empty if two consecutive steps differed in it."""
    host_calls: int
    """Function calls in a step that Python's profiler hook saw."""
    operations: str
    """The operations, in the form of `packed`."""


class MemoryBytes(TypedDict):
    """Memory of one device, as the compiler plans it for the step's largest program."""

    total_bytes: int
    """arguments + outputs + temporaries - aliased."""
    argument_bytes: int
    output_bytes: int
    temporary_bytes: int
    alias_bytes: int
    """Outputs that reuse donated arguments."""


class Communication(TypedDict):
    """The collectives of one kind in a step's compiled programs."""

    kind: str
    """One of bench.records.collective_kinds.KINDS."""
    axes: list[str]
    """Mesh axes of its device groups; empty if the groups match no axes."""
    members: int
    """Devices per group."""
    dtypes: list[str]
    """Dtypes in HLO's names: f32, bf16."""
    count: float
    """Collectives per step, loops included; a fraction if some steps have none."""
    times: NotRequired[float]
    """Executions per step of the most frequent one: above 1 in loops, as over microbatches."""
    payload_bytes: int
    """Bytes on one device in all executions: of the output for an all-gather, else of the input."""
    wire_bytes: float
    """Bytes that a device sends for them with a ring algorithm."""
    returned: NotRequired[bool]
    """True for all-gathers of values that the step only returns, such as updated parameters."""


class CompilersCost(TypedDict):
    """XLA's count of a step over all devices, plus calls that it omits: see `compilers_cost`."""

    flops: float
    accessed_bytes: float


class ProgramFigures(TypedDict, total=False):
    """Figures that a cell's compiled programs and its files determine, in any launch."""

    memory: MemoryBytes | None
    """Planned memory; None if the backend gives no figures."""
    communication: list[Communication] | None
    """Collectives; None if the programs could not be read."""
    cost: CompilersCost | None
    product_flops: float
    """Like `traced_flops`, but of the compiled programs, in which devices may duplicate work."""
    kernels: list[str]
    """Library kernels that the compiled programs call, by the names of their custom calls."""
    traced_flops: float | None
    """FLOPs of matrix products and convolutions in the step's jaxpr, over all devices, or None."""
    program: StepProgram
    layout: str
    """Sharding of its arrays: an Inspection in the form of `compressed`."""


ONCE = ("traced_flops", "program", "layout")
"""Figures that only the first launch of a block stores."""


def figures_of(row: Mapping[str, Any], launch: int) -> ProgramFigures:
    """Return the figures in a cell's row; in later launches than the first, without ONCE."""
    keys = [key for key in ProgramFigures.__annotations__ if not launch or key not in ONCE]
    return cast("ProgramFigures", {key: row[key] for key in keys if key in row})


def identity(program: Mapping[Any, Any]) -> str:
    """Return a text that arms share only if they are proved to run the same program.

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
