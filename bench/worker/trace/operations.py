"""Operations of a trace, looked up in the compiled programs rather than guessed from names."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from bench.records.collective_kinds import KINDS
from bench.records.grouping import grouped
from bench.records.trace_rows import Category
from bench.worker.read import hlo
from bench.worker.read.collectives import Groups, groups_of
from bench.worker.trace.graph_kernels import GraphKernels, kind_of
from bench.worker.trace.xspace import Event

_MATMUL = {"dot", "convolution", "ragged-dot"}
_MATMUL_TARGET = re.compile(r'custom_call_target="[^"]*(?:gemm|matmul|\$conv|\$dot|fmha)[^"]*"')
_CALLBACK = re.compile(r'custom_call_target="[^"]*callback"')
_CONTROL = {"while", "conditional", "call"}
_SHAPES = {
    *("copy", "transpose", "copy-start", "copy-done"),
    *("bitcast", "broadcast", "concatenate", "constant", "get-tuple-element", "pad", "parameter"),
    *("reshape", "reverse", "slice", "tuple"),
}
"""Opcodes that rearrange data without computing."""


@dataclass(frozen=True)
class Operation:
    """One instruction of a program, with the properties that explain its time."""

    module: str
    name: str
    opcode: str
    category: Category
    phase: str
    """`forward`, `backward`, `recomputed`, `update` (by optax) or `other`."""
    source: str
    """Innermost source line: `optax/_src/transform.py:283`; empty if unknown."""
    shapes: tuple[str, ...]
    """Dtype and shape of each result: `f32[256,1024]`."""
    transposes: bool
    """Whether it moves elements to another layout, alone or fused with computation."""
    groups: Groups = ()
    """Device groups of a collective, whose members wait for one another, as indices into
    `mesh.devices.flat`."""
    start: str = ""
    """For the end of an asynchronous operation, the name of the operation that started it."""
    inside: Category = "elementwise"
    """Category of the operations that a control operation calls."""


def unknown(module: str, name: str) -> Operation:
    """Return the operation of an unknown program; a library's kernel is known by its name."""
    return Operation(module, name, "", kind_of(name), "other", "", (), transposes=False)


class Operations:
    """Operations of a step's programs, on a mesh of `devices` devices.

    `own` are the modules of the programs that the step compiled, and `others` those of all other
    programs of the process: a step may run one that was compiled before it, such as jax.numpy's.
    """

    def __init__(
        self, own: Sequence[hlo.Module], devices: int, others: Sequence[hlo.Module] = ()
    ) -> None:
        self._devices = devices
        self._own, self._every = own, [*own, *others]
        self._operations: dict[tuple[str, str, int], Operation] = {}
        self._kernels = cache(GraphKernels)

    def launched(self, events: Sequence[Event]) -> list[Event]:
        """Name kernels in CUDA graphs by their instructions where known; `events` are in order."""
        if not any(event.in_graph for event in events):
            return list(events)
        runs = grouped(((event.device, event.module, event.program), event) for event in events)
        named: list[Event] = []
        for (_, module, program), own in runs.items():
            found = self._chosen(module, program)
            named += self._kernels(found[0]).resolved(own) if len(found) == 1 else own
        return sorted(named, key=lambda event: event.start)

    def get(self, module: str, name: str, program: int = 0) -> Operation:
        """Return an operation, `unknown` if no program has it.

        `program` is the module's number, which distinguishes modules of one name; 0 if unknown.
        """
        key = (module, name, program)
        if key not in self._operations:
            own = next(iter(self._chosen(module, program, name)), None)
            self._operations[key] = (
                _read(own, own.instructions[name], self._devices) if own else unknown(module, name)
            )
        return self._operations[key]

    def _chosen(self, name: str, program: int, instruction: str = "") -> list[hlo.Module]:
        """Return the modules of this name and number; if there is none, the step's own.

        A program from the compilation cache may carry another process's number.
        """
        named = [
            module
            for module in self._every
            if module.name == name and (not instruction or instruction in module.instructions)
        ]
        exact = [module for module in named if program and module.number == program]
        return exact or [module for module in named if module in self._own]


def _read(module: hlo.Module, instruction: Any, devices: int) -> Operation:
    opcode, source = hlo.opcode(instruction), module.source(instruction)
    inner = module.inner(instruction)
    begun = instruction.operands()[0] if opcode.endswith("-done") else instruction
    category = _category(opcode, inner)
    return Operation(
        module=module.name,
        name=instruction.name,
        opcode=opcode,
        category=category,
        phase=_phase(module, instruction, category),
        source=source,
        shapes=tuple(f"{d}[{','.join(map(str, shape))}]" for d, shape in hlo.arrays(instruction)),
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
    opcodes, texts = {hlo.opcode(one) for one in inner}, [one.to_string() for one in inner]
    if any(map(_CALLBACK.search, texts)):
        return "callback"
    if opcodes & _MATMUL or any(map(_MATMUL_TARGET.search, texts)):
        return "matmul"
    return "layout" if opcodes <= _SHAPES else "elementwise"


def _phase(module: hlo.Module, instruction: Any, category: Category) -> str:
    """Return an instruction's phase; if the compiler added it, that of the one that it serves.

    The compiler's own copies have no name in the traced program. A copy of a result belongs to what
    has computed it, and a copy of an argument to what uses it: often, both are the update.
    """
    named = instruction
    while category == "layout" and not hlo.op_name(named) and (operands := named.operands()):
        named = operands[0]
    if hlo.opcode(named) == "parameter":
        named = instruction
        while not hlo.op_name(named) and (users := named.users()):
            named = users[0]
    return phase_of(hlo.op_name(named), module.source(named))


def phase_of(op_name: str, source: str) -> str:
    """Return an operation's phase of the step, by the transformations under which it was traced.

    `jit(step)/transpose(jvp())/dot_general` belongs to the backward pass, `jit(step)/jvp()/...` to
    the forward pass, unless a step has named its passes by `jax.named_scope`. An operation under
    none of these belongs to the update if its source is optax's or the contract's clipping.
    """
    if "rematted_computation" in op_name:
        return "recomputed"
    if re.search(r"\btranspose\((?:\w+\()*jvp\(", op_name):
        return "backward"
    named = re.search(r"/(forward|recomputed)/", op_name)
    if named or "jvp(" in op_name:
        return named[1] if named else "forward"
    return "update" if source.startswith(("optax/", "bench/contract/clipping.py")) else "other"


def joined(groups: Sequence[Sequence[int]]) -> Groups:
    """Join groups that share devices: pairs of a collective-permute may form a chain."""
    sets: list[set[int]] = []
    for group in groups:
        touching = [one for one in sets if one & set(group)]
        sets = [one for one in sets if one not in touching]
        sets.append(set(group).union(*touching))
    return tuple(tuple(sorted(one)) for one in sets)
