"""What a compiled program communicates, from its HLO: kind, bytes, groups, and how often."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from bench.records.collective_kinds import KINDS
from bench.worker.read import hlo, implied_reduce_scatter
from bench.worker.read.unawaited_all_gather import returned

_BYTES = {
    **dict.fromkeys(("pred", "s8", "u8", "f8e4m3fn", "f8e5m2"), 1),
    **dict.fromkeys(("s16", "u16", "f16", "bf16"), 2),
    **dict.fromkeys(("s32", "u32", "f32"), 4),
    **dict.fromkeys(("s64", "u64", "f64", "c64"), 8),
    "c128": 16,
}


@dataclass(frozen=True)
class Collective:
    """One instruction that communicates, or the part of one that is counted apart."""

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
    returned: bool
    """Of an all-gather: whether the step returns what it gives, and computes nothing with it."""


def collectives(executable: Any, devices: int, *, scatter: bool = False) -> list[Collective]:
    """What a compiled program communicates, in its order.

    Args:
      executable: as `compiled.runtime_executable()` and `client.live_executables()` give it.
      devices: of the mesh that it runs on.
      scatter: what is reduced for slices of it alone counts as a reduce-scatter, as compilers for
        accelerators have it: see bench.worker.read.implied_reduce_scatter.

    Raises:
      ValueError: groups or dtypes are written in a way that is not known.
    """
    found: list[Collective] = []
    for module in executable.hlo_modules():
        reader = _Reader(module, devices, scatter)
        for instruction, count in hlo.instructions(module):
            if count and _kind(instruction) is not None:
                found += reader.read(instruction, count)
    return found


def _kind(instruction: Any) -> str | None:
    """Its kind, if it communicates; of an asynchronous pair only the start does."""
    opcode = hlo.opcode(instruction).removesuffix("-start")
    return opcode if opcode in KINDS else None


class _Reader:
    """Reads instructions of one module that communicate."""

    def __init__(self, module: Any, devices: int, scatter: bool) -> None:
        self._devices = devices
        self._scatter = scatter
        self._module = module
        self._computations = {own.name: own for own in module.computations()}

    @cached_property
    def _entry(self) -> set[str]:
        return {instruction.name for instruction in hlo.entry(self._module)}

    def read(self, instruction: Any, count: int) -> Iterator[Collective]:
        """An instruction, and apart from it what it scatters, if that is looked for."""
        kind = _kind(instruction) or ""
        groups = groups_of(instruction, self._devices)
        operands = instruction.operands()
        kinds = [kind] * len(operands)
        if self._scatter and kind == "all-reduce":
            scattered = implied_reduce_scatter.sliced(
                instruction, self._computations, len(groups[0])
            )
            kinds = ["reduce-scatter" if apart else kind for apart in scattered]
        for own in sorted(set(kinds)):
            parts = [one for one, its in zip(operands, kinds, strict=True) if its == own]
            arrays = [array for operand in parts for array in hlo.arrays(operand)]
            unknown = sorted({dtype for dtype, _ in arrays} - _BYTES.keys())
            if unknown:
                raise ValueError(f"the size of {', '.join(unknown)} is not known")
            size = sum(math.prod(shape) * _BYTES[dtype] for dtype, shape in arrays)
            yield Collective(
                kind=own,
                dtypes=tuple(sorted({dtype for dtype, _ in arrays})),
                bytes=size * len(groups[0]) if own == "all-gather" else size,
                groups=groups,
                count=count,
                origin=hlo.op_name(instruction),
                returned=own == "all-gather"
                and returned(instruction, self._entry, self._computations),
            )


def groups_of(instruction: Any, devices: int) -> tuple[tuple[int, ...], ...]:
    """An instruction's groups of devices; a collective-permute's pairs of source and target.

    Raises:
      ValueError: they are written in a way that is not known.
    """
    found = re.search(
        r"\b(?:replica_groups|source_target_pairs)=(.*?)(?:, (?!device_ids)[a-z_]+=|$)",
        instruction.to_string(),
    )
    return parse_groups(found[1] if found else "{}", devices)


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
        return tuple(tuple(hlo.integers(group)) for group in re.findall(r"\{([\d,]*)\}", text))
    if iota := re.fullmatch(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", text):
        shape, dims = (hlo.integers(iota[part]) for part in (1, 2))
        order = hlo.integers(iota[3]) if iota[3] else list(range(len(dims)))
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
                ids = ids.reshape(hlo.integers(mesh[2])).transpose(hlo.integers(mesh[3]))
            ids = ids.reshape(list(sizes.values()))
            ids = ids.transpose([names.index(name) for name in (*across, *along)])
            return _rows(ids.reshape(-1, math.prod(sizes[name] for name in along)))
    raise ValueError(f"replica groups {text!r} are written in a way that is not known")


def _rows(ids: Any) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(map(int, row)) for row in ids)
