"""Which links the axes of a mesh get."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bench.project.collective_costs import Ring, Route, Switch
from bench.project.hardware import HardwareError, hardware
from bench.project.machines import Placement, lay, place
from bench.records.mesh import MeshShape


def placed(name: str, mesh: str) -> Placement:
    return place(hardware(name), MeshShape.parse(mesh))


def members(route: Route) -> tuple[int, int]:
    """Inside of a domain, and domains."""
    return route.members_inside, route.between.members


@pytest.mark.parametrize(
    ("mesh", "axes", "inside", "domains"),
    [
        ("data=8", ["data"], 8, 1),
        ("data=4", ["data"], 4, 1),
        ("data=16", ["data"], 8, 2),
        ("data=4,model=8", ["model"], 8, 1),  # the last axis is innermost
        ("data=4,model=8", ["data"], 1, 4),  # strides over hosts
        ("data=8,model=4", ["data"], 2, 4),  # what is left of a host
        ("data=8,model=4", ["data", "model"], 8, 4),
        ("data=4,fsdp=4,model=2", ["fsdp"], 4, 1),
        ("data=4,fsdp=4,model=2", ["data"], 1, 4),
        ("data=4,fsdp=4,model=2", ["data", "model"], 2, 4),
        ("data=2,model=16", ["model"], 8, 2),
        ("data=2,model=16", ["data"], 1, 2),
        ("data=1,model=8", ["data"], 1, 1),
    ],
)
def test_axes_are_inside_a_domain_as_far_as_they_fit(
    mesh: str, axes: list[str], inside: int, domains: int
) -> None:
    assert members(placed("h100-sxm", mesh).route(axes)) == (inside, domains)


def test_links_are_those_of_the_sheet() -> None:
    route = placed("h100-sxm", "data=16").route(["data"])
    assert route == Route(Switch(8, 450e9, 3.4e-6), Switch(2, 50e9, 14e-6), 8.4e-6)


def test_the_order_in_which_axes_are_named_does_not_matter() -> None:
    mesh = placed("h100-sxm", "data=4,fsdp=4,model=2")
    assert mesh.route(["model", "data"]) == mesh.route(["data", "model"])


@pytest.mark.parametrize(
    ("chips", "used", "domains"),
    [(128, 64, 2), (72, 72, 1), (144, 72, 2), (96, 48, 2), (64, 64, 1)],
)
def test_a_job_takes_equally_many_chips_of_each_domain(chips: int, used: int, domains: int) -> None:
    found = placed("gb200-nvl72", f"data={chips}")
    assert (found.shape, math.prod(found.outer.values())) == ((used,), domains)
    assert members(found.route(["data"])) == (used, domains)


def test_groups_that_lie_unevenly_are_an_error() -> None:
    # The third group of 3 along model is in two domains of 8.
    with pytest.raises(HardwareError, match="along data of the mesh data=8,model=3 have unequal"):
        placed("h100-sxm", "data=8,model=3")
    # Of 4, all in a domain of 6, or 2 in each of two.
    with pytest.raises(HardwareError, match="along data of the mesh data=3,model=4 have unequal"):
        placed("h100-sxm", "data=3,model=4")


def test_tens_of_thousands_of_chips_are_counted() -> None:
    found = placed("h100-sxm", "data=1024,fsdp=8,model=8")
    assert found.mesh.size == 65536
    assert members(found.route(["data", "fsdp"])) == (1, 8192)


def test_hardware_without_links_can_only_be_alone() -> None:
    assert placed("h100-pcie", "data=1").route(["data"]).members == 1
    with pytest.raises(HardwareError, match=r"h100-pcie: .* no figures for a network"):
        placed("h100-pcie", "data=2")


@pytest.mark.parametrize(
    ("mesh", "axis", "rings"),
    [
        # Whole axes of a 4x4x4 slice: each has its own.
        ("data=4,fsdp=4,model=4", "model", [(4, True, 1)]),
        # The most axes that give the size.
        ("data=4,model=16", "model", [(4, True, 1), (4, True, 1)]),
        ("data=64", "data", [(4, True, 1)] * 3),
        # A part of an axis has no link between its ends; what it is a part of goes round.
        ("data=32,model=2", "model", [(2, False, 1)]),
        ("data=16,fsdp=2,model=2", "model", [(2, False, 1)]),
        ("data=16,fsdp=2,model=2", "fsdp", [(2, True, 2)]),
        ("data=16,fsdp=2,model=2", "data", [(4, True, 1), (4, True, 1)]),
    ],
)
def test_axes_get_axes_of_the_torus_or_parts(
    mesh: str, axis: str, rings: list[tuple[int, bool, int]]
) -> None:
    route = placed("tpu-v5p", mesh).route([axis])
    # Groups that are interleaved share links, and neighbours are further apart.
    assert route.inside == tuple(
        Ring(size, wraps, 90e9 / stride, 1e-6 * stride) for size, wraps, stride in rings
    )


def test_parts_that_follow_one_another_are_one_axis() -> None:
    route = placed("tpu-v5p", "data=16,fsdp=2,model=2").route(["fsdp", "model"])
    assert route.inside == (Ring(4, wraps=True, bandwidth=90e9, latency_s=1e-6),)


def test_ends_are_linked_where_the_slice_says_so() -> None:
    assert placed("tpu-v5e", "data=128").route(["data"]).inside == (
        Ring(8, wraps=False, bandwidth=45e9, latency_s=1e-6),
        Ring(16, wraps=True, bandwidth=45e9, latency_s=1e-6),
    )
    assert placed("tpu-v5p", "data=4").route(["data"]).inside == (
        Ring(2, wraps=False, bandwidth=90e9, latency_s=1e-6),
        Ring(2, wraps=False, bandwidth=90e9, latency_s=1e-6),
    )


@pytest.mark.parametrize("shape", [(4, 4, 4), (2, 4, 4), (8, 16), (16, 16, 24)])
@pytest.mark.parametrize("sizes", [(1, 2, 0), (0, 4), (4, 0, 2), (2, 2, 2, 0), (0,)])
def test_parts_make_up_the_axes_and_the_slice(shape: tuple[int, ...], sizes: tuple[int]) -> None:
    chips = math.prod(shape)
    known = math.prod(size for size in sizes if size)
    axes = [(f"a{i}", size or chips // known) for i, size in enumerate(sizes)]
    found = lay(axes, shape)
    for name, size in axes:
        parts = [members for own in found for owner, members in own if owner == name]
        assert math.prod(parts) == size
    # Every chip has one place: parts count each axis of the torus through.
    for own, length in zip(found, shape, strict=True):
        places = np.zeros(1, dtype=int)
        for _, members in own:
            places = (places[:, None] + np.arange(members) * len(places)).reshape(-1)
        assert sorted(places.tolist()) == list(range(length))


def test_the_last_axis_chooses_first() -> None:
    found = lay([("data", 4), ("model", 8)], (2, 4, 4))
    assert found == [[("model", 2)], [("model", 4)], [("data", 4)]]


def test_large_factors_are_placed_where_they_fit() -> None:
    # 6 of an axis of 24 and one of 16: the 3 has only one place.
    found = lay([("data", 64), ("model", 6)], (16, 24))
    assert found == [[("model", 2), ("data", 8)], [("model", 3), ("data", 8)]]


@pytest.mark.parametrize(
    ("mesh", "shape", "slices", "axes", "inside", "domains"),
    [
        ("data=8192", (16, 16, 16), 2, ["data"], 4096, 2),
        ("data=2,fsdp=4096", (16, 16, 16), 2, ["data"], 1, 2),
        ("data=2,fsdp=4096", (16, 16, 16), 2, ["fsdp"], 4096, 1),
        ("data=8,fsdp=2048", (16, 16, 16), 4, ["data"], 2, 4),
        ("data=2,fsdp=8192", (16, 16, 16), 4, ["fsdp"], 4096, 2),
        ("data=2,fsdp=6144", (16, 16, 24), 2, ["data"], 1, 2),
        ("data=9,fsdp=4096", (16, 16, 24), 6, ["data"], 3, 3),
        ("data=9,fsdp=4096", (16, 16, 24), 6, ["fsdp"], 2048, 2),
    ],
)
def test_more_chips_than_a_slice_are_slices_and_the_outermost_axes_span_them(
    mesh: str, shape: tuple[int, ...], slices: int, axes: list[str], inside: int, domains: int
) -> None:
    found = placed("tpu-v5p", mesh)
    assert (found.shape, math.prod(found.outer.values())) == (shape, slices)
    assert members(found.route(axes)) == (inside, domains)
    assert found.route(axes).between.bandwidth == (6.25e9 if domains > 1 else math.inf)


def test_a_slice_that_there_is_not_is_an_error_that_lists_the_sizes() -> None:
    with pytest.raises(HardwareError, match="tpu-v5e: there is no slice of 24 chips; there are 1,"):
        placed("tpu-v5e", "data=24")
    with pytest.raises(HardwareError, match=r"of 6145 chips; .* multiples of these beyond 6144"):
        placed("tpu-v5p", "data=6145")
