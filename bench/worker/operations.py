"""What the operations of a trace are: looked up in the compiled programs, never told by a name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.rows import Category
from bench.worker import hlo
from bench.worker.collectives import KINDS, groups_of

_MATMUL = {"dot", "convolution", "ragged-dot"}
_MATMUL_TARGET = re.compile(r'custom_call_target="[^"]*(?:gemm|matmul|conv|dot)[^"]*"')
_CONTROL = {"while", "conditional", "call", "async-start", "async-update", "async-done"}
_MOVES = {"copy", "transpose"}
_SHAPES = {
    *_MOVES,
    *("bitcast", "broadcast", "concatenate", "constant", "get-tuple-element", "pad", "parameter"),
    *("reshape", "reverse", "slice", "tuple", "copy-start", "copy-done"),
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


@dataclass
class Operations:
    """Operations of a step's programs, by module and name.

    Args:
      programs: the step's executables.
      devices: of the mesh.
    """

    programs: Sequence[Any]
    devices: int
    _found: dict[tuple[str, str], Operation] = field(default_factory=dict)
    _modules: dict[str, _Module] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for program in self.programs:
            for module in program.hlo_modules():
                self._modules.setdefault(module.name, _Module(module))

    def get(self, module: str, name: str) -> Operation | None:
        """The operation; None if it is of another program, such as one that was not timed."""
        if (module, name) not in self._found:
            own = self._modules.get(module)
            instruction = own.instructions.get(name) if own else None
            if own is None or instruction is None:
                return None
            self._found[module, name] = _read(own, instruction, self.devices)
        return self._found[module, name]


class _Module:
    def __init__(self, module: Any) -> None:
        self.name = module.name
        self.computations = {
            computation.name: list(computation.instructions())
            for computation in module.computations()
        }
        self.instructions = {
            instruction.name: instruction
            for own in self.computations.values()
            for instruction in own
        }
        self.sources = hlo.Sources(module)

    def opcodes(self, instruction: Any) -> set[str]:
        """Its opcode and, of a fusion, those of what is fused."""
        opcode = hlo.opcode(instruction)
        if opcode != "fusion":
            return {opcode}
        return {
            inner
            for name, _ in hlo.called(instruction)
            for own in self.computations.get(name, [])
            for inner in self.opcodes(own)
        }


def _read(module: _Module, instruction: Any, devices: int) -> Operation:
    opcode, source = hlo.opcode(instruction), module.sources.of(instruction)
    inside = module.opcodes(instruction)
    category = _category(opcode, inside, instruction.to_string())
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
        transposes=bool(inside & _MOVES),
        groups=joined(groups_of(instruction, devices)) if category == "collective" else (),
    )


def _category(opcode: str, inside: set[str], text: str) -> Category:
    if opcode.removesuffix("-start").removesuffix("-done") in KINDS:
        return "collective"
    if opcode in _CONTROL:
        return "control"
    if inside & _MATMUL or (opcode == "custom-call" and _MATMUL_TARGET.search(text)):
        return "matmul"
    return "layout" if inside <= _SHAPES else "elementwise"


def phase_of(op_name: str, source: str) -> str:
    """Which part of a step an operation belongs to.

    By the transformations that it was traced under: `jit(step)/transpose(jvp())/dot_general` is of
    the backward pass, `jit(step)/jvp()/...` of the forward pass. What is under neither and written
    in optax is of the update.
    """
    if "rematted_computation" in op_name:
        return "recomputed"
    if "transpose(" in op_name:
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
