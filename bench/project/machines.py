"""Devices of a mesh, by a hardware sheet or measured ceilings: capabilities, places and links.

Axes are laid out as jax.make_mesh does, with the last one innermost. On GPUs, devices are taken in
order: an axis lies inside a domain if its members and those of all inner axes fit there, and
strides across domains otherwise; for TPUs, see `lay`. With several slices, the outermost mesh axes
span as many as divide them, a layout that jax's create_hybrid_device_mesh can produce.
"""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, groupby

import numpy as np

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
    domains: int
    """Number of slices or domains."""
    parts: list[list[tuple[str, int]]]
    """For each axis of a torus, the mesh axes with parts of it and their members, innermost first:
    the chips of a part are as far apart as the parts before it have members."""
    outer: dict[str, int]
    """Number of slices that each mesh axis spans; empty without a torus."""

    def __post_init__(self) -> None:
        if self.domains > 1 and self.hardware.network is None:
            raise HardwareError(
                f"{self.hardware.name}: more chips are requested than its links reach, "
                "and its sheet has no figures for a network"
            )

    def route(self, axes: Sequence[str]) -> Route:
        """Return links along axes, all groups communicating at once; may raise HardwareError."""
        if math.prod(map(self.mesh.axis, axes)) == 1:
            return Route()
        hardware, links = self.hardware, self.hardware.domain
        overhead = hardware.overhead_s.value if hardware.overhead_s else 0.0
        if hardware.torus is not None:
            slices = math.prod(self.outer[name] for name in axes)
            return Route(tuple(self._rings(hardware.torus, axes)), self._between(slices), overhead)
        assert links is not None  # noqa: S101 (without any, there is only one chip)
        inside, domains = self._counts(axes)
        switch = Switch(inside, links.bandwidth.value, links.latency_s.value)
        return Route(switch, self._between(domains), overhead)

    def _between(self, domains: int) -> Switch:
        network = self.hardware.network
        if domains == 1 or network is None:
            return ALONE
        return Switch(domains, network.bandwidth.value, network.latency_s.value)

    def _counts(self, axes: Sequence[str]) -> tuple[int, int]:
        """Return a group's members in one domain, and the number of domains that it spans.

        Raises HardwareError if a group has different numbers of members in its domains.
        """
        names, sizes = zip(*self.mesh.axes, strict=True)
        order = np.argsort([name in axes for name in names], kind="stable")
        members = math.prod(map(self.mesh.axis, axes))
        ids = np.arange(self.mesh.size).reshape(sizes).transpose(order)
        homes = ids.reshape(-1, members) // self.shape[0]
        patterns = np.unique(homes - homes[:, :1], axis=0)
        counts = {tuple(np.unique(row, return_counts=True)[1].tolist()) for row in patterns}
        if len(counts) > 1 or len(set(next(iter(counts)))) > 1:
            raise HardwareError(
                f"{self.hardware.name}: groups along {', '.join(axes)} of the mesh {self.mesh} "
                f"have unequal numbers of members in domains of {self.shape[0]} chips"
            )
        (by_domain,) = counts
        return by_domain[0], len(by_domain)

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

    A job uses an equal number of chips in each domain: 64 of 72 for a mesh of 128. On a torus it
    uses the slice with as many chips as the mesh, or else several of the largest slices whose size
    divides the mesh's. Raises HardwareError if there is no such slice, or if the sheet has no
    figures for the links.
    """
    if hardware.torus is None:
        limit = hardware.domain.chips.value if hardware.domain else 1
        used = max(n for n in range(1, limit + 1) if mesh.size % n == 0)
        return Placement(hardware, mesh, (used,), mesh.size // used, [], {})
    shape = _slice(hardware.name, hardware.torus, mesh.size)
    slices = mesh.size // math.prod(shape)
    outer, left = {}, slices
    for name, size in mesh.axes:
        outer[name] = math.gcd(size, left)
        left //= outer[name]
    inner = [(name, size // outer[name]) for name, size in mesh.axes]
    return Placement(hardware, mesh, shape, slices, lay(inner, shape), outer)


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


def _slice(name: str, torus: Torus, chips: int) -> tuple[int, ...]:
    """Return the shape of the slice of this size, or of the largest whose size divides it."""
    shapes = {math.prod(shape): shape for shape in torus.shapes.value}
    dividing = [size for size in shapes if chips % size == 0]
    if chips in shapes or (dividing and chips > max(shapes)):
        return shapes[dividing[-1]]
    sizes = ", ".join(map(str, shapes))
    raise HardwareError(
        f"{name}: there is no slice of {chips} chips; there are {sizes}, and multiples of "
        f"these beyond {max(shapes)}"
    )


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
    # Counting groups of tens of thousands of chips takes milliseconds.
    route = functools.cache(place(hardware, mesh).route)
    return Machine(
        peak.flops * hardware.achievable.value,
        peak.flops,
        hardware.memory.bandwidth.value,
        hardware.memory.bytes.value,
        route,
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
