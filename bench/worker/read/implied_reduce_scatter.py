"""Detection of all-reduces of which every device uses only its own slice.

SPMD partitioning all-reduces a gradient and then takes each device's slice. Compilers for GPU and
TPU turn both into a reduce-scatter, which moves half as much
(https://github.com/openxla/xla/blob/main/xla/service/reduce_scatter_creator.h); XLA:CPU does not.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bench.worker.read import hlo

_SAME = frozenset({"all-reduce-done", "bitcast", "convert", "copy", "reshape", "transpose"})
"""Operations whose result has the same elements as the operand."""


def sliced(instruction: Any, computations: Mapping[str, Any], members: int) -> list[bool]:
    """Return, for each array of an all-reduce, whether only 1 / `members` of it is used.

    Which device uses which slice is not checked.

    Args:
      instruction: an all-reduce or its start.
      computations: the module's computations by name.
      members: size of a group.
    """
    reader = _Reader(computations, members)
    count = len(instruction.operands())
    if count == 1:
        return [reader.sliced(instruction)]
    taken: list[list[bool]] = [[] for _ in range(count)]
    for user in _made(instruction):
        index = re.search(r"\bindex=(\d+)", user.to_string())
        if hlo.opcode(user) != "get-tuple-element" or not index:  # it uses the whole tuple
            return [False] * count
        taken[int(index[1])].append(reader.sliced(user))
    return [bool(uses) and all(uses) for uses in taken]


def _made(instruction: Any) -> list[Any]:
    """Return the users of a tuple; for an asynchronous start, the users of its done."""
    users = list(instruction.users())
    done = [user for user in users if hlo.opcode(user) == "all-reduce-done"]
    return [other for user in done for other in user.users()] or users


@dataclass(frozen=True)
class _Reader:
    """Follows arrays to their uses, into and out of fusions."""

    computations: Mapping[str, Any]
    members: int

    def sliced(self, value: Any, callers: tuple[Any, ...] = ()) -> bool:
        """Whether every use of an array is a slice of it.

        Args:
          value: the instruction whose result it is.
          callers: the callers of its computation, innermost last.
        """
        users = list(value.users())
        if not users:  # it is the computation's result
            return bool(callers) and self.sliced(callers[-1], callers[:-1])
        return all(self._slices(user, value, callers) for user in users)

    def _slices(self, user: Any, value: Any, callers: tuple[Any, ...]) -> bool:
        kind = hlo.opcode(user)
        operands = [operand.name for operand in user.operands()]
        if kind in _SAME:
            return self.sliced(user, callers)
        if kind == "dynamic-slice":
            return operands[0] == value.name and _elements(value) == self.members * _elements(user)
        if kind not in {"fusion", "call"}:
            return False
        return all(
            self.sliced(parameter, (*callers, user))
            for name, _ in hlo.called(user)
            for number, parameter in _parameters(self.computations[name])
            if operands[number] == value.name
        )


def _parameters(computation: Any) -> Iterator[tuple[int, Any]]:
    for own in computation.instructions():
        if found := re.search(r"\bparameter\((\d+)\)", own.to_string()):
            yield int(found[1]), own


def _elements(instruction: Any) -> int:
    return sum(math.prod(shape) for _, shape in hlo.arrays(instruction))
