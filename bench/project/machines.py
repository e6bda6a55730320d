"""Devices of a mesh, by a hardware sheet or measured ceilings: capabilities, places and links.

Axes are laid out as jax.make_mesh does, with the last one innermost, and the outermost axes span
the domains or slices. On GPUs, devices are taken in order, so a mesh has to divide into domains
that way; several slices of a torus can have such a layout by jax's create_hybrid_device_mesh. See
`lay` for the axes within a slice.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, groupby

from bench.analyse import peaks
from bench.project.collective_costs import ALONE, Ring, Route, Switch
from bench.project.hardware import Hardware, HardwareError, Torus
from bench.records.mesh import MeshShape
from bench.records.rows import Ceilings


@dataclass(frozen=True)
class Placement:
    """The placement of a mesh on hardware; `place` creates it."""

    hardware: Hardware
    mesh: MeshShape
    shape: tuple[int, ...]
    """Shape of one slice of a torus, or the number of chips used in a domain."""
    outer: dict[str, int]
    """Number of slices or domains that each mesh axis spans."""
    parts: list[list[tuple[str, int]]]
    """For each axis of the shape, the mesh axes with parts of it and their members, innermost
    first: the chips of a part are as far apart as the parts before it have members."""

    def route(self, axes: Sequence[str]) -> Route:
        """Return links along axes, all groups communicating at once."""
        members = math.prod(map(self.mesh.axis, axes))
        if members == 1:
            return Route()
        hardware, domains = self.hardware, math.prod(self.outer[name] for name in axes)
        inside: Switch | tuple[Ring, ...] = ALONE
        if hardware.torus is not None:
            inside = tuple(self._rings(hardware.torus, axes))
        elif (own := hardware.domain) is not None:
            inside = Switch(members // domains, own.bandwidth.value, own.latency_s.value)
        between = ALONE
        if domains > 1 and (network := hardware.network) is not None:
            between = Switch(domains, network.bandwidth.value, network.latency_s.value)
        return Route(inside, between, hardware.overhead_s.value if hardware.overhead_s else 0.0)

    def _rings(self, torus: Torus, axes: Sequence[str]) -> Iterator[Ring]:
        """Yield the rings of mesh axes, one per part of a torus axis, adjoining parts joined."""
        wraps = torus.wraps.value.of(self.shape)
        for parts, length, wrapped in zip(self.parts, self.shape, wraps, strict=True):
            stride = 1
            for own, adjoining in groupby(parts, lambda part: part[0] in axes):
                members = math.prod(size for _, size in adjoining)
                if own:
                    whole = members * stride == length
                    # Groups located between its members share the same links.
                    bandwidth = torus.link_bandwidth.value / stride
                    latency_s = torus.hop_latency_s.value * stride
                    yield Ring(members, wrapped and whole, bandwidth, latency_s)
                stride *= members


def place(hardware: Hardware, mesh: MeshShape) -> Placement:
    """Place a mesh on as many chips as it has devices.

    Raises HardwareError if there is no such slice, if the sheet has no figures for the links, or if
    an axis of the mesh would have different numbers of members in its domains.
    """
    shape = _shape(hardware, mesh.size)
    outer, left = {}, mesh.size // math.prod(shape)
    if left > 1 and hardware.network is None:
        raise HardwareError(
            f"{hardware.name}: more chips are requested than its links reach, "
            "and its sheet has no figures for a network"
        )
    for name, size in mesh.axes:
        outer[name] = math.gcd(size, left)
        left //= outer[name]
        if left > 1 and outer[name] < size and hardware.torus is None:
            raise HardwareError(
                f"{hardware.name}: groups along {name} of the mesh {mesh} have unequal numbers of "
                f"members in domains of {shape[0]} chips"
            )
    inner = [(name, size // outer[name]) for name, size in mesh.axes]
    return Placement(hardware, mesh, shape, outer, lay(inner, shape))


def _shape(hardware: Hardware, chips: int) -> tuple[int, ...]:
    """Return the shape of the slices for this many chips, or the chips used of each domain.

    A job uses an equal number of chips in each domain: 64 of 72 for a mesh of 128. On a torus it
    uses the slice of this size, or else several of the largest slices whose size divides it.
    """
    if hardware.torus is None:
        limit = hardware.domain.chips.value if hardware.domain else 1
        return (max(n for n in range(1, limit + 1) if chips % n == 0),)
    shapes = {math.prod(shape): shape for shape in hardware.torus.shapes.value}
    dividing = [size for size in shapes if chips % size == 0]
    if chips in shapes or (dividing and chips > max(shapes)):
        return shapes[dividing[-1]]
    sizes = ", ".join(map(str, shapes))
    raise HardwareError(
        f"{hardware.name}: there is no slice of {chips} chips; there are {sizes}, and multiples of "
        f"these beyond {max(shapes)}"
    )


def lay(axes: Sequence[tuple[str, int]], shape: Sequence[int]) -> list[list[tuple[str, int]]]:
    """Assign parts of a slice to mesh axes, the last axis first: see `Placement.parts`.

    As in jax's mesh_utils, an axis takes the largest number of torus axes whose lengths multiply to
    its size. If none do, its prime factors come from the torus axes with the most left; jax
    considers more ways to split, so its choice may differ. All sizes multiply to the slice's.
    """
    left = list(shape)
    parts: list[list[tuple[str, int]]] = [[] for _ in shape]
    for name, size in reversed(axes):
        for along, members in enumerate(_whole(size, left) or _split(size, left)):
            left[along] //= members
            if members > 1:
                parts[along].append((name, members))
    return parts


def _whole(size: int, left: Sequence[int]) -> list[int] | None:
    """Take the rest of as many torus axes as possible; None if none multiply to the size."""
    open_ = [along for along, length in enumerate(left) if length > 1]
    for count in range(len(open_), 0, -1):
        for chosen in combinations(open_, count):
            if math.prod(left[along] for along in chosen) == size:
                return [n if along in chosen else 1 for along, n in enumerate(left)]
    return None


def _split(size: int, left: Sequence[int]) -> list[int]:
    """Take the prime factors of the size, largest first, from the axes with the most left."""
    rest, taken = list(left), [1] * len(left)
    for prime in range(size, 1, -1):
        while size % prime == 0 and all(prime % divisor for divisor in range(2, prime)):
            along = max((a for a, n in enumerate(rest) if n % prime == 0), key=lambda a: rest[a])
            rest[along] //= prime
            taken[along] *= prime
            size //= prime
    return taken


@dataclass(frozen=True)
class Machine:
    """Capabilities of each device of a mesh. Bandwidths are in bytes per second."""

    flops: float
    """FLOP/s of a device's best matrix products."""
    peak: float
    """Published FLOP/s of a device, the denominator of MFU; NaN if unknown."""
    memory_bandwidth: float
    memory_bytes: float
    """Memory of a device; NaN if unknown."""
    route: Callable[[tuple[str, ...]], Route]
    """Returns the links of collectives along mesh axes; raises HardwareError if there are none."""
    combines: bool
    """Whether its compiler combines collectives; if not, programs run them as they are."""


def of_sheet(hardware: Hardware, mesh: MeshShape, precision: str) -> Machine:
    """Return a machine with as many chips of a hardware sheet as the mesh has devices.

    Products reach the share of the published peak that others have measured in bfloat16. Raises
    HardwareError if no peak is published for this precision, or the chips cannot form the mesh.
    """
    peak = peaks.peak(hardware.device_kind, precision)
    if peak is None:
        raise HardwareError(
            f"{hardware.name}: no peak is published for {precision}; choose another --precision"
        )
    return Machine(
        peak.flops * hardware.achievable.value,
        peak.flops,
        hardware.memory.bandwidth.value,
        hardware.memory.bytes.value,
        place(hardware, mesh).route,
        combines=True,
    )


def of_ceilings(measured: Ceilings | None, mesh: MeshShape) -> Machine:
    """Return this machine, from ceilings measured on as many of its devices as the mesh has.

    All members of a collective are assumed to be equally well connected: a collective has the
    latency of an all-reduce of one number, and the bandwidth of large all-reduces over the mesh.
    Raises HardwareError if nothing was measured.
    """
    if measured is None:
        raise HardwareError("the run failed to measure its machine's ceilings")
    rate, latency = measured["all_reduce_bytes"], measured["all_reduce_s"]

    def route(axes: tuple[str, ...]) -> Route:
        members = math.prod(map(mesh.axis, axes))
        if members == 1:
            return Route()
        if rate is None or latency is None:
            raise HardwareError(f"no all-reduce was measured on the {mesh.size} devices of {mesh}")
        return Route(Switch(members, rate), overhead_s=latency)

    flops, bandwidth = measured["matmul_flops"], measured["memory_bytes"]
    return Machine(flops, math.nan, bandwidth, math.nan, route, combines=False)
