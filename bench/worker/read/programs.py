"""The programs that a step compiled, read without running them: communication, FLOPs, bytes."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from bench.records.collective_kinds import bus_factor
from bench.records.rows import Communication, CompilersCost
from bench.worker.read import hlo
from bench.worker.read.collectives import Collective, collectives


def live_programs() -> list[Any]:
    """The executables now alive in this process."""
    return list(jax.devices()[0].client.live_executables())


def new_programs(programs: Sequence[Any], known: Sequence[Any]) -> list[Any]:
    """Those that are not among the known."""
    old = {id(program) for program in known}
    return [program for program in programs if id(program) not in old]


def communication(
    programs: Sequence[Any], mesh: Mesh, *, scatter: bool = False
) -> list[Communication]:
    """What a step's programs communicate, those of a kind over the same axes together.

    Args:
      programs: compiled.
      mesh: that they run on.
      scatter: as of `collectives`.

    Raises:
      ValueError: a program's groups are written in a way that is not known.
    """
    found: dict[tuple[Any, ...], Communication] = {}
    for program in programs:
        for one in collectives(program, mesh.size, scatter=scatter):
            members = len(one.groups[0])
            axes = axes_of(one, mesh)
            row = found.setdefault(
                (one.kind, axes, members, one.dtypes, one.returned),
                Communication(
                    kind=one.kind,
                    axes=list(axes),
                    members=members,
                    dtypes=list(one.dtypes),
                    count=0,
                    times=0,
                    payload_bytes=0,
                    wire_bytes=0.0,
                ),
            )
            if one.returned:
                row["returned"] = True
            row["count"] += one.count
            row["times"] = max(row["times"], one.count)
            row["payload_bytes"] += one.count * one.bytes
            row["wire_bytes"] += one.count * wire_bytes(one.kind, one.bytes, members)
    return list(found.values())


def wire_bytes(kind: str, payload: int, members: int) -> float:
    """Bytes that a device sends, with a ring algorithm.

    An all-reduce is a reduce-scatter and an all-gather, in each of which a device sends n - 1 of n
    parts (Patarasuk and Yuan, Journal of Parallel and Distributed Computing 69 (2009), 117).
    """
    return payload * bus_factor(kind, members)


def axes_of(collective: Collective, mesh: Mesh) -> tuple[str, ...]:
    """Axes of the mesh along which it communicates; empty if its groups are of another form.

    A collective-permute is along an axis if each of its pairs is.
    """
    places = np.arange(mesh.size).reshape(tuple(mesh.shape.values()))
    names = list(mesh.shape)
    for count in range(1, len(names) + 1):
        for along in itertools.combinations(names, count):
            across = [name for name in names if name not in along]
            order = [names.index(name) for name in (*across, *along)]
            members = math.prod(mesh.shape[name] for name in along)
            groups = [set(row) for row in places.transpose(order).reshape(-1, members).tolist()]
            if collective.kind == "collective-permute":
                matches = all(
                    any({*pair} <= group for group in groups) for pair in collective.groups
                )
            else:
                matches = sorted(map(sorted, collective.groups)) == sorted(map(sorted, groups))
            if matches:
                return along
    return ()


def compilers_cost(programs: Sequence[Any]) -> CompilersCost | None:
    """XLA's own count of a step's work over all devices; None where the backend gives none.

    It counts the body of a loop once, however often it runs.
    """
    flops = moved = 0.0
    for program in programs:
        try:
            cost = program.cost_analysis()
        except (jax.errors.JaxRuntimeError, NotImplementedError, ValueError):
            return None
        # Every process has compiled the same program, and knows its own devices.
        devices = len(program.local_devices()) * jax.process_count()
        flops += devices * max(0.0, cost.get("flops", 0.0))
        moved += devices * max(0.0, cost.get("bytes accessed", 0.0))
    return CompilersCost(flops=flops, accessed_bytes=moved) if programs else None


def product_flops(programs: Sequence[Any]) -> float:
    """FLOPs of the matrix products and convolutions in compiled programs, over all devices.

    Counted as by bench.worker.read.traced_flops, but in the compiled step: where the compiler
    lets several devices compute the same, each of them counts. Products that it has made other
    operations of, as XLA:CPU does of small ones, are not seen.
    """
    return math.fsum(
        # Every process has compiled the same program, and knows its own devices.
        len(program.local_devices()) * jax.process_count() * count * _flops(instruction)
        for program in programs
        for module in program.hlo_modules()
        for instruction, count in hlo.instructions(module)
    )


def _flops(instruction: Any) -> float:
    kind = hlo.opcode(instruction)
    if kind not in {"dot", "convolution"}:
        return 0.0
    text = instruction.to_string()
    ((_, made),) = hlo.arrays(instruction)
    (_, left), (_, right) = (next(hlo.arrays(operand)) for operand in instruction.operands()[:2])
    if kind == "dot":
        contracted = re.search(r"\blhs_contracting_dims=\{([\d,]*)\}", text)
        made_of = math.prod(left[d] for d in hlo.integers(contracted[1] if contracted else ""))
    else:
        # As b01f_01io->b01f: of the kernel's dimensions, o is that of what comes out.
        labels = re.search(r"\bdim_labels=\w+_(\w+)->", text)
        out = labels[1].index("o") if labels else 0
        made_of = math.prod(right) // right[out]
    return 2.0 * math.prod(made) * made_of
