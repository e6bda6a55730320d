"""Cost model of a collective over the links between its members.

The *payload* of a collective is defined as in `bench.records.step_programs.Communication`: the
bytes on one device that go in, or for an all-gather the bytes that come out. Bandwidths are those
of one device in one direction. The formulae assume that a collective has its links to itself at
full bandwidth; calibration accounts for real ones being slower.

The latencies in the hardware sheets are those of Simple, NCCL's protocol for large messages. LL and
LL128, which have lower latency and lower bandwidth, and reductions in the switches (SHARP) are not
modelled.

Sources, which the docstrings cite by name:

- NCCL: `ncclTopoTuneModel` and `ncclTopoGetAlgoTime` in
  https://github.com/NVIDIA/nccl/blob/master/src/graph/tuning.cc, NCCL's own cost model
- the scaling book: https://jax-ml.github.io/scaling-book/, parts "Sharded Matrices" (3) and "GPUs"
  (12)
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from bench.records.collective_kinds import bus_factor

Limit = Literal["latency", "inside", "between"]
"""The dominant part: the latency, the links inside a domain, or the links between domains."""


@dataclass(frozen=True)
class Switch:
    """Members that all reach one another at the same speed."""

    members: int
    bandwidth: float
    """Bytes per second."""
    latency_s: float = 0.0
    """Latency of one step of the collective."""


@dataclass(frozen=True)
class Ring:
    """Members along one axis of a torus; `wraps` says whether its two ends are linked."""

    members: int
    wraps: bool
    bandwidth: float
    """Bytes per second of one link; an inner member sends on two."""
    latency_s: float = 0.0
    """From one member to the next."""

    @property
    def links(self) -> int:
        """Number of links of the member with the fewest."""
        return 2 if self.wraps else 1

    @property
    def hops(self) -> int:
        """Hops between the two members that are farthest apart."""
        return self.members // 2 if self.wraps else self.members - 1


ALONE = Switch(1, math.inf)


@dataclass(frozen=True)
class Route:
    """Links between members, equally many in each *domain*: a host's NVLink domain or TPU slice."""

    inside: Switch | tuple[Ring, ...] = ALONE
    """Links within a domain; the axes of a torus are used simultaneously."""
    between: Switch = ALONE
    """Links whose members are the domains; the bandwidth is one device's share."""
    overhead_s: float = 0.0
    """Fixed cost of every collective."""

    @property
    def members_inside(self) -> int:
        """Members in one domain."""
        if isinstance(self.inside, Switch):
            return self.inside.members
        return math.prod(ring.members for ring in self.inside)

    @property
    def members(self) -> int:
        """Members in all domains."""
        return self.members_inside * self.between.members


@dataclass(frozen=True)
class Cost:
    """The time of a collective, and what limits it."""

    seconds: float
    limit: Limit


def cost(kind: str, payload: float, route: Route) -> Cost:
    """Return the cost of one collective with the fastest algorithm.

    Raises ValueError if `kind` is not in `bench.records.collective_kinds.KINDS`.
    """
    bus_factor(kind, route.members)
    if route.members == 1:
        return Cost(0.0, "latency")
    match kind:
        case "all-to-all":
            return all_to_all(payload, route)
        case "collective-permute":
            return collective_permute(payload, route)
    phases = 2 if kind == "all-reduce" else 1
    if not isinstance(route.inside, Switch):
        return torus(payload, route, phases)
    costs = [ring(payload, route, phases)]
    if kind == "all-reduce":
        costs.append(tree(payload, route))
    return min(costs, key=lambda cost: cost.seconds)


def ring(payload: float, route: Route, phases: int) -> Cost:
    """Return the cost of a reduce-scatter or all-gather (1 phase) or an all-reduce (2), by rings.

    NCCL: of the n - 1 steps of a phase, d - 1 cross between the d domains, and the rest stay
    inside. The bytes follow the scaling book's part 12, "Cross-node collectives": each level has
    its own ring and all run at once, so the slowest level counts, with its bytes (D - 1) / (D W).
    All m members of a domain use their shares of the network: W is m times the bandwidth of one.
    """
    inside, between = route.inside, route.between
    assert isinstance(inside, Switch)  # noqa: S101
    steps_between = between.members - 1
    steps_inside = route.members - 1 - steps_between
    latency = steps_inside * inside.latency_s + steps_between * between.latency_s
    return _sum(
        route.overhead_s + phases * latency,
        phases * payload * bus_factor("all-gather", inside.members) / inside.bandwidth,
        phases * _between(payload, route),
    )


def tree(payload: float, route: Route) -> Cost:
    """Return the cost of an all-reduce up and down a tree, on switches.

    NCCL: a chain inside a domain and a binary tree between the d domains, 2 ((m - 1) a + log2(d)
    b), at half the bus bandwidth for any number of members. NCCL's corrections of a tree's
    bandwidth for certain sizes and chips are omitted.
    """
    inside, between = route.inside, route.between
    assert isinstance(inside, Switch)  # noqa: S101
    depth = math.ceil(math.log2(between.members))
    latency = (inside.members - 1) * inside.latency_s + depth * between.latency_s
    return _sum(
        route.overhead_s + 2 * latency,
        2 * payload / inside.bandwidth if inside.members > 1 else 0.0,
        2 * payload / (inside.members * between.bandwidth),
    )


def torus(payload: float, route: Route, phases: int) -> Cost:
    """Return the cost of a reduce-scatter or all-gather (1 phase) or an all-reduce (2), on a torus.

    The scaling book, part 3, "How is an AllGather actually performed?": along one axis, whole
    shards travel in both directions, n / 2 hops of payload / n each, and a hop takes at least its
    latency. Without a wraparound link it is n - 1 hops. Several axes are used at once: payload /
    (bandwidth x axes). Without wraparound, a corner has the fewest links and receives (N - 1) / N
    of the payload through them. (The book rounds n / 2 up; a ring of odd length needs only (n - 1)
    / 2 hops.) Links of unequal bandwidth are assumed to share the bytes so that they finish
    together. XLA may use fewer axes: according to jax's mesh_utils, it does on planes that are not
    square.
    """
    rings = route.inside
    assert isinstance(rings, tuple)  # noqa: S101
    missing = math.prod(1 - ring.links * ring.hops / ring.members for ring in rings)
    links = sum(ring.links * ring.bandwidth for ring in rings)
    own = payload * (1 - missing) / links if links else 0.0
    steps = (route.between.members - 1) * route.between.latency_s
    return _flow(
        route,
        (phases * _hops_s(rings), phases * own),
        (phases * steps, phases * _between(payload, route)),
    )


def all_to_all(payload: float, route: Route) -> Cost:
    """Return the cost of an all-to-all: every member sends an equal part of its payload to each.

    On switches, members send directly, to their own domain and to the others at once: the scaling
    book, part 12, "AllToAlls" and "Other collectives". The bytes are nccl-tests' factor, (n - 1) /
    n, split by destination.

    On a torus, intermediate members forward the parts. The middle links carry most, n^2 / 8 parts
    of payload / n in each direction of a ring, and n^2 / 4 on a line: the scaling book, part 3,
    "Our final communication primitive". With several axes at once, the slowest counts.
    """
    inside = route.members_inside
    between = payload * bus_factor("all-to-all", route.between.members) / route.between.bandwidth
    if isinstance(route.inside, Switch):
        latency = max(route.inside.latency_s, route.between.latency_s)
        own = payload * (inside - 1) / route.members / route.inside.bandwidth
        return _sum(route.overhead_s + latency, own, between)
    stays = payload / route.between.members
    own = max(
        (
            stays * (ring.members**2 // 4) / (ring.members * ring.links * ring.bandwidth)
            for ring in route.inside
        ),
        default=0.0,
    )
    network = (route.between.latency_s, between)
    return _flow(route, (_hops_s(route.inside), own), network)


def collective_permute(payload: float, route: Route) -> Cost:
    """Return the cost of a collective-permute: every member sends its payload to the next.

    The slowest pair counts. With several domains, it spans two of them. On a torus without
    wraparound it is the two ends. All members send, so each message has only one link, unlike a
    single message that no other one slows down (the scaling book, part 2, question 5).
    """
    inside, between = route.inside, route.between
    own = across = 0.0
    if between.members > 1:
        latency, across = between.latency_s, payload / between.bandwidth
    elif isinstance(inside, Switch):
        latency, own = inside.latency_s, payload / inside.bandwidth
    else:
        latency = sum((1 if ring.wraps else ring.members - 1) * ring.latency_s for ring in inside)
        own = payload / min(ring.bandwidth for ring in inside)
    return _sum(route.overhead_s + latency, own, across)


def _between(payload: float, route: Route) -> float:
    """Return the seconds in which domains exchange one domain's payload, all members sending."""
    share = bus_factor("all-gather", route.between.members)
    return payload * share / (route.members_inside * route.between.bandwidth)


def _hops_s(rings: tuple[Ring, ...]) -> float:
    return sum(ring.hops * ring.latency_s for ring in rings)


def _sum(latency: float, inside: float, between: float) -> Cost:
    """Return the cost where steps are sequential: NCCL's latency + bytes / bandwidth."""
    return _cost(latency + max(inside, between), latency, inside, between)


def _flow(route: Route, inside: tuple[float, float], between: tuple[float, float]) -> Cost:
    """Return the cost on a torus, whose chips forward bytes while receiving, beside the network.

    `inside` has the seconds of the hops and of the bytes, of which the larger counts; `between` has
    those of the steps and of the bytes, which add up.
    """
    seconds = route.overhead_s + max(*inside, sum(between))
    return _cost(seconds, max(inside[0], between[0]), inside[1], between[1])


def _cost(seconds: float, *parts: float) -> Cost:
    """Return the cost; its limit is the longest of latency, bytes inside and bytes between."""
    return Cost(seconds, get_args(Limit)[parts.index(max(parts))])
