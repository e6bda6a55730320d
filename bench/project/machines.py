"""What the devices of one mesh can do: from a sheet of hardware, or as measured here.

Imports no jax.
"""

from __future__ import annotations

import functools
import math
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, PositiveFloat, TypeAdapter

from bench.project.collective_costs import Route, Switch
from bench.project.hardware import Figure, Hardware
from bench.project.link_placement import place
from bench.records.mesh import MeshShape
from bench.records.rows import Ceilings


class MachineError(ValueError):
    """There are no figures for what is asked; the message says which."""


@dataclass(frozen=True)
class Machine:
    """What the devices of a mesh can do. Bandwidths are in bytes a second."""

    name: str
    flops: float
    """FLOP/s of a device in matrix products, at best."""
    peak: float | None
    """Published FLOP/s of a device, which an MFU is a share of; None where there is none."""
    memory_bandwidth: float
    memory_bytes: float | None
    """Of a device; None where unknown."""
    route: Callable[[Sequence[str]], Route]
    """The links of collectives along axes of the mesh; raises PlacementError where there are none.
    """
    combines: bool
    """Whether its compiler makes one collective of several; if not, programs are as they run."""


class Achievable(BaseModel):
    """The share of a chip's published peak that its best matrix products reach."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    hardware: list[str]
    share: Figure[PositiveFloat]


def of_sheet(hardware: Hardware, mesh: MeshShape, precision: str) -> Machine:
    """So many chips as a mesh has, by their sheet.

    Products reach the share of the published peak that others have measured, at bfloat16.

    Raises:
      MachineError: no peak is published for this precision.
      PlacementError: the mesh cannot be had on such chips.
    """
    peak = hardware.peak(precision)
    if peak is None:
        raise MachineError(
            f"{hardware.name}: no peak is published for {precision}; choose another --precision"
        )
    placement = place(hardware, mesh)

    @functools.cache  # Of tens of thousands of chips, groups take milliseconds to count.
    def links(axes: tuple[str, ...]) -> Route:
        return placement.route(axes)

    return Machine(
        hardware.name,
        peak.flops * achievable(hardware.name).value,
        peak.flops,
        hardware.memory.bandwidth.value,
        hardware.memory.bytes.value,
        lambda axes: links(tuple(axes)),
        combines=True,
    )


def of_ceilings(measured: Ceilings, mesh: MeshShape) -> Machine:
    """This machine, by what was measured on as many of its devices.

    All members of a collective reach one another alike: a step of one takes what an all-reduce of
    one number takes, and bytes flow at the rate of large all-reduces over the whole mesh.
    """
    rate, latency = measured["all_reduce_bytes"], measured["all_reduce_s"]

    def route(axes: Sequence[str]) -> Route:
        members = math.prod(mesh.axis(name) for name in axes)
        if members == 1:
            return Route()
        if rate is None or latency is None:
            raise MachineError(f"no all-reduce was measured on the {mesh.size} devices of {mesh}")
        return Route(Switch(members, rate), overhead_s=latency)

    return Machine(
        "this machine",
        measured["matmul_flops"],
        None,
        measured["memory_bytes"],
        None,
        route,
        combines=False,
    )


def achievable(name: str) -> Figure[PositiveFloat]:
    """The share of a chip's peak that its best matrix products reach, with its source.

    Raises:
      MachineError: there is no figure for this chip.
    """
    for entry in _achievable():
        if name in entry.hardware:
            return entry.share
    raise MachineError(f"{name}: nobody's products were measured; add it to achievable.toml")


@functools.cache
def _achievable() -> list[Achievable]:
    text = Path(__file__).with_name("achievable.toml").read_text(encoding="utf-8")
    return TypeAdapter(list[Achievable]).validate_python(tomllib.loads(text)["achievable"])
