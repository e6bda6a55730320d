"""The scaling book's worked answers beside the model's own.

They ask when communication takes longer than compute, at the published peak and with everything
hidden that can be: https://jax-ml.github.io/scaling-book/, parts 5 ("Training") and 12 ("GPUs").
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from scipy.optimize import brentq

from bench.project.collective_costs import Ring, Route
from bench.project.hardware import hardware
from bench.project.machines import Machine, of_sheet
from bench.project.step_model import FORWARD, work
from bench.project.transformer_formula import Transformer
from bench.records.mesh import MeshShape

_WIDTH = 8192
_LAYERS = 64


@dataclass(frozen=True)
class Answer:
    """A worked answer of the scaling book, and ours."""

    question: str
    book: float
    ours: float


def answers() -> Iterator[Answer]:
    """All worked answers."""
    axes = {1: "one axis", 3: "three axes"}
    bound = "below which communication takes longer than compute"
    for way, axis in (("data parallel", "data"), ("FSDP", "fsdp")):
        for count, words in axes.items():
            tokens = _fewest_tokens(_torus({axis: (16,) * count}), f"{axis}={16**count}")
            question = f"TPU v5p, {way} over {words}: tokens per chip {bound}"
            yield Answer(question, 2550 / count, tokens)
    yield Answer(
        f"TPU v5p, 16-way tensor parallel over one axis: feed-forward width {bound}",
        16 * 2550,
        _narrowest(16),
    )
    yield Answer(
        "TPU v5p, FSDP over two axes and tensor parallel over the third, feed-forward width "
        f"32,768: tokens per chip {bound}; the book allows axes of any length",
        2550**2 / (2 * 32_768),
        _fewest_mixed_tokens(32_768),
    )
    for book, mesh, where in ((2200, "data=8", "in a node"), (2475, "data=1024", "of 1,024")):
        machine = of_sheet(hardware("h100-sxm"), MeshShape.parse(mesh), "bf16")
        yield Answer(
            f"H100, data parallel {where}: tokens per GPU {bound}; the book leaves out "
            "(n - 1) / n and latency",
            book,
            _fewest_tokens(_at_peak(machine), mesh),
        )


def _at_peak(machine: Machine) -> Machine:
    return replace(machine, flops=machine.peak or machine.flops)


def _torus(axes: Mapping[str, tuple[int, ...]]) -> Machine:
    """TPU v5p chips whose mesh axes lie along whole axes of a torus, of these lengths."""
    sheet = hardware("tpu-v5p")
    assert sheet.torus is not None  # noqa: S101
    link, hop = sheet.torus.link_bandwidth.value, sheet.torus.hop_latency_s.value
    routes = {
        axis: Route(
            tuple(Ring(length, wraps=True, bandwidth=link, latency_s=hop) for length in lengths)
        )
        for axis, lengths in axes.items()
    }
    alone = of_sheet(sheet, MeshShape((("data", math.prod(sheet.torus.shapes.value[-1])),)), "bf16")
    return replace(_at_peak(alone), route=lambda along: routes[along[0]])


def _model(parameters: float = 1e11) -> Transformer:
    """The book's model: no attention, and so large that latencies do not count."""
    return Transformer(
        name="MLP blocks", parameters=parameters, layers=_LAYERS, width=_WIDTH, sequence=0, blocks=1
    )


def _of_width(width: float) -> Transformer:
    """The book's model with a feed-forward network of this width."""
    return _model(2 * _WIDTH * width * _LAYERS)


def _fewest_tokens(machine: Machine, mesh: str, model: Transformer | None = None) -> float:
    """Tokens per chip from which on compute hides all that can be hidden."""
    model, shape = model or _model(), MeshShape.parse(mesh)

    def excess(tokens: float) -> float:
        step = work(model.program(shape, tokens), machine)
        forward = FORWARD[False] * step.products_s
        return max(step.hideable_s, forward + step.after_forward_s) - step.products_s

    return _root(excess)


def _narrowest(ways: int) -> float:
    """Feed-forward width from which on compute binds in the forward pass.

    Tensor parallelism is over one axis of so many v5p chips.
    """
    shape, machine = MeshShape((("model", ways),)), _torus({"model": (ways,)})

    def excess(width: float) -> float:
        step = work(_of_width(width).program(shape, 4096), machine)
        # The forward pass has half of a step's collectives.
        return step.waited_s / 2 - FORWARD[False] * step.products_s

    return _root(excess)


def _fewest_mixed_tokens(width: int) -> float:
    """Return `_fewest_tokens` with the best degree of tensor parallelism.

    Both axes communicate at the same time, hidden behind compute, as the book assumes.
    """
    feasible = itertools.takewhile(lambda ways: _narrowest(ways) <= width, itertools.count(2))
    return min(
        _fewest_tokens(
            _torus({"fsdp": (16, 16), "model": (ways,)}),
            f"fsdp={16**2},model={ways}",
            _of_width(width),
        )
        for ways in feasible
    )


def _root(excess: Callable[[float], float]) -> float:
    return float(brentq(excess, 1.0, 1e6))
