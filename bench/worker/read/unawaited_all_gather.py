"""Detection of all-gathers whose result the step only returns, so that nothing waits for them.

ZeRO-1 gathers parameters after the update; FSDP gathers them for the products that follow.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from bench.records.collective_kinds import KINDS
from bench.worker.read import hlo

_WAITING = frozenset({"dot", "convolution", "custom-call", *KINDS})
"""Operations that take time. Backends implement some products as custom calls."""


def returned(instruction: Any, entry: AbstractSet[str], computations: Mapping[str, Any]) -> bool:
    """Whether no product and no collective depends on an instruction's result.

    Within a called computation, such as a loop, a dependency is assumed.

    Args:
      instruction: any instruction.
      entry: names of the instructions outside called computations.
      computations: the module's computations by name.
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
    """Whether an instruction is a product or a collective, or calls one."""
    return hlo.opcode(instruction).removesuffix("-start") in _WAITING or any(
        _waits(inner, computations)
        for name, _ in hlo.called(instruction)
        for inner in computations[name].instructions()
    )
