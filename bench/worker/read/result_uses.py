"""The uses of a collective's result in a compiled program."""

import math
import re
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from bench.records.collective_kinds import KINDS
from bench.worker.read import hlo

_SAME = frozenset({"all-reduce-done", "bitcast", "convert", "copy", "reshape", "transpose"})
"""Operations whose result has the same elements as their operand."""
_WAITING = frozenset({"dot", "convolution", "custom-call", *KINDS})
"""Operations that take substantial time. Backends implement some products as custom calls."""


def sliced(instruction: Any, computations: Mapping[str, Any], members: int) -> list[bool]:
    """Return, for each array of an all-reduce, whether only 1 / `members` of it is used.

    SPMD partitioning all-reduces a gradient and then takes each device's slice. Compilers for GPU
    and TPU turn both into a reduce-scatter, which moves half as much
    (https://github.com/openxla/xla/blob/main/xla/service/reduce_scatter_creator.h); XLA:CPU does
    not. Which device uses which slice is not checked. A device group has `members` devices.
    """

    def only_sliced(value: Any, callers: tuple[Any, ...] = ()) -> bool:
        """Follow an array through its computation, and out of it to `callers`, innermost last."""
        users = list(value.users())
        if not users:  # it is the computation's result
            return bool(callers) and only_sliced(callers[-1], callers[:-1])
        return all(slices(user, value, callers) for user in users)

    def slices(user: Any, value: Any, callers: tuple[Any, ...]) -> bool:
        kind = hlo.opcode(user)
        operands = [operand.name for operand in user.operands()]
        if kind in _SAME:
            return only_sliced(user, callers)
        if kind == "dynamic-slice":
            return operands[0] == value.name and _elements(value) == members * _elements(user)
        return kind in {"fusion", "call"} and all(
            only_sliced(parameter, (*callers, user))
            for name, _ in hlo.called(user)
            for number, parameter in _parameters(computations[name])
            if operands[number] == value.name
        )

    count = len(instruction.operands())
    if count == 1:
        return [only_sliced(instruction)]
    users = list(instruction.users())
    done = [user for user in users if hlo.opcode(user) == "all-reduce-done"]
    taken: list[list[bool]] = [[] for _ in range(count)]
    for user in [after for end in done for after in end.users()] or users:
        index = re.search(r"\bindex=(\d+)", user.to_string())
        if hlo.opcode(user) != "get-tuple-element" or not index:  # it uses the whole tuple
            return [False] * count
        taken[int(index[1])].append(only_sliced(user))
    return [bool(uses) and all(uses) for uses in taken]


def _parameters(computation: Any) -> Iterator[tuple[int, Any]]:
    for own in computation.instructions():
        if found := re.search(r"\bparameter\((\d+)\)", own.to_string()):
            yield int(found[1]), own


def _elements(instruction: Any) -> int:
    return sum(math.prod(shape) for _, shape in hlo.arrays(instruction))


def returned(instruction: Any, entry: AbstractSet[str], computations: Mapping[str, Any]) -> bool:
    """Whether no product and no collective depends on an instruction's result.

    If none does, nothing waits for the result: ZeRO-1 gathers parameters after the update, whereas
    FSDP gathers them for the products that follow. `entry` names the instructions outside called
    computations, such as loops; inside them, a dependency is assumed.
    """
    seen: set[str] = set()
    left = [*instruction.users()]
    while left:
        user = left.pop()
        if user.name not in seen:
            seen.add(user.name)
            if _waits(user, computations):
                return False
            left += user.users()
    return instruction.name in entry


def _waits(instruction: Any, computations: Mapping[str, Any]) -> bool:
    return hlo.opcode(instruction).removesuffix("-start") in _WAITING or any(
        _waits(inner, computations)
        for name, _ in hlo.called(instruction)
        for inner in computations[name].instructions()
    )
