"""Capabilities of the devices of a mesh, from a hardware sheet or from measured ceilings."""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.project.collective_costs import Route, Switch
from bench.project.hardware import Hardware, HardwareError
from bench.project.link_placement import place
from bench.records.mesh import MeshShape
from bench.records.rows import Ceilings


@dataclass(frozen=True)
class Machine:
    """Capabilities of each device of a mesh. Bandwidths are in bytes per second."""

    flops: float
    """FLOP/s of a device's best matrix products."""
    peak: float | None
    """Published FLOP/s of a device, the denominator of MFU; None if unknown."""
    memory_bandwidth: float
    memory_bytes: float | None
    """Memory of a device; None if unknown."""
    route: Callable[[Sequence[str]], Route]
    """Returns the links of collectives along mesh axes; raises HardwareError if there are none."""
    combines: bool
    """Whether its compiler combines collectives; if not, programs run them as they are."""


def of_sheet(hardware: Hardware, mesh: MeshShape, precision: str) -> Machine:
    """Return a machine with as many chips of a hardware sheet as the mesh has devices.

    Products reach the share of the published peak that others have measured in bfloat16.

    Raises:
      HardwareError: no peak is published for this precision, or the chips cannot form the mesh.
    """
    peak = hardware.peak(precision)
    if peak is None:
        raise HardwareError(
            f"{hardware.name}: no peak is published for {precision}; choose another --precision"
        )
    placement = place(hardware, mesh)
    # Counting groups of tens of thousands of chips takes milliseconds.
    links = functools.cache(placement.route)
    return Machine(
        peak.flops * hardware.achievable.value,
        peak.flops,
        hardware.memory.bandwidth.value,
        hardware.memory.bytes.value,
        lambda axes: links(tuple(axes)),
        combines=True,
    )


def of_ceilings(measured: Ceilings, mesh: MeshShape) -> Machine:
    """Return this machine, from ceilings measured on as many of its devices as the mesh has.

    All members of a collective are assumed to be equally well connected: a collective has the
    latency of an all-reduce of one number, and the bandwidth of large all-reduces over the mesh.
    """
    rate, latency = measured["all_reduce_bytes"], measured["all_reduce_s"]

    def route(axes: Sequence[str]) -> Route:
        members = math.prod(mesh.axis(name) for name in axes)
        if members == 1:
            return Route()
        if rate is None or latency is None:
            raise HardwareError(f"no all-reduce was measured on the {mesh.size} devices of {mesh}")
        return Route(Switch(members, rate), overhead_s=latency)

    flops, bandwidth = measured["matmul_flops"], measured["memory_bytes"]
    return Machine(flops, None, bandwidth, None, route, combines=False)
