"""What the operations of a trace are: looked up in the compiled programs, never told by a name."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from bench.records.collective_kinds import KINDS
from bench.records.rows import Category
from bench.worker.read import hlo
from bench.worker.read.collectives import groups_of

_MATMUL = {"dot", "convolution", "ragged-dot"}
_MATMUL_TARGET = re.compile(r'custom_call_target="[^"]*(?:gemm|matmul|\$conv|\$dot|fmha)[^"]*"')
_CONTROL = {"while", "conditional", "call"}
_SHAPES = {
    *("copy", "transpose", "copy-start", "copy-done"),
    *("bitcast", "broadcast", "concatenate", "constant", "get-tuple-element", "pad", "parameter"),
    *("reshape", "reverse", "slice", "tuple"),
}
"""Opcodes that arrange data and compute nothing."""


@dataclass(frozen=True)
class Operation:
    """One instruction of a program, as far as explaining its time needs it."""

    module: str
    name: str
    opcode: str
    category: Category
    phase: str
    """`forward`, `backward`, `recomputed`, `update` (by optax) or `other`."""
    source: str
    """Innermost source line: `optax/_src/transform.py:283`; empty if unknown."""
    shapes: tuple[str, ...]
    """Of what it makes: `f32[256,1024]`."""
    transposes: bool
    """Whether it moves elements to another layout, alone or beside computing."""
    groups: tuple[tuple[int, ...], ...] = ()
    """Places in the mesh, in the order of `mesh.devices.flat`, that wait for one another in a
    collective."""
    start: str = ""
    """Name of the operation that began an asynchronous one, of which this is the end."""
    inside: Category = "elementwise"
    """Category of what a control operation calls."""


def unknown(module: str, name: str) -> Operation:
    """An operation of a program that is not known."""
    return Operation(module, name, "", "unknown", "other", "", (), transposes=False)


class Module:
    """A compiled module, read where it is asked for something."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self.name: str = module.name

    @cached_property
    def number(self) -> int:
        """Its id, which traces call the program's.

        Only the serialized HloModuleProto has it, as its field 5.
        """
        return int(_varints(self._module.as_serialized_hlo_module_proto()).get(5, 0))

    @cached_property
    def computations(self) -> dict[str, list[Any]]:
        """Instructions of each computation."""
        return {own.name: list(own.instructions()) for own in self._module.computations()}

    @cached_property
    def instructions(self) -> dict[str, Any]:
        """By name, over all computations."""
        return {one.name: one for own in self.computations.values() for one in own}

    @cached_property
    def sources(self) -> hlo.Sources:
        """Source lines."""
        return hlo.Sources(self._module)

    def inner(self, instruction: Any) -> list[Any]:
        """An instruction; of those that call others, what they call, however deep."""
        called = [name for name, _ in hlo.called(instruction) if name in self.computations]
        if hlo.opcode(instruction) not in {"fusion", *_CONTROL} or not called:
            return [instruction]
        return [
            one for name in called for own in self.computations[name] for one in self.inner(own)
        ]


def modules_of(programs: Iterable[Any]) -> list[Module]:
    """The modules of executables."""
    return [Module(module) for program in programs for module in program.hlo_modules()]


class Operations:
    """Operations of a step's programs.

    Args:
      own: modules of the programs that the step compiled.
      devices: of the mesh.
      others: modules of all other programs of the process. A step may run programs that were
        compiled before it, as small ones of jax.numpy are.
    """

    def __init__(self, own: Sequence[Module], devices: int, others: Sequence[Module] = ()) -> None:
        self._devices = devices
        self._own: defaultdict[str, list[Module]] = defaultdict(list)
        self._others: defaultdict[str, list[Module]] = defaultdict(list)
        for modules, found in ((own, self._own), (others, self._others)):
            for module in modules:
                found[module.name].append(module)
        self._found: dict[tuple[str, str, int], Operation] = {}

    def get(self, module: str, name: str, program: int = 0) -> Operation:
        """The operation; one of category `unknown` if no program has it.

        Args:
          module: name of its module, which several programs may share.
          name: of the instruction.
          program: which of them it is, as traces number programs; 0 if they do not say.
        """
        key = (module, name, program)
        if key not in self._found:
            self._found[key] = self._look_up(module, name, program)
        return self._found[key]

    def _look_up(self, module: str, name: str, program: int) -> Operation:
        own = [one for one in self._own[module] if name in one.instructions]
        others = [one for one in self._others[module] if program and name in one.instructions]
        # Of programs from the compilation cache, the number may be another process's.
        exact = [one for one in (*own, *others) if program and one.number == program]
        found = next(iter([*exact, *own]), None)
        if found is None:
            return unknown(module, name)
        return _read(found, found.instructions[name], self._devices)


def _read(module: Module, instruction: Any, devices: int) -> Operation:
    opcode, source = hlo.opcode(instruction), module.sources.of(instruction)
    inner = module.inner(instruction)
    begun = instruction.operands()[0] if opcode.endswith("-done") else instruction
    category = _category(opcode, inner)
    return Operation(
        module=module.name,
        name=instruction.name,
        opcode=opcode,
        category=category,
        phase=phase_of(hlo.op_name(instruction), source),
        source=source,
        shapes=tuple(
            f"{dtype}[{','.join(map(str, shape))}]" for dtype, shape in hlo.arrays(instruction)
        ),
        transposes=any(map(hlo.moves_elements, inner)),
        groups=joined(groups_of(begun, devices)) if category == "collective" else (),
        start=begun.name if begun is not instruction else "",
        inside=_category("", inner),
    )


def _category(opcode: str, inner: Iterable[Any]) -> Category:
    if opcode.removesuffix("-start").removesuffix("-done") in KINDS:
        return "collective"
    if opcode in _CONTROL:
        return "control"
    opcodes = {hlo.opcode(one) for one in inner}
    if opcodes & _MATMUL or any(_MATMUL_TARGET.search(one.to_string()) for one in inner):
        return "matmul"
    return "layout" if opcodes <= _SHAPES else "elementwise"


def phase_of(op_name: str, source: str) -> str:
    """Which part of a step an operation belongs to.

    By the transformations that it was traced under: `jit(step)/transpose(jvp())/dot_general` is of
    the backward pass, `jit(step)/jvp()/...` of the forward pass. What is under neither and written
    in optax is of the update.
    """
    if "rematted_computation" in op_name:
        return "recomputed"
    if re.search(r"\btranspose\((?:\w+\()*jvp\(", op_name):
        return "backward"
    if "jvp(" in op_name:
        return "forward"
    return "update" if source.startswith("optax/") else "other"


def joined(groups: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """Sets of devices that groups connect: pairs of a collective-permute may be a chain."""
    sets: list[set[int]] = []
    for group in groups:
        touching = [one for one in sets if one & set(group)]
        sets = [one for one in sets if one not in touching]
        sets.append(set(group).union(*touching))
    return tuple(tuple(sorted(one)) for one in sets)


def _varints(message: bytes) -> dict[int, int]:
    """The integer fields of a serialized protocol buffer, by number (protobuf.dev/encoding)."""
    found, at = {}, 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:  # noqa: PLR2004 - the highest bit says that more bytes follow
                return value

    while at < len(message):
        field, kind = divmod(varint(), 8)
        if kind == 0:
            found[field] = varint()
        else:
            length = varint() if kind == 2 else {1: 8, 5: 4}[kind]  # noqa: PLR2004
            at += length
    return found
