"""The collectives of a compiled program: kind, bytes, device groups, count, and uses of results."""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.records.collective_kinds import KINDS
from bench.worker.read import hlo


def bytes_of(arrays: Iterable[tuple[str, list[int]]]) -> int:
    """Return the size of arrays by dtype and shape.

    Names tell a dtype's bits: bf16, f8e5m2, c128 (of both parts). Only `pred` does not: it has 8.
    """
    return sum(
        math.ceil(math.prod(shape) * int((re.findall(r"\d+", dtype) or [8])[0]) / 8)
        for dtype, shape in arrays
    )


GROUPS = re.compile(
    r"\b(?:replica_groups|source_target_pairs)=(.*?)(?=, (?!device_ids)[a-z_-]+=|$)", re.MULTILINE
)
"""The device groups among an instruction's attributes."""

Groups = tuple[tuple[int, ...], ...]

_IOTA = r"\[([\d,]+)\](?:T\(([\d,]+)\))?"
"""The arguments of `_iota`: a shape, and an order of its dimensions."""

_SAME = frozenset({"all-reduce-done", "bitcast", "convert", "copy", "reshape", "transpose"})
"""Operations whose result has the same elements as their operand."""
_WAITING = frozenset({"dot", "convolution", "custom-call", *KINDS})
"""Operations that take substantial time. Backends implement some products as custom calls."""


@dataclass(frozen=True)
class Collective:
    """One collective instruction, or the part of one that counts as another kind."""

    kind: str
    """One of KINDS."""
    dtypes: tuple[str, ...]
    """Distinct dtypes of its operands, in HLO's names (`f32`, `bf16`)."""
    bytes: int
    """Bytes on one device: of the result for an all-gather, of the operands for other kinds."""
    groups: Groups
    """Groups of communicating devices, as indices into `mesh.devices.flat`; for a
    collective-permute, pairs of source and target."""
    count: float
    """Executions per step, loops included: see bench.worker.read.hlo.called."""
    returned: bool
    """For an all-gather: whether the step only returns its result, without computing with it."""


def collectives(
    executable: Any, devices: int, *, scatter: bool = False, share: float = 1
) -> Iterator[Collective]:
    """Yield the collectives of a compiled program in program order.

    Args:
      executable: the result of `compiled.runtime_executable()` or `client.live_executables()`.
      devices: number of devices of its mesh.
      scatter: count an all-reduce whose result is only sliced as a reduce-scatter, as compilers for
        accelerators do; see `sliced`.
      share: how often each branch of a condition is taken: `TrainStep.branch_share`.

    Raises:
      ValueError: device groups have an unknown form, or a kind's bytes are not known.
    """
    for module in hlo.modules_of([executable]):
        for instruction, count in module.executed(share):
            kind = hlo.opcode(instruction).removesuffix("-start")  # if asynchronous
            if count and kind in {"ragged-all-to-all", "collective-broadcast"}:
                raise ValueError(f"the bytes of a {kind} are not known")
            if not count or kind not in KINDS:
                continue
            groups, operands = groups_of(instruction, devices), instruction.operands()
            apart = [False] * len(operands)
            if scatter and kind == "all-reduce":
                apart = sliced(instruction, module, len(groups[0]))
            for scattered in sorted(set(apart)):
                parts = [one for one, own in zip(operands, apart, strict=True) if own is scattered]
                arrays = [array for operand in parts for array in hlo.arrays(operand)]
                gathers = kind == "all-gather"
                yield Collective(
                    kind="reduce-scatter" if scattered else kind,
                    dtypes=tuple(sorted({dtype for dtype, _ in arrays})),
                    bytes=bytes_of(arrays) * (len(groups[0]) if gathers else 1),
                    groups=groups,
                    count=count,
                    returned=gathers and returned(instruction, module),
                )


def groups_of(instruction: Any, devices: int) -> Groups:
    """Return a collective's groups, or a collective-permute's pairs, as `parse_groups` does."""
    found = GROUPS.search(instruction.to_string())
    return parse_groups(found[1] if found else "{}", devices)


def parse_groups(text: str, devices: int) -> Groups:
    """Parse device groups in any of HLO's forms; ValueError if it is none of these.

    `{{0,1},{2,3}}` lists the groups, and `{}` means all devices. `[4,2]<=[2,4]T(1,0)` is 0, 1 ...
    in shape (2, 4), transposed and reshaped to 4 groups of 2. `mesh['a'=4,'b'=2] {'a'}` are the
    groups along axis a of a mesh, whose device order `, device_ids=([2,4]T(1,0))` may change.
    """
    text = text.strip()
    if text == "{}":
        return (tuple(range(devices)),)
    if text.startswith("{{"):
        return tuple(tuple(hlo.integers(group)) for group in re.findall(r"\{([\d,]*)\}", text))
    if iota := re.fullmatch(rf"\[([\d,]+)\]<={_IOTA}", text):
        return _rows(_iota(iota[2], iota[3]).reshape(hlo.integers(iota[1])))
    if mesh := re.fullmatch(rf"mesh\[([^\]]*)\](?:, device_ids=\({_IOTA}\))? \{{([^}}]*)\}}", text):
        sizes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", mesh[1])}
        along = re.findall(r"'(\w+)'", mesh[4])
        if sizes and along and set(along) <= set(sizes):
            ids = _iota(mesh[2] or str(math.prod(sizes.values())), mesh[3])
            return groups_along(ids.reshape([*sizes.values()]), list(sizes), along)
    raise ValueError(f"replica groups {text!r} have an unknown form")


def _iota(shape: str, order: str | None) -> np.ndarray:
    """Return 0, 1 ... in this shape, transposed to this order of its dimensions."""
    sizes = hlo.integers(shape)
    ids = np.arange(math.prod(sizes)).reshape(sizes)
    return ids.transpose(hlo.integers(order)) if order else ids


def groups_along(ids: np.ndarray, names: Sequence[str], along: Sequence[str]) -> Groups:
    """Return the groups along some axes of a mesh, given its device ids and all axes' names."""
    places = [names.index(name) for name in along]
    moved = np.moveaxis(ids, places, range(-len(places), 0))
    return _rows(moved.reshape(-1, math.prod(ids.shape[place] for place in places)))


def _rows(ids: np.ndarray) -> Groups:
    return tuple(map(tuple, ids.tolist()))


def sliced(instruction: Any, module: hlo.Module, members: int) -> list[bool]:
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
            for parameter in module.computations[name]
            if (number := re.search(r"\bparameter\((\d+)\)", parameter.to_string()))
            if operands[int(number[1])] == value.name
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


def _elements(instruction: Any) -> int:
    return sum(math.prod(shape) for _, shape in hlo.arrays(instruction))


def returned(instruction: Any, module: hlo.Module) -> bool:
    """Whether no product and no collective depends on an instruction's result.

    If none does, nothing waits for the result: ZeRO-1 gathers parameters after the update, whereas
    FSDP gathers them for the products that follow. Inside called computations, such as loops, a
    dependency is assumed.
    """
    seen: set[str] = set()
    left = [*instruction.users()]
    while left:
        user = left.pop()
        if user.name not in seen:
            seen.add(user.name)
            if _waits(user, module):
                return False
            left += user.users()
    return instruction.name in module.entry


def _waits(instruction: Any, module: hlo.Module) -> bool:
    return hlo.opcode(instruction).removesuffix("-start") in _WAITING or any(
        _waits(inner, module)
        for name, _ in hlo.called(instruction)
        for inner in module.computations[name]
    )
