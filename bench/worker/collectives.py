"""What a compiled program communicates, from its HLO: kind, bytes, groups, and how often.

Computations, opcodes and operands come from the structured API of the module; what that does not
show (shapes, groups, called computations, trip counts) from the text of the one instruction it
belongs to.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")

_CALLED = re.compile(
    r"\b(?:to_apply|calls|body|condition|true_computation|false_computation)=%([\w.-]+)"
)
_ARRAY = re.compile(r"\b([a-z]+\d+\w*|pred)\[([\d,]*)\]")
_BYTES = {
    **dict.fromkeys(("pred", "s8", "u8", "f8e4m3fn", "f8e5m2"), 1),
    **dict.fromkeys(("s16", "u16", "f16", "bf16"), 2),
    **dict.fromkeys(("s32", "u32", "f32"), 4),
    **dict.fromkeys(("s64", "u64", "f64", "c64"), 8),
    "c128": 16,
}
_BRANCHES = re.compile(r"\bbranch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')


@dataclass(frozen=True)
class Collective:
    """One instruction that communicates."""

    kind: str
    """One of KINDS."""
    dtypes: tuple[str, ...]
    """Of what it moves, as HLO names them (`f32`, `bf16`), each once."""
    bytes: int
    """On one device: of what goes in, and of what comes out of an all-gather."""
    groups: tuple[tuple[int, ...], ...]
    """Places in the mesh, in the order of `mesh.devices.flat`, that communicate with one another;
    pairs of source and target for a collective-permute."""
    count: int
    """How often a step runs it, loops included. A branch counts as if it were always taken, and a
    loop whose length the compiler does not know as one of length 1."""
    origin: str
    """Where in the traced program it is from: HLO's `op_name`."""


def collectives(executable: Any, devices: int) -> list[Collective]:
    """What a compiled program communicates, in its order.

    Args:
      executable: as `compiled.runtime_executable()` and `client.live_executables()` give it.
      devices: of the mesh that it runs on.

    Raises:
      ValueError: groups or dtypes are written in a way that is not known.
    """
    return [
        _read(instruction, count, devices)
        for module in executable.hlo_modules()
        for instruction, count in _instructions(module)
        if _kind(instruction) is not None
    ]


def _opcode(instruction: Any) -> str:
    """`kAllReduceStart` -> `all-reduce-start`."""
    return re.sub(r"(?<!^)([A-Z])", r"-\1", instruction.opcode.name.removeprefix("k")).lower()


def _kind(instruction: Any) -> str | None:
    """Its kind, if it communicates; of an asynchronous pair only the start does."""
    opcode = _opcode(instruction).removesuffix("-start")
    return opcode if opcode in KINDS else None


def _instructions(module: Any) -> Iterator[tuple[Any, int]]:
    """Every instruction of a module, with how often a run of it runs the instruction."""
    computations = {computation.name: computation for computation in module.computations()}
    calls = {name: list(_calls(own)) for name, own in computations.items()}
    called = {name for own in calls.values() for name, _ in own}
    counts = dict.fromkeys(computations, 0)
    for entry in computations.keys() - called:
        counts[entry] = 1
    # Callees come before their callers in a module.
    for name in reversed(list(computations)):
        for callee, times in calls[name]:
            counts[callee] += counts[name] * times
    for name, computation in computations.items():
        for instruction in computation.instructions():
            yield instruction, counts[name]


def _calls(computation: Any) -> Iterator[tuple[str, int]]:
    """Names of the computations that one calls, and how often it does."""
    for instruction in computation.instructions():
        text = instruction.to_string()
        trips = _TRIPS.search(text)
        times = int(trips[1]) if trips else 1
        for name in _CALLED.findall(text):
            yield name, times
        for branches in _BRANCHES.findall(text):
            for name in re.findall(r"%([\w.-]+)", branches):
                yield name, times


def _read(instruction: Any, count: int, devices: int) -> Collective:
    text = instruction.to_string()
    kind = _kind(instruction) or ""
    arrays = [array for operand in instruction.operands() for array in _arrays(operand)]
    attribute = "source_target_pairs" if kind == "collective-permute" else "replica_groups"
    found = re.search(rf"\b{attribute}=(.*?)(?:, (?!device_ids)[a-z_]+=|$)", text)
    groups = parse_groups(found[1] if found else "{}", devices)
    unknown = sorted({dtype for dtype, _ in arrays} - _BYTES.keys())
    if unknown:
        raise ValueError(f"the size of {', '.join(unknown)} is not known")
    size = sum(math.prod(shape) * _BYTES[dtype] for dtype, shape in arrays)
    origin = re.search(r'op_name="([^"]*)"', text)
    return Collective(
        kind=kind,
        dtypes=tuple(sorted({dtype for dtype, _ in arrays})),
        bytes=size * len(groups[0]) if kind == "all-gather" else size,
        groups=groups,
        count=count,
        origin=origin[1] if origin else "",
    )


def _arrays(instruction: Any) -> Iterator[tuple[str, list[int]]]:
    """Dtype and shape of what an instruction makes, of each part of a tuple.

    From its text, `%name = (f32[4,2]{1,0}, s32[]) opcode(...)`: not every version of jaxlib shows
    shapes otherwise.
    """
    made = instruction.to_string().partition(" = ")[2].partition(f" {_opcode(instruction)}(")[0]
    for dtype, shape in _ARRAY.findall(made):
        yield dtype, [int(size) for size in shape.split(",") if size]


def parse_groups(text: str, devices: int) -> tuple[tuple[int, ...], ...]:
    """Read groups of devices in any of the forms in which HLO writes them.

    `{{0,1},{2,3}}` lists them, and `{}` means all; `[4,2]<=[2,4]T(1,0)` is 0, 1 ... in the shape
    (2, 4), transposed and arranged as 4 groups of 2; `mesh['a'=4,'b'=2] {'a'}` are the groups along
    the axis a of a mesh, whose devices may be in another order: `, device_ids=([2,4]T(1,0))`.

    Raises:
      ValueError: it is none of these.
    """
    text = text.strip()
    if text == "{}":
        return (tuple(range(devices)),)
    if text.startswith("{{"):
        return tuple(
            tuple(int(word) for word in group.split(",") if word)
            for group in re.findall(r"\{([\d,]*)\}", text)
        )
    if iota := re.fullmatch(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", text):
        shape, dims = (_numbers(iota[part]) for part in (1, 2))
        order = _numbers(iota[3]) if iota[3] else list(range(len(dims)))
        ids = np.arange(math.prod(dims)).reshape(dims).transpose(order).reshape(shape)
        return _rows(ids)
    if mesh := re.fullmatch(
        r"mesh\[([^\]]*)\](?:, device_ids=\(\[([\d,]+)\]T\(([\d,]+)\)\))? \{([^}]*)\}", text
    ):
        sizes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", mesh[1])}
        along = re.findall(r"'(\w+)'", mesh[4])
        if sizes and along and set(along) <= set(sizes):
            names = list(sizes)
            across = [name for name in names if name not in along]
            ids = np.arange(math.prod(sizes.values()))
            if mesh[2]:
                ids = ids.reshape(_numbers(mesh[2])).transpose(_numbers(mesh[3]))
            ids = ids.reshape(list(sizes.values()))
            ids = ids.transpose([names.index(name) for name in (*across, *along)])
            return _rows(ids.reshape(-1, math.prod(sizes[name] for name in along)))
    raise ValueError(f"replica groups {text!r} are written in a way that is not known")


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def _rows(ids: Any) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(map(int, row)) for row in ids)
