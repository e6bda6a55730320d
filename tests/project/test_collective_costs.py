"""What collectives take: nccl-tests' factors, limits, and public answers and measurements.

Tables of public numbers give what the source says and how far the model is from it. A miss is
stated, not tuned away.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from bench.analyse import peaks
from bench.project.collective_costs import Cost, Ring, Route, Switch, cost, ring, torus, tree
from bench.project.hardware import hardware
from bench.project.machines import place
from bench.records.collective_kinds import KINDS, bus_factor
from bench.records.mesh import MeshShape

US = 1e-6
BF16 = 2

NODE = Route(Switch(8, 450e9, 3.4 * US), overhead_s=8.4 * US)
NODES = Route(NODE.inside, Switch(16, 50e9, 14 * US), 8.4 * US)
LOOP = Route((Ring(16, wraps=True, bandwidth=45e9, latency_s=US),))
LINE = Route((Ring(4, wraps=False, bandwidth=45e9, latency_s=US),))
SLICES = Route(LOOP.inside, Switch(4, 6.25e9))
ROUTES = [NODE, NODES, LOOP, LINE, SLICES]


def lone(route: Route) -> Route:
    """The same links without latencies."""
    assert isinstance(route.inside, Switch)
    return Route(replace(route.inside, latency_s=0), replace(route.between, latency_s=0))


def on(name: str, mesh: str, axes: str, kind: str, payload: float) -> Cost:
    """A collective along axes of one letter each, on a sheet's hardware."""
    sizes = [(part[0], int(part[1:])) for part in mesh.split()]
    return cost(kind, payload, place(hardware(name), MeshShape(tuple(sizes))).route(list(axes)))


@pytest.mark.parametrize(
    ("kind", "factor"),
    [
        ("all-reduce", 2 * 7 / 8),
        ("reduce-scatter", 7 / 8),
        ("all-gather", 7 / 8),
        ("all-to-all", 7 / 8),
        ("collective-permute", 1),
    ],
)
def test_bus_bandwidth_has_the_factors_of_nccl_tests(kind: str, factor: float) -> None:
    assert bus_factor(kind, 8) == factor
    # And a lone switch is used at just this: bus bandwidth = factor x payload / time.
    route = Route(Switch(8, 450e9))
    assert factor * 1e9 / cost(kind, 1e9, route).seconds == pytest.approx(450e9)


def test_an_unknown_kind_is_an_error_that_lists_the_known() -> None:
    with pytest.raises(
        ValueError, match="unknown collective 'broadcast'; choose from: all-reduce, "
    ):
        cost("broadcast", 1, NODE)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("alone", [Route(), Route((), overhead_s=1), Route(Switch(1, 1.0, 1.0))])
def test_one_member_costs_nothing(kind: str, alone: Route) -> None:
    assert cost(kind, 1e9, alone).seconds == 0


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("kind", KINDS)
def test_small_ones_are_bound_by_latency_and_large_ones_by_bandwidth(
    kind: str, route: Route
) -> None:
    small, large = cost(kind, 1, route), cost(kind, 1e12, route)
    if route is not SLICES or kind != "collective-permute":  # the network has no figure for latency
        assert small.limit == "latency"
        assert cost(kind, 2, route).seconds == pytest.approx(small.seconds, rel=1e-3)
    assert large.limit in {"inside", "between"}
    assert cost(kind, 2e12, route).seconds == pytest.approx(2 * large.seconds, rel=1e-3)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("kind", KINDS)
def test_more_bytes_never_take_less(kind: str, route: Route) -> None:
    times = [cost(kind, 2.0**power, route).seconds for power in range(41)]
    assert times == sorted(times)


@pytest.mark.parametrize("route", ROUTES)
def test_an_all_reduce_takes_at_most_a_reduce_scatter_and_an_all_gather(route: Route) -> None:
    for payload in (1e3, 1e6, 1e9):
        both = cost("reduce-scatter", payload, route).seconds
        both += cost("all-gather", payload, route).seconds
        assert cost("all-reduce", payload, route).seconds <= both


def test_a_tree_is_chosen_where_steps_count_and_a_ring_where_bytes_do() -> None:
    assert cost("all-reduce", 1e4, NODES) == tree(1e4, NODES)
    assert cost("all-reduce", 1e10, NODES) == ring(1e10, NODES, 2)
    # NCCL: 2 (n - 1) steps of a ring, 2 (d - 1) of them between domains; 2 log2(d) of a tree.
    chain = 2 * 7 * 3.4 * US
    tail = 8.4 * US + chain
    assert ring(0, NODES, 2).seconds == pytest.approx(8.4 * US + 2 * (112 * 3.4 + 15 * 14) * US)
    assert tree(0, NODES).seconds == pytest.approx(tail + 2 * 4 * 14 * US)
    assert tree(0, NODE).seconds == pytest.approx(tail)
    # One member a domain sends nothing inside.
    apart = Route(Switch(1, 1.0), Switch(16, 50e9))
    assert tree(1e9, apart).seconds == pytest.approx(2 * 1e9 / 50e9)
    # A tree's depth grows with the logarithm, also where it is not full.
    many = replace(NODES, between=replace(NODES.between, members=17))
    assert tree(0, many).seconds == pytest.approx(tail + 2 * 5 * 14 * US)


def test_domains_use_the_shares_of_all_their_members() -> None:
    one = replace(NODES, inside=Switch(1, 450e9))
    assert cost("all-gather", 1e9, lone(one)).seconds == pytest.approx(1e9 * 15 / 16 / 50e9)
    assert cost("all-gather", 1e9, lone(NODES)).seconds == pytest.approx(1e9 * 15 / 16 / 400e9)
    # An all-to-all cannot add up inside first: every byte for another domain leaves by itself.
    assert cost("all-to-all", 1e9, lone(NODES)).seconds == pytest.approx(1e9 * 15 / 16 / 50e9)


def test_a_torus_uses_both_directions_and_all_axes() -> None:
    two = Route((*LOOP.inside, *LOOP.inside))
    three = Route((*two.inside, *LOOP.inside))
    for kind, times in (("all-gather", 1), ("reduce-scatter", 1), ("all-reduce", 2)):
        assert cost(kind, 1e9, LOOP).seconds == pytest.approx(times * 1e9 / 90e9)
        assert cost(kind, 1e9, two).seconds == pytest.approx(times * 1e9 / 180e9)
        assert cost(kind, 1e9, three).seconds == pytest.approx(times * 1e9 / 270e9)
        assert cost(kind, 1, three).seconds == pytest.approx(times * 24 * US)


@pytest.mark.parametrize("members", [2, 3, 4, 5, 8, 16])
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_no_chip_receives_faster_than_its_links_allow(members: int, axes: int) -> None:
    everyone = members**axes
    for wraps, links in ((True, 2), (False, 1)):
        route = Route(tuple(Ring(members, wraps, 45e9) for _ in range(axes)))
        at_best = 1e9 * (everyone - 1) / everyone / (axes * links * 45e9)
        assert torus(1e9, route, 1).seconds >= at_best * (1 - 1e-12)


@pytest.mark.parametrize("members", [2, 4, 8, 16])
def test_an_all_to_all_on_a_ring_takes_a_quarter_of_an_all_gather(members: int) -> None:
    # Scaling book, part 3, question 10: of the same array, of which a device has 1 / n.
    route = Route((Ring(members, wraps=True, bandwidth=45e9),))
    gathered = cost("all-gather", 1e9, route).seconds
    assert cost("all-to-all", 1e9 / members, route).seconds == pytest.approx(gathered / 4)


def test_slices_exchange_over_the_network_what_they_have_reduced() -> None:
    # 16 chips of a slice send a sixteenth each to the other three.
    assert cost("all-reduce", 1e9, SLICES).seconds == pytest.approx(2 * 1e9 / 90e9)
    slow = replace(SLICES, between=Switch(4, 1e9))
    assert cost("all-reduce", 1e9, slow).seconds == pytest.approx(2 * 1e9 / 16 * 3 / 4 / 1e9)
    assert cost("all-reduce", 1e9, slow).limit == "between"


def test_a_network_with_latency_adds_steps_beside_those_of_the_torus() -> None:
    route = Route((Ring(4, wraps=True, bandwidth=1e9, latency_s=1.0),), Switch(3, 1e9, 5.0), 7.0)
    # 2 hops of 1 s; between slices 2 steps of 5 s, and 2 / 3 of a quarter of the bytes after them.
    assert cost("all-gather", 0, route).seconds == 7 + 10
    assert cost("all-gather", 12e9, route).seconds == pytest.approx(7 + 10 + 2)
    assert cost("all-gather", 60e9, route).seconds == pytest.approx(7 + 30)  # 60 / 2 inside
    assert cost("all-to-all", 0, route).seconds == 7 + 5


def test_an_all_to_all_splits_bytes_by_where_they_go() -> None:
    # 1 of 6 parts stays, 1 goes inside, 4 go to the two other domains.
    route = Route(Switch(2, 1e9, 1.0), Switch(3, 10e9, 5.0))
    assert cost("all-to-all", 60e9, route).seconds == pytest.approx(5 + 10)
    fast = replace(route, inside=Switch(2, 100e9, 1.0))
    assert cost("all-to-all", 60e9, fast).seconds == pytest.approx(5 + 4)
    # On a torus, a third of the bytes stays in the slice, and passes a middle link of a line of 3.
    line = Route((Ring(3, wraps=False, bandwidth=1e9),), Switch(3, 100e9))
    assert cost("all-to-all", 9e9, line).seconds == pytest.approx(3 * 2 / 3)


@dataclass(frozen=True)
class Answer:
    """A worked answer of the scaling book, https://jax-ml.github.io/scaling-book/."""

    where: str
    hardware: str
    mesh: str
    axes: str
    kind: str
    payload: float
    book: float
    """Seconds."""
    miss: float = 0.0
    """Of the model: predicted / book - 1, to one percent."""
    why: str = ""


V4 = "X4 Y4 Z4"
SHARDED = 1024 * 4096 * BF16
ANSWERS = [
    Answer("2, question 5", "tpu-v5e", "X16", "X", "collective-permute", 8 * 128 * 8192 * BF16,
           194 * US, 0.95, "the book moves one message, over all axes; here all members send"),
    Answer("3, pop quiz 2: E=2048, F=8192", "tpu-v5e", "X8 Y4", "Y", "all-gather",
           2048 * 8192 * BF16, 560 * US),
    Answer("3, pop quiz 2: the profile", "tpu-v5e", "X8 Y4", "Y", "all-gather",
           2048 * 8192 * BF16, 680 * US, -0.18, "a measurement; links do not reach their rate"),
    Answer("3, pop quiz 2: E=F=256", "tpu-v5e", "X8 Y4", "Y", "all-gather", 256 * 256 * BF16,
           3 * US),
    Answer("3, pop quiz 2: E=F=256, in practice", "tpu-v5e", "X8 Y4", "Y", "all-gather",
           256 * 256 * BF16, 8 * US, -0.62, "a measurement; a TPU has no figure for overhead"),
    Answer("3, question 2.1", "tpu-v4", V4, "X", "all-gather", SHARDED / 4, 23 * US, 0.01),
    Answer("3, question 2.2", "tpu-v4", V4, "XY", "all-gather", SHARDED, 46 * US, 0.01),
    Answer("3, question 2.3", "tpu-v4", V4, "Z", "all-reduce", SHARDED / 16, 190 * US, -0.94,
           "the book reduces the whole array, of which a chip has a sixteenth"),
    Answer("3, question 2.4 of another edition", "tpu-v4", V4, "Z", "reduce-scatter", SHARDED / 16,
           5.8 * US),
    Answer("3, question 3", "tpu-v4", V4, "X", "all-gather", 128 * BF16, 2 * US),
    Answer("12, quiz 2, question 3", "h100-sxm", "X8", "X", "all-gather", 4096 * 65536 * BF16,
           1.04e-3, 0.03, "the book has no latencies"),
    Answer("12, quiz 2, question 3: in practice", "h100-sxm", "X8", "X", "all-gather",
           4096 * 65536 * BF16, 1.5e-3, -0.28, "a measurement; NVLink does not reach its rate"),
    Answer("12, pop quiz 1", "h100-sxm", "X8", "X", "all-gather", 1024 * 16384 * BF16, 65 * US,
           0.50, "the book has no latencies: 8.4 us and 7 steps of 3.4 us"),
    Answer("12, cross-node collectives", "h100-sxm", "X1024", "X", "all-gather", 1e12, 1e12 / 400e9,
           -0.01, "the book has 1 for 127 / 128"),
    Answer("12, cross-node collectives: all-to-all over 2 nodes", "h100-sxm", "X16", "X",
           "all-to-all", 1e12 / 16, 1e12 / (2 * 400e9), -0.50,
           "the book has B / M for B (M - 1) / M^2"),
    Answer("12, quiz 4, question 5", "h100-sxm", "X16", "X", "all-gather", 1e12, 1e12 / 514e9),
    Answer("12, pop quiz 3: Y = 4", "h100-sxm", "X64 Y4", "X", "all-gather",
           8192 * 32768 * BF16 / 4, 8192 * 32768 * BF16 * 31 / 32 / 400e9, 0.42,
           "the book has no latencies: 31 steps of 14 us"),
    Answer("12, pop quiz 3: Y = 16", "h100-sxm", "X16 Y16", "X", "all-gather",
           8192 * 32768 * BF16 / 16, 8192 * 32768 * BF16 / 16 / 50e9, 0.26,
           "the book has no latencies, and 1 for 15 / 16"),
]  # fmt: skip


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: answer.where)
def test_worked_answers_of_the_scaling_book(answer: Answer) -> None:
    found = on(answer.hardware, answer.mesh, answer.axes, answer.kind, answer.payload)
    assert found.seconds / answer.book - 1 == pytest.approx(answer.miss, abs=0.01)
    assert abs(answer.miss) <= 0.01 or answer.why


@pytest.mark.parametrize(
    ("axes", "payload", "book"),
    [
        ("X8", 1024 * 16384 * BF16, 65 * US),
        ("X64 Y4", 8192 * 32768 * BF16 / 4, 8192 * 32768 * BF16 * 31 / 32 / 400e9),
        ("X16 Y16", 8192 * 32768 * BF16 / 16, 8192 * 32768 * BF16 / 16 * 15 / 16 / 50e9),
    ],
)
def test_without_latencies_the_answers_are_the_books(
    axes: str, payload: float, book: float
) -> None:
    sizes = tuple((part[0], int(part[1:])) for part in axes.split())
    route = place(hardware("h100-sxm"), MeshShape(sizes)).route(["X"])
    assert cost("all-gather", payload, lone(route)).seconds == pytest.approx(book, rel=0.01)


def test_two_nodes_are_bound_by_the_links_inside() -> None:
    # Scaling book, part 12, quiz 4, question 5: "bounded by the node level reduction".
    assert on("h100-sxm", "X16", "X", "all-gather", 1e12).limit == "inside"
    assert on("h100-sxm", "X40", "X", "all-gather", 1e12).limit == "between"


def test_small_shards_are_bound_by_the_latency_of_hops() -> None:
    # Scaling book, part 3, "A note on ICI latency": on v5e, any buffer under 45 kB.
    for shard, limit in ((44e3, "latency"), (46e3, "inside")):
        assert on("tpu-v5e", "X16 Y16", "X", "all-gather", 16 * shard).limit == limit
        assert on("tpu-v5e", "X8 Y4", "Y", "all-gather", 4 * shard).limit == limit


@dataclass(frozen=True)
class Threshold:
    """Tokens per chip below which a step is bound by communication, as the book says."""

    where: str
    hardware: str
    mesh: str
    axes: str
    kind: str
    """An all-reduce of gradients (data parallelism), or an all-gather of parameters (FSDP)."""
    book: float
    miss: float = 0.0
    why: str = ""


D, F = 8192, 32768
FLOPS = {"all-reduce": 8 * D * F, "all-gather": 4 * D * F}
"""A token's in a layer of two matrices D x F, each with one collective: of the backward pass, where
gradients are reduced; of the forward pass, where parameters are gathered."""
THRESHOLDS = [
    Threshold("5, data parallelism", "tpu-v5p", "X16 Y16 Z16", "X", "all-reduce", 2550),
    Threshold("5, FSDP", "tpu-v5p", "X16 Y16 Z16", "X", "all-gather", 2550),
    Threshold("5, data parallelism, 3 axes", "tpu-v5p", "X4096", "X", "all-reduce", 850),
    Threshold("5, FSDP, 3 axes", "tpu-v5p", "X4096", "X", "all-gather", 850),
    Threshold("5, scaling between pods", "tpu-v5p", "P16 X6144", "P", "all-reduce", 76_000, -0.09,
              "the book rounds up, and has 1 for 15 / 16"),
    Threshold("12, data parallelism within a node", "h100-sxm", "X8", "X", "all-reduce", 2200,
              -0.11, "the book has 1 for 7 / 8, and no latencies"),
    Threshold("12, data parallelism across nodes", "h100-sxm", "X1024", "X", "all-reduce", 2475,
              0.09, "the book has no latencies: 2 (7 steps of 14 us and 7 of 3.4 us)"),
    Threshold("12, ZeRO across nodes", "h100-sxm", "X1024", "X", "all-gather", 2475, 3.59,
              "the book has no latencies: 127 steps of 14 us and 896 of 3.4 us, as NCCL counts"),
    Threshold("12, quiz 5, question 1", "b200", "X1024", "X", "all-reduce", 5625, 0.09,
              "as on H100 across nodes"),
]  # fmt: skip


@pytest.mark.parametrize("threshold", THRESHOLDS, ids=lambda threshold: threshold.where)
def test_when_a_batch_is_bound_by_communication(threshold: Threshold) -> None:
    """Part 5, "When do we become bottlenecked by communication?", of matrices in bf16."""
    peak = peaks.peak(hardware(threshold.hardware).device_kind, "bf16")
    assert peak is not None
    # Between pods, it is of a whole pod, whose chips exchange a part of the gradients each, and of
    # so many layers at once that latency, which is assumed there, does not count.
    chips, layers = (6144, 10**6) if "pods" in threshold.where else (1, 1)
    payload = layers * D * F * BF16 / chips
    one = on(threshold.hardware, threshold.mesh, threshold.axes, threshold.kind, payload)
    tokens = 2 * one.seconds / layers * chips * peak.flops / FLOPS[threshold.kind]
    assert tokens / threshold.book - 1 == pytest.approx(threshold.miss, abs=0.01)
    assert abs(threshold.miss) <= 0.01 or threshold.why


@pytest.mark.parametrize(("axes", "ways"), [("Y", 11), ("YZ", 2 * 11)])
def test_when_tensor_parallelism_is_bound_by_communication(axes: str, ways: int) -> None:
    # Scaling book, part 5, "Tensor Parallelism": Y > n_axes F / 2550, about 11 an axis for 30,000.
    peak = peaks.peak(hardware("tpu-v5p").device_kind, "bf16")
    assert peak is not None
    batch, width = 1e6, 30_000
    gathered = on("tpu-v5p", "X16 Y16 Z16", axes, "all-gather", batch * D * BF16).seconds
    scattered = on("tpu-v5p", "X16 Y16 Z16", axes, "reduce-scatter", batch * D * BF16).seconds
    alone = 4 * batch * D * width / peak.flops
    assert alone / (gathered + scattered) == pytest.approx(ways, rel=0.08)


MEASURED = {
    # https://github.com/stas00/ml-engineering/blob/master/network/README.md: all-reduce, payload
    # in MiB and bus bandwidth in GB/s, and the miss of the model: predicted / measured - 1.
    "one node of a100-sxm-80gb": ("X8", [
        (1, 18.00, 0.64), (16, 106.16, 0.80), (64, 171.54, 0.53), (1024, 229.04, 0.30),
        (16384, 234.89, 0.28)]),
    # With reductions in the switch (SHARP), which the model lacks.
    "one node of h200": ("X8", [
        (1, 39.93, -0.24), (16, 219.89, 0.10), (64, 346.51, 0.07), (1024, 463.58, -0.04),
        (16384, 482.26, -0.07)]),
    "one node of b200": ("X8", [
        (1, 36.06, -0.12), (16, 254.96, 0.30), (64, 400.60, 0.57), (1024, 723.34, 0.21),
        (16384, 845.67, 0.06)]),
    # With EFA of 50 GB/s a GPU between nodes.
    "four nodes of b200": ("X32", [
        (1, 5.37, 2.22), (16, 64.43, 1.57), (64, 156.74, 0.85), (1024, 361.99, 0.34),
        (16384, 381.80, 0.35)]),
}  # fmt: skip


@pytest.mark.parametrize("name", MEASURED)
def test_measured_all_reduces_on_gpus(name: str) -> None:
    mesh, rows = MEASURED[name]
    for mib, measured, miss in rows:
        payload = mib * 2**20
        seconds = on(name.rsplit(maxsplit=1)[-1], mesh, "X", "all-reduce", payload).seconds
        predicted = bus_factor("all-reduce", int(mesh[1:])) * payload / seconds / 1e9
        assert predicted / measured - 1 == pytest.approx(miss, abs=0.015), f"{mib} MiB"
