"""Which links the axes of a mesh get on hardware. Imports no jax.

Axes are laid out as jax.make_mesh does: the last one innermost. On GPUs, devices are taken in their
order, so that an axis is inside a domain where its members and those of all inner axes fit into
what is left of it, and beyond that it strides over domains. On TPUs, the last axis is the first to
choose axes of the torus, as many as give its size; an axis that no whole ones give is made of
parts. Of several slices, the outermost axes span as many as divide them, which jax's
create_hybrid_device_mesh can lay out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from bench.project.collective_costs import Ring, Route, Switch
from bench.project.hardware import Domain, Hardware, Network, Torus
from bench.records.mesh import MeshShape


class PlacementError(ValueError):
    """The mesh cannot be had on the hardware; the message says why."""


@dataclass(frozen=True)
class Piece:
    """A part of an axis of the torus: `members` that are `stride` chips apart."""

    along: int
    """Which axis of the torus."""
    members: int
    stride: int


@dataclass(frozen=True)
class Placement:
    """A mesh on hardware; `place` makes it."""

    hardware: Hardware
    mesh: MeshShape
    shape: tuple[int, ...]
    """Of one slice of a torus, or the chips that are used of a domain."""
    domains: int
    """Slices or domains."""
    pieces: dict[str, tuple[Piece, ...]]
    """Parts of the torus that an axis of the mesh has; empty without a torus."""
    outer: dict[str, int]
    """Slices that an axis of the mesh spans; empty without a torus."""

    def route(self, axes: Sequence[str]) -> Route:
        """The links of collectives along axes of the mesh, all groups communicating at once.

        Raises:
          PlacementError: the hardware has no figures for links that are needed.
          KeyError: the mesh lacks an axis.
        """
        sizes = dict(self.mesh.axes)
        members = math.prod(sizes[name] for name in axes)
        if members == 1:
            return Route()
        overhead = self.hardware.overhead_s.value if self.hardware.overhead_s else 0.0
        if self.hardware.torus is not None:
            rings = self._rings(self.hardware.torus, axes)
            slices = math.prod(self.outer[name] for name in axes)
            return Route(rings, self._between(slices), overhead)
        domain = self._domain()
        inside, domains = self._counts(axes)
        switch = Switch(inside, domain.bandwidth.value, domain.latency_s.value)
        return Route(switch, self._between(domains), overhead)

    def _domain(self) -> Domain:
        if self.hardware.domain is None:
            raise PlacementError(
                f"{self.hardware.name}: its sheet has no figures for links between chips"
            )
        return self.hardware.domain

    def _between(self, domains: int) -> Switch:
        if domains == 1:
            return Switch(1, math.inf)
        network = _network(self.hardware)
        return Switch(domains, network.bandwidth.value, network.latency_s.value)

    def _counts(self, axes: Sequence[str]) -> tuple[int, int]:
        """Members of a group in one domain, and domains that it spans.

        Raises:
          PlacementError: groups have unequally many members in their domains.
        """
        names = [name for name, _ in self.mesh.axes]
        ids = np.arange(self.mesh.size).reshape([size for _, size in self.mesh.axes])
        order = [names.index(name) for name in names if name not in axes]
        order += [names.index(name) for name in names if name in axes]
        members = math.prod(dict(self.mesh.axes)[name] for name in axes)
        homes = ids.transpose(order).reshape(-1, members) // self.shape[0]
        patterns = np.unique(homes - homes[:, :1], axis=0)
        counts = {tuple(np.unique(one, return_counts=True)[1].tolist()) for one in patterns}
        if len(counts) > 1 or len(set(next(iter(counts)))) > 1:
            raise PlacementError(
                f"{self.hardware.name}: groups along {', '.join(axes)} of the mesh {self.mesh} "
                f"have unequally many members in domains of {self.shape[0]} chips"
            )
        (found,) = counts
        return found[0], len(found)

    def _rings(self, torus: Torus, axes: Sequence[str]) -> tuple[Ring, ...]:
        """What the axes have of each axis of the torus; parts that follow one another are one."""
        wraps = torus.wraps.value.of(self.shape)
        rings = []
        for along, length in enumerate(self.shape):
            own = [piece for name in axes for piece in self.pieces[name] if piece.along == along]
            for piece in _joined(own):
                whole = piece.members * piece.stride == length
                rings.append(
                    Ring(
                        piece.members,
                        wraps[along] and whole,
                        # Groups between its members use the same links.
                        torus.link_bandwidth.value / piece.stride,
                        torus.hop_latency_s.value * piece.stride,
                    )
                )
        return tuple(rings)


def place(hardware: Hardware, mesh: MeshShape) -> Placement:
    """Lay a mesh out on as many chips as it has.

    Of a domain, a job takes as many chips as divide all of them: 64 of 72 for 128. Of a torus, it
    takes the slice of that many chips, or else several of the largest slices that divide them.

    Raises:
      PlacementError: there is no slice of so many chips, or no figures for the links.
    """
    if hardware.torus is None:
        limit = hardware.domain.chips.value if hardware.domain else 1
        used = max(n for n in range(1, limit + 1) if mesh.size % n == 0)
        domains = mesh.size // used
        if domains > 1:
            _network(hardware)
        return Placement(hardware, mesh, (used,), domains, {}, {})
    shape = _slice(hardware.name, hardware.torus, mesh.size)
    slices = mesh.size // math.prod(shape)
    if slices > 1:
        _network(hardware)
    outer, left = {}, slices
    for name, size in mesh.axes:
        outer[name] = math.gcd(size, left)
        left //= outer[name]
    inner = [(name, size // outer[name]) for name, size in mesh.axes]
    return Placement(hardware, mesh, shape, slices, lay(inner, shape), outer)


def lay(axes: Sequence[tuple[str, int]], shape: Sequence[int]) -> dict[str, tuple[Piece, ...]]:
    """Give axes of a mesh their parts of a slice, the last one first.

    As jax's mesh_utils does: the most axes of the torus whose lengths multiply to the size. Where
    none do, it takes prime factors from the axes that have most left; jax weighs more ways to
    split, so that its choice may be another one.

    Args:
      axes: names and sizes, whose product is that of the shape.
      shape: of the slice.
    """
    left = list(shape)
    found: dict[str, tuple[Piece, ...]] = {}
    for name, size in reversed(axes):
        taken = _whole(size, left) or _split(size, left)
        found[name] = tuple(
            Piece(along, members, shape[along] // left[along])
            for along, members in enumerate(taken)
            if members > 1
        )
        left = [length // members for length, members in zip(left, taken, strict=True)]
    return found


def _whole(size: int, left: Sequence[int]) -> list[int] | None:
    """Take all that is left of the most axes that give the size; None if none do."""
    open_ = [along for along, length in enumerate(left) if length > 1]
    for count in range(len(open_), 0, -1):
        for chosen in combinations(open_, count):
            if math.prod(left[along] for along in chosen) == size:
                return [n if along in chosen else 1 for along, n in enumerate(left)]
    return None


def _split(size: int, left: Sequence[int]) -> list[int]:
    """Take the size's prime factors, the largest first, where most is left."""
    rest, taken = list(left), [1] * len(left)
    for prime in sorted(_primes(size), reverse=True):
        along = max((a for a, n in enumerate(rest) if n % prime == 0), key=lambda a: rest[a])
        rest[along] //= prime
        taken[along] *= prime
    return taken


def _primes(number: int) -> list[int]:
    factors, divisor = [], 2
    while number > 1:
        while number % divisor == 0:
            factors.append(divisor)
            number //= divisor
        divisor += 1
    return factors


def _joined(pieces: Sequence[Piece]) -> list[Piece]:
    """Parts of one axis, the innermost first, as few as they make."""
    found: list[Piece] = []
    for piece in sorted(pieces, key=lambda piece: piece.stride):
        last = found[-1] if found else None
        if last is not None and last.members * last.stride == piece.stride:
            found[-1] = Piece(last.along, last.members * piece.members, last.stride)
        else:
            found.append(piece)
    return found


def _slice(name: str, torus: Torus, chips: int) -> tuple[int, ...]:
    shape = torus.shape_of(chips)
    if shape is not None:
        return shape
    shapes = torus.shapes.value
    dividing = [shape for shape in shapes if chips % math.prod(shape) == 0]
    if chips < math.prod(shapes[-1]) or not dividing:
        sizes = ", ".join(str(math.prod(shape)) for shape in shapes)
        raise PlacementError(
            f"{name}: there is no slice of {chips} chips; there are {sizes}, and several of these "
            f"beyond {math.prod(shapes[-1])}"
        )
    return dividing[-1]


def _network(hardware: Hardware) -> Network:
    if hardware.network is None:
        raise PlacementError(
            f"{hardware.name}: more chips are asked for than its links reach, "
            "and its sheet has no figures for a network"
        )
    return hardware.network
