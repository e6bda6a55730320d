"""How long a collective takes, by the links that its members have. Imports no jax.

A collective's *payload* is as bench.records.rows.Communication has it: bytes on one device, of what goes
in, and of what comes out of an all-gather. Bandwidths are of one device in one direction. Formulae
are of a collective that has the links of its route to itself, at their full bandwidths: that real
ones are slower is a matter of calibration.

NCCL also chooses among protocols. The sheets have the latencies of the one for large messages,
Simple; LL and LL128, with shorter steps and less bandwidth, are left out, and so are reductions in
the switches (SHARP).

Sources, named in the docstrings:

- nccl-tests: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
- NCCL: `ncclTopoTuneModel` and `ncclTopoGetAlgoTime` of
  https://github.com/NVIDIA/nccl/blob/master/src/graph/tuning.cc, by which NCCL itself chooses
- the scaling book: https://jax-ml.github.io/scaling-book/, parts "Sharded Matrices" (3) and
  "GPUs" (12)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from bench.records.collective_kinds import bus_factor

Limit = Literal["latency", "inside", "between"]
"""What a collective waits for most: its steps, the links inside of domains, or those between."""


@dataclass(frozen=True)
class Switch:
    """Members that all reach one another at the same speed."""

    members: int
    bandwidth: float
    """Bytes a second."""
    latency_s: float = 0.0
    """Of one step."""


@dataclass(frozen=True)
class Ring:
    """Members in a line along an axis of a torus, with or without a link between the ends."""

    members: int
    wraps: bool
    bandwidth: float
    """Bytes a second of one link. An inner member sends on two."""
    latency_s: float = 0.0
    """From one member to the next."""

    @property
    def links(self) -> int:
        """Links on which the member with the fewest sends."""
        return 2 if self.wraps else 1

    @property
    def hops(self) -> int:
        """From a member to the one that is farthest."""
        return self.members // 2 if self.wraps else self.members - 1


ALONE = Switch(1, math.inf)


@dataclass(frozen=True)
class Route:
    """The links between the members of a collective.

    Members lie in equally many per *domain*: a host's NVLink domain, a TPU's slice.
    """

    inside: Switch | tuple[Ring, ...] = ALONE
    """Between those of one domain; several axes of a torus are used at the same time."""
    between: Switch = ALONE
    """Between domains, its members; every device has its own share of this bandwidth."""
    overhead_s: float = 0.0
    """What every collective takes beside its steps."""

    @property
    def members_inside(self) -> int:
        """Members in one domain."""
        if isinstance(self.inside, Switch):
            return self.inside.members
        return math.prod(ring.members for ring in self.inside)

    @property
    def members(self) -> int:
        """All that communicate with one another."""
        return self.members_inside * self.between.members


@dataclass(frozen=True)
class Cost:
    """What a collective takes."""

    seconds: float
    algorithm: str
    """`ring`, `tree`, `torus`, `direct`; `none` for one member."""
    limit: Limit


FREE = Cost(0.0, "none", "latency")


def cost(kind: str, payload: float, route: Route) -> Cost:
    """Seconds of one collective, by the algorithm that takes least.

    Raises:
      ValueError: the kind is none of KINDS.
    """
    bus_factor(kind, route.members)
    if route.members == 1:
        return FREE
    match kind:
        case "all-to-all":
            return all_to_all(payload, route)
        case "collective-permute":
            return collective_permute(payload, route)
    phases = 2 if kind == "all-reduce" else 1
    if not isinstance(route.inside, Switch):
        return torus(payload, route, phases)
    found = [ring(payload, route, phases)]
    if kind == "all-reduce":
        found.append(tree(payload, route))
    return min(found, key=lambda one: one.seconds)


def ring(payload: float, route: Route, phases: int) -> Cost:
    """A reduce-scatter or all-gather over switches; both, one after the other, are an all-reduce.

    NCCL: of n - 1 steps a phase, as many are between d domains as a ring has to cross, d - 1, and
    the others inside. Bytes are those of the scaling book's part 12, "Cross-node collectives": each
    level has a ring of its own, and all go on at once, bytes (D - 1) / (D W), so that the slowest
    counts. All m members of a domain use their shares of the network: W = m times one's.

    Args:
      payload: bytes, as said above.
      route: with a switch inside.
      phases: 1, or 2 for an all-reduce.
    """
    inside, between = _switch(route), route.between
    steps_between = between.members - 1
    steps_inside = route.members - 1 - steps_between
    latency = steps_inside * inside.latency_s + steps_between * between.latency_s
    return _sum(
        "ring",
        route.overhead_s + phases * latency,
        phases * payload * bus_factor("all-gather", inside.members) / inside.bandwidth,
        phases * _between(payload, route),
    )


def tree(payload: float, route: Route) -> Cost:
    """An all-reduce up a tree and down again, over switches.

    NCCL: a chain inside a domain and a binary tree between d of them, 2 ((m - 1) a + log2(d) b),
    at half the bus bandwidth, whatever the number of members. (NCCL's corrections of a tree's
    bandwidth for some sizes and chips are left out.)
    """
    inside, between = _switch(route), route.between
    depth = math.ceil(math.log2(between.members))
    latency = (inside.members - 1) * inside.latency_s + depth * between.latency_s
    return _sum(
        "tree",
        route.overhead_s + 2 * latency,
        2 * payload / inside.bandwidth if inside.members > 1 else 0.0,
        2 * payload / (inside.members * between.bandwidth),
    )


def torus(payload: float, route: Route, phases: int) -> Cost:
    """A reduce-scatter or all-gather over the axes of a torus; both are an all-reduce.

    The scaling book, part 3, "How is an AllGather actually performed?": along one axis, whole
    shards go round in both directions, n / 2 hops of payload / n each, and a hop takes at least its
    latency. Without a link between the ends it is n - 1 hops. Several axes are used at once:
    payload / (bandwidth x axes). Where ends are open, the corner has the fewest links, and receives
    (N - 1) / N of the payload through them. (The book rounds n / 2 up; a ring of odd length needs
    only (n - 1) / 2 hops.) Links of unequal bandwidth are taken to get bytes such that they end
    together. XLA may use fewer axes: jax's mesh_utils says that it does on planes that are not
    square.

    Args:
      payload: bytes, as said above.
      route: with rings inside.
      phases: 1, or 2 for an all-reduce.
    """
    rings = _rings(route)
    missing = math.prod(1 - one.links * one.hops / one.members for one in rings)
    links = sum(one.links * one.bandwidth for one in rings)
    own = payload * (1 - missing) / links if links else 0.0
    steps = (route.between.members - 1) * route.between.latency_s
    return _flow(
        "torus",
        route.overhead_s,
        (phases * _hops_s(rings), phases * own),
        (phases * steps, phases * _between(payload, route)),
    )


def all_to_all(payload: float, route: Route) -> Cost:
    """Every member sends an equal part of its payload to each.

    Over switches, each sends directly, to those of its own domain and to the others at once: the
    scaling book, part 12, "AllToAlls" and "Other collectives"; the bytes are nccl-tests' factor,
    (n - 1) / n, split by where they go.

    On a torus, parts pass the members between. The middle links carry most, n^2 / 8 parts of
    payload / n in each direction of a ring and n^2 / 4 in a line: the scaling book, part 3, "Our
    final communication primitive". Along several axes at once, the slowest counts.
    """
    inside = route.members_inside
    between = payload * bus_factor("all-to-all", route.between.members) / route.between.bandwidth
    if isinstance(route.inside, Switch):
        latency = max(route.inside.latency_s, route.between.latency_s)
        own = payload * (inside - 1) / route.members / route.inside.bandwidth
        return _sum("direct", route.overhead_s + latency, own, between)
    stays = payload / route.between.members
    own = max(
        (
            stays * (one.members**2 // 4) / (one.members * one.links * one.bandwidth)
            for one in route.inside
        ),
        default=0.0,
    )
    network = (route.between.latency_s, between)
    return _flow("torus", route.overhead_s, (_hops_s(route.inside), own), network)


def collective_permute(payload: float, route: Route) -> Cost:
    """Every member sends its payload to the next one, and the last one to the first.

    The pair that is worst off counts: across domains, if there are several. On a torus without a
    link between the ends it is the two ends, and the message uses a link of each axis (the scaling
    book, part 2, question 5: bytes / (links W), and a latency for each hop).
    """
    if route.between.members > 1:
        between = payload / route.between.bandwidth
        return _sum("direct", route.overhead_s + route.between.latency_s, 0.0, between)
    if isinstance(route.inside, Switch):
        latency = route.overhead_s + route.inside.latency_s
        return _sum("direct", latency, payload / route.inside.bandwidth, 0.0)
    hops_s = sum((1 if one.wraps else one.members - 1) * one.latency_s for one in route.inside)
    links = sum(one.bandwidth for one in route.inside)
    return _sum("direct", route.overhead_s + hops_s, payload / links, 0.0)


def _between(payload: float, route: Route) -> float:
    """Seconds in which domains exchange what one of them has, all of its members sending."""
    share = bus_factor("all-gather", route.between.members)
    return payload * share / (route.members_inside * route.between.bandwidth)


def _hops_s(rings: tuple[Ring, ...]) -> float:
    return sum(one.hops * one.latency_s for one in rings)


def _switch(route: Route) -> Switch:
    if not isinstance(route.inside, Switch):
        raise TypeError("members of a domain are on a torus, not on a switch")
    return route.inside


def _rings(route: Route) -> tuple[Ring, ...]:
    if isinstance(route.inside, Switch):
        raise TypeError("members of a domain are on a switch, not on a torus")
    return route.inside


def _sum(algorithm: str, latency: float, inside: float, between: float) -> Cost:
    """Steps wait for one another, and bytes flow after that: NCCL's latency + bytes / bandwidth."""
    parts: dict[Limit, float] = {"latency": latency, "inside": inside, "between": between}
    return Cost(latency + max(inside, between), algorithm, max(parts, key=lambda p: parts[p]))


def _flow(
    algorithm: str, overhead: float, inside: tuple[float, float], between: tuple[float, float]
) -> Cost:
    """Chips of a torus pass bytes on while others come; the network is used beside.

    Args:
      algorithm: its name.
      overhead: seconds, before all else.
      inside: seconds of the hops, and of the bytes, of which the longer counts.
      between: seconds of the steps, and of the bytes, which add up.
    """
    parts: dict[Limit, float] = {
        "latency": max(inside[0], between[0]),
        "inside": inside[1],
        "between": between[1],
    }
    seconds = overhead + max(*inside, sum(between))
    return Cost(seconds, algorithm, max(parts, key=lambda p: parts[p]))
