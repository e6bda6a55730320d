"""A step's compiled programs and its dispatch path on the host, as a cell's row stores them.

Python's profiler hook sees every function that a step calls, including those written in C, but none
where JAX's fast path runs a jitted function. Two steps have the same dispatch path, and so give the
host the same work, if their programs are equal, they call the same functions in the same order, and
their arguments have the same structure and placement.
"""

from __future__ import annotations

import gc
import inspect
import math
import re
import sys
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import jax

from bench.records.step_programs import Operation, StepProgram, packed
from bench.worker.read import hlo
from bench.worker.read.canonical_program import fingerprint, short_hash
from bench.worker.read.collectives import DTYPE_BYTES
from bench.worker.time.clock import Arm

_NO_WORK = {"bitcast", "constant", "get-tuple-element", "parameter", "tuple"}
_RESULT = re.compile(r" = (.*?) [a-z][\w-]*\(")


def read_program(programs: Sequence[Any], arm: Arm, *, own_options: bool) -> StepProgram | None:
    """Read what identifies a step's programs, and run two more steps to trace its dispatch path.

    Args:
      programs: the executables that the step compiled.
      arm: the warm arm of the step.
      own_options: whether the programs may have been compiled with unusual options, which they do
        not show.

    Returns:
      None if the programs cannot be read; the cell then keeps its time.
    """
    dispatch, calls = dispatch_path(arm)
    try:
        return StepProgram(
            fingerprint=fingerprint(programs) if programs and not own_options else "",
            dispatch=dispatch,
            host_calls=calls,
            operations=packed(operations(programs)),
        )
    except ValueError:
        traceback.print_exc()
        return None


def names_options(module: Any) -> bool:
    """Whether an implementation, or a module that it imports beside it, names `compiler_options`.

    Tracing cannot show this: JAX cannot trace such a step as a whole, nor some steps without them.
    """
    used = (inspect.getmodule(value) for value in vars(module).values())
    paths = {Path(file) for own in (module, *used) if (file := getattr(own, "__file__", None))}
    beside = [path for path in paths if path.is_relative_to(Path(module.__file__).parent)]
    return any("compiler_options" in path.read_text("utf-8") for path in beside)


def operations(programs: Sequence[Any]) -> list[Operation]:
    """List the operations that do some work in the programs, with equal ones merged."""
    found: Counter[tuple[str, str, str, int]] = Counter()
    for module in (module for program in programs for module in program.hlo_modules()):
        sources = hlo.Sources(module)
        for one, count in hlo.instructions(module):
            if count and hlo.opcode(one) not in _NO_WORK:
                result = _RESULT.search(one.to_string())
                sizes = (math.prod(shape) * DTYPE_BYTES.get(t, 0) for t, shape in hlo.arrays(one))
                kind = hlo.opcode(one), result[1] if result else ""
                found[sources.of(one), *kind, sum(sizes)] += count
    return [
        Operation(source, opcode, result, runs, size)
        for (source, opcode, result, size), runs in sorted(found.items())
    ]


def dispatch_path(arm: Arm) -> tuple[str, int]:
    """Run two steps; return a hash of the dispatch path, and the number of calls.

    The hash is empty if the two steps called different functions.
    """
    first, second = _calls(arm), _calls(arm)
    leaves, structure = jax.tree.flatten((arm.state, arm.batch))
    path = "\n".join([*first, str(structure), *map(_placed, leaves)])
    return short_hash(path) if first == second else "", len(first)


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
    arm.state = state
    arm.steps += 1
    return calls[:-1]  # the last one is sys.setprofile


def _of_code(code: CodeType) -> str:
    """Identify a function by its name and bytecode."""
    constants = [each for each in code.co_consts if not isinstance(each, CodeType)]
    return f"{code.co_qualname} {short_hash(code.co_code)} {code.co_names} {constants}"


def _placed(leaf: Any) -> str:
    """Describe an argument and the placement of its shards."""
    if not isinstance(leaf, jax.Array):
        return repr(leaf)
    shards: Mapping[Any, Any] = leaf.sharding.devices_indices_map(leaf.shape)
    places = sorted((device.id, str(index)) for device, index in shards.items())
    return (
        f"{leaf.aval} {type(leaf.sharding)} {leaf.sharding.memory_kind} {leaf.committed} {places}"
    )
