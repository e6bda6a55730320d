"""Which all-gathers are of what a step returns: nothing in the step waits for them.

ZeRO-1 gathers parameters that each device has updated a part of. FSDP gathers parameters for the
products that follow.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from bench.records.collective_kinds import KINDS
from bench.worker.read import hlo

_WAITING = frozenset({"dot", "convolution", "custom-call", *KINDS})
"""What else a step spends time in. Backends have products of their own, as custom calls."""


def returned(instruction: Any, entry: AbstractSet[str], computations: Mapping[str, Any]) -> bool:
    """Whether no product and no collective waits for what an instruction gives.

    It is taken that one does where the instruction is in a computation that others call, as in a
    loop.

    Args:
      instruction: of any kind.
      entry: names of the instructions that are in no such computation.
      computations: of its module, by name.
    """
    if instruction.name not in entry:
        return False
    seen: set[str] = set()
    left = [*instruction.users()]
    while left:
        user = left.pop()
        if user.name in seen:
            continue
        seen.add(user.name)
        if _waits(user, computations):
            return False
        left += user.users()
    return True


def _waits(instruction: Any, computations: Mapping[str, Any]) -> bool:
    """Whether it is a product or a collective, or calls one."""
    return hlo.opcode(instruction).removesuffix("-start") in _WAITING or any(
        _waits(inner, computations)
        for name, _ in hlo.called(instruction)
        for inner in computations[name].instructions()
    )
