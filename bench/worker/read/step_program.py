"""The compiled programs of a step and the host's way to run them, as a cell's row stores them.

Python's profiler hook sees every function that a step calls, down to those of C, and none where
JAX's fast path runs a jitted function. Two steps whose programs are equal, that call the same
functions in the same order, and whose arguments are structured and placed alike, give the host the
same work: their dispatch path is the same.
"""

from __future__ import annotations

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
from bench.worker.time.clock import Arm, without_garbage_collection

_NO_WORK = {"bitcast", "constant", "get-tuple-element", "parameter", "tuple"}
_RESULT = re.compile(r" = (.*?) [a-z][\w-]*\(")


def read_program(programs: Sequence[Any], arm: Arm, *, own_options: bool) -> StepProgram | None:
    """Read what tells a step's programs from others, and run two more steps to see its dispatch.

    Args:
      programs: the executables that the step compiled.
      arm: the step, warm.
      own_options: whether they may have been compiled with other options than usual, which the
        programs themselves do not show.

    Returns:
      None if the programs cannot be read, which must not cost the cell its time.
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
    """Whether an implementation, or what it imports from beside it, names `compiler_options`.

    JAX cannot trace a step as a whole that has such options; but others cannot be traced either.
    """
    used = (inspect.getmodule(value) for value in vars(module).values())
    paths = {Path(file) for own in (module, *used) if (file := getattr(own, "__file__", None))}
    beside = [path for path in paths if path.is_relative_to(Path(module.__file__).parent)]
    return any("compiler_options" in path.read_text("utf-8") for path in beside)


def operations(programs: Sequence[Any]) -> list[Operation]:
    """List the operations of programs that do some work, equal ones as one."""
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
    """Run two steps, and return a hash of the dispatch path, and the number of calls.

    The hash is empty if the two steps did not call the same functions.
    """
    first, second = _calls(arm), _calls(arm)
    leaves, structure = jax.tree.flatten((arm.state, arm.batch))
    path = "\n".join([*first, str(structure), *map(_placed, leaves)])
    return short_hash(path) if first == second else "", len(first)


def _calls(arm: Arm) -> list[str]:
    """Run a step, and list the functions that it calls."""
    calls: list[str] = []
    known: dict[CodeType, str] = {}

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            code = frame.f_code
            calls.append(known.get(code) or known.setdefault(code, _of_code(code)))
        elif event == "c_call":
            calls.append(argument.__qualname__)

    before = sys.getprofile()
    with without_garbage_collection():
        sys.setprofile(note)
        try:
            state, loss = arm.step(arm.state, arm.batch)
        finally:
            sys.setprofile(before)
    jax.block_until_ready((state, loss))
    arm.state = state
    arm.steps += 1
    return calls[:-1]  # the last one is sys.setprofile


def _of_code(code: CodeType) -> str:
    """Identify a function by its name and what it executes."""
    constants = [each for each in code.co_consts if not isinstance(each, CodeType)]
    return f"{code.co_qualname} {short_hash(code.co_code)} {code.co_names} {constants}"


def _placed(leaf: Any) -> str:
    """Describe an argument and where its shards lie."""
    if not isinstance(leaf, jax.Array):
        return repr(leaf)
    shards: Mapping[Any, Any] = leaf.sharding.devices_indices_map(leaf.shape)
    places = sorted((device.id, str(index)) for device, index in shards.items())
    return (
        f"{leaf.aval} {type(leaf.sharding)} {leaf.sharding.memory_kind} {leaf.committed} {places}"
    )
