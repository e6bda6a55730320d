"""A step's compiled programs and its dispatch path on the host, as a cell's row stores them.

Python's profiler hook sees every function that a step calls, including those written in C, but none
where JAX's fast path runs a jitted function. Two steps have the same dispatch path, and so give the
host the same work, if their programs are equal, they call the same functions in the same order, and
their arguments have the same structure and placement.

Programs are equal if their canonical forms are. These keep opcodes, shapes with their layouts,
operands, attributes, constants, device groups, donation (`input_output_alias`) and the order of
instructions, which is their schedule. Names of instructions and computations, and the ids of
channels, become numbers in order of appearance. Labels are dropped: the module's name, metadata,
and input for the partitioner, which has run; the dispatch path has the placement of arguments.
"""

import gc
import inspect
import math
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import jax
from jaxlib._hlo import HloPrintOptions

from bench.records.files import digest
from bench.records.step_programs import Operation, StepProgram, packed
from bench.worker.read import hlo
from bench.worker.read.collectives import GROUPS, bytes_of, parse_groups
from bench.worker.read.programs import if_readable
from bench.worker.time.clock import Arm

_NO_WORK = {"bitcast", "constant", "get-tuple-element", "parameter", "tuple"}


def read_program(programs: Sequence[Any], arm: Arm, *, own_options: bool) -> StepProgram | None:
    """Read what identifies a warm arm's programs, and run two steps to trace its dispatch path.

    `own_options` says whether the programs may have been compiled with options of their own, which
    they do not show. Return None if the programs cannot be read.
    """
    dispatch, calls = dispatch_path(arm)
    return if_readable(
        lambda: StepProgram(
            fingerprint=fingerprint(programs) if programs and not own_options else "",
            dispatch=dispatch,
            host_calls=calls,
            operations=packed(operations(programs)),
        )
    )


def names_options(module: Any) -> bool:
    """Whether an implementation, or a module of its folder that it uses, names `compiler_options`.

    Tracing cannot show this: JAX cannot trace such a step as a whole, nor some steps without them.
    """
    used = (inspect.getmodule(value) for value in vars(module).values())
    paths = {Path(file) for own in (module, *used) if (file := getattr(own, "__file__", None))}
    beside = [path for path in paths if path.is_relative_to(Path(module.__file__).parent)]
    return any("compiler_options" in path.read_text("utf-8") for path in beside)


def operations(programs: Sequence[Any]) -> list[Operation]:
    """List the operations that do some work in the programs, with equal ones merged."""
    found: Counter[tuple[str, str, str, int]] = Counter()
    for module in hlo.modules_of(programs):
        for one, count in module.executed():
            if count and hlo.opcode(one) not in _NO_WORK:
                kind = hlo.opcode(one), hlo.result(one), bytes_of(hlo.arrays(one))
                found[module.source(one), *kind] += int(count)
    return [
        Operation(source, opcode, result, runs, size)
        for (source, opcode, result, size), runs in sorted(found.items())
    ]


def dispatch_path(arm: Arm) -> tuple[str, int]:
    """Run two steps; return a hash of their path, empty if they differ, and the number of calls."""
    first, second = _calls(arm), _calls(arm)
    leaves, structure = jax.tree.flatten((arm.state, arm.batch))
    path = "\n".join([*first, str(structure), *map(_placed, leaves)])
    return digest(path.encode()) if first == second else "", len(first)


def _calls(arm: Arm) -> list[str]:
    """Run a step; return the functions that it calls, in order."""
    calls: list[str] = []
    known: dict[CodeType, str] = {}

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            code = frame.f_code
            calls.append(known.get(code) or known.setdefault(code, _of_code(code)))
        elif event == "c_call":
            calls.append(argument.__qualname__)

    before, collects = sys.getprofile(), gc.isenabled()
    gc.disable()  # the calls of its callbacks are not the step's
    sys.setprofile(note)
    try:
        state, loss = arm.step(arm.state, arm.batch)
    finally:
        sys.setprofile(before)
        if collects:
            gc.enable()
    jax.block_until_ready((state, loss))
    arm.state, arm.steps = state, arm.steps + 1
    return calls[:-1]  # the last one is sys.setprofile


def _of_code(code: CodeType) -> str:
    """Identify a function by its name and bytecode."""
    constants = [each for each in code.co_consts if not isinstance(each, CodeType)]
    return f"{code.co_qualname} {digest(code.co_code)} {code.co_names} {constants}"


def _placed(leaf: Any) -> str:
    """Describe an argument and the placement of its shards."""
    if not isinstance(leaf, jax.Array):
        return repr(leaf)
    shards: Mapping[Any, Any] = leaf.sharding.devices_indices_map(leaf.shape)
    places = sorted((device.id, str(index)) for device, index in shards.items())
    kind = f"{type(leaf.sharding)} {leaf.sharding.memory_kind}"
    return f"{leaf.aval} {kind} {leaf.committed} {places}"


_STRING = r'"(?:[^"\\]++|\\.)*+"'
_BRACES = r"\{\}"
for _ in range(4):  # no attribute nests deeper
    _BRACES = rf'\{{(?:[^{{}}"]++|{_STRING}|{_BRACES})*+\}}'
_LABEL = re.compile(
    r"(?:, |^)(?:(?:origin|original_value|sharding"
    rf"|allow_spmd_sharding_propagation_to_\w+)={_BRACES}"
    r"|frontend_attributes=\{(?:(?:is_spmd_generated|xla\.sdy\.[\w.]+)="
    rf"(?:{_STRING}|{_BRACES}),?)*\}})"
)
_PRINTED = HloPrintOptions()
_PRINTED.print_metadata = _PRINTED.print_program_shape = False
_COMMENT = re.compile(r"/\*.*?\*/")
_ELIDED = re.compile(r"(%[\w.-]+)( = \S+ constant\()\{\.\.\.\}")
"""A constant with too many elements to be printed."""
_NUMBERED = re.compile(r"%[\w.-]+|\bchannel_id=\d+")
_COMPUTATIONS, _INSTRUCTIONS, _NAME_OF, _LITERAL = 3, 2, 1, 8
"""Fields of a HloModuleProto, of its computations, and of their instructions."""


def fingerprint(programs: Iterable[Any]) -> str:
    """Return a hash that is equal for programs with equal canonical forms on equal devices."""
    texts = [
        f"{[device.id for device in program.local_devices()]}\n{canonical(module)}"
        for program in programs
        for module in program.hlo_modules()
    ]
    return digest("\n".join(sorted(texts)).encode())


def canonical(module: Any) -> str:
    """Return a module's canonical form, made from its text, which alone shows every attribute."""
    text = module.to_string(_PRINTED).partition(", ")[2]
    counts = re.findall(r"\b(?:num_partitions|replica_count)=(\d+)", text.partition("\n")[0])
    devices = math.prod(map(int, counts))
    text = _LABEL.sub("", _COMMENT.sub("", text))
    text = _ELIDED.sub(lambda own: f"{own[1]}{own[2]}{_literal(module, own[1])}", text)
    text = GROUPS.sub(lambda groups: str(parse_groups(groups[1], devices)), text)
    numbers: defaultdict[str, int] = defaultdict()
    numbers.default_factory = numbers.__len__
    return _NUMBERED.sub(lambda own: f"#{numbers[own[0]]}", text)


def _literal(module: Any, name: str) -> str:
    """Return a hash of a constant's elements, which the module's text elides if there are many."""
    instructions = (
        dict(hlo.fields(instruction))
        for kind, computation in hlo.fields(module.as_serialized_hlo_module_proto())
        if kind == _COMPUTATIONS
        for inner, instruction in hlo.fields(computation)
        if inner == _INSTRUCTIONS
    )
    own = next(one for one in instructions if one[_NAME_OF] == name[1:].encode())
    return digest(own[_LITERAL])
