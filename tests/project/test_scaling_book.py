"""Worked answers of the scaling book, https://jax-ml.github.io/scaling-book/, by the cost model.

Each asks below which size communication takes longer than compute. A model whose layers are
feed-forward networks, 64 of them, is so wide that latencies are negligible.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from bench.project.collective_costs import Ring, Route
from bench.project.hardware import hardware
from bench.project.machines import Machine, of_sheet
from bench.project.published_results import Published
from bench.project.step_model import FORWARD, Work, work
from bench.records.mesh import MeshShape

RATIO = 2550
"""FLOP/s of a TPU v5p over the bytes that a link carries in a second, as the book rounds it."""

WIDTH, LAYERS = 8192, 64
WIDE = 1e11 / (2 * WIDTH * LAYERS)
"""The feed-forward width."""


def at_peak(machine: Machine) -> Machine:
    return replace(machine, flops=machine.peak)


def torus(**axes: tuple[int, ...]) -> Machine:
    """TPU v5p chips whose mesh axes are whole axes of a torus, of these lengths."""
    sheet = hardware("tpu-v5p")
    assert sheet.torus is not None
    link, hop = sheet.torus.link_bandwidth.value, sheet.torus.hop_latency_s.value
    routes = {
        axis: Route(tuple(Ring(length, True, link, hop) for length in lengths))
        for axis, lengths in axes.items()
    }
    alone = of_sheet(sheet, MeshShape.parse("data=64"), "bf16")
    return replace(at_peak(alone), route=lambda along: routes[along[0]])


class FeedForward(Published):
    """Layers of two feed-forward networks, without attention."""

    @property
    def flops(self) -> float:
        return 6 * self.parameters


def step(mesh: str, machine: Machine, width: float = WIDE, tokens: int = 1) -> Work:
    model = FeedForward(
        name="MLP blocks", hardware="", source="https://", says="-", assumed="", rows=(),
        parameters=2 * WIDTH * width * LAYERS, layers=LAYERS // 2, width=WIDTH, sequence=1,
        tokens=tokens, gradient_bytes=2,
    )  # fmt: skip
    return work(model.program(MeshShape.parse(mesh)), machine)


def fewest_tokens(machine: Machine, mesh: str, width: float = WIDE) -> float:
    """Tokens per chip from which on compute hides all it can.

    Compute grows with the tokens, while communication of parameters and gradients does not.
    """
    of_one = step(mesh, machine, width)
    after_forward = of_one.after_forward_s / (1 - FORWARD[""])
    return max(of_one.hideable_s, after_forward) / of_one.products_s


def narrowest(ways: int) -> float:
    """Feed-forward width from which on compute dominates the forward pass of `ways` chips.

    Compute grows with the width, while communication of activations does not.
    """
    narrow = step(f"model={ways}", torus(model=(ways,)), width=1.0, tokens=4096)
    # The forward pass has half of a step's collectives.
    return narrow.waited_s / 2 / (FORWARD[""] * narrow.products_s)


@pytest.mark.parametrize("axis", ["data", "fsdp"])
@pytest.mark.parametrize("count", [1, 3])
def test_tokens_per_chip_of_data_parallelism_over_axes_of_a_torus(axis: str, count: int) -> None:
    tokens = fewest_tokens(torus(**{axis: (16,) * count}), f"{axis}={16**count}")
    assert tokens == pytest.approx(RATIO / count, rel=1e-6)


def test_the_width_of_tensor_parallelism_over_an_axis_of_a_torus() -> None:
    assert narrowest(16) == pytest.approx(16 * RATIO, rel=1e-6)


def test_tokens_per_chip_of_fsdp_over_two_axes_and_tensor_parallelism_over_the_third() -> None:
    """The book allows axes of any length: its best is 12.85, where 13 is the most hidden."""
    width = 32_768
    feasible = itertools.takewhile(lambda ways: narrowest(ways) <= width, itertools.count(2))
    tokens = min(
        fewest_tokens(torus(fsdp=(16, 16), model=(ways,)), f"fsdp=256,model={ways}", width)
        for ways in feasible
    )
    assert tokens == pytest.approx(RATIO / (2 * 13), rel=1e-6)
    assert tokens == pytest.approx(RATIO**2 / (2 * width), rel=0.012)


@pytest.mark.parametrize(
    ("mesh", "tokens", "error"), [("data=8", 2200 * 7 / 8, 0.01), ("data=1024", 2475, 0.02)]
)
def test_tokens_per_gpu_of_data_parallelism(mesh: str, tokens: float, error: float) -> None:
    """The book leaves out that a member's own part stays where it is, and latency."""
    machine = at_peak(of_sheet(hardware("h100-sxm"), MeshShape.parse(mesh), "bf16"))
    assert fewest_tokens(machine, mesh) == pytest.approx(tokens, rel=error)
