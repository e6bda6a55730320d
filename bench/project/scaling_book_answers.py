"""The scaling book's worked answers beside the model's own.

They say when communication takes longer than compute, at the published peak and with all that can
be hidden: https://jax-ml.github.io/scaling-book/, parts 5 ("Training") and 12 ("GPUs").
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from bench.project.collective_costs import Ring, Route
from bench.project.hardware import hardware
from bench.project.machines import Machine, of_sheet
from bench.project.published_results import Transformer
from bench.project.step_model import FORWARD, Work, work
from bench.records.mesh import MeshShape

_WIDTH = 8192
_LAYERS = 64
_WIDE = 1e11 / (2 * _WIDTH * _LAYERS)
"""Feed-forward width of a model so large that latencies are negligible."""


@dataclass(frozen=True)
class Answer:
    """A worked answer of the scaling book, and the model's."""

    question: str
    book: float
    ours: float


def answers() -> Iterator[Answer]:
    """Yield all worked answers."""
    axes = {1: "one axis", 3: "three axes"}
    bound = "below which communication takes longer than compute"
    for way, axis in (("data parallel", "data"), ("FSDP", "fsdp")):
        for count, words in axes.items():
            tokens = _fewest_tokens(_torus({axis: (16,) * count}), f"{axis}={16**count}")
            question = f"TPU v5p, {way} over {words}: tokens per chip {bound}"
            yield Answer(question, 2550 / count, tokens)
    question = f"TPU v5p, 16-way tensor parallel over one axis: feed-forward width {bound}"
    yield Answer(question, 16 * 2550, _narrowest(16))
    question = (
        "TPU v5p, FSDP over two axes and tensor parallel over the third, feed-forward width "
        f"32,768: tokens per chip {bound}; the book allows axes of any length"
    )
    yield Answer(question, 2550**2 / (2 * 32_768), _fewest_mixed_tokens(32_768))
    left_out = "the book leaves out (n - 1) / n and latency"
    for book, mesh, where in ((2200, "data=8", "in a node"), (2475, "data=1024", "of 1,024")):
        machine = _at_peak(of_sheet(hardware("h100-sxm"), MeshShape.parse(mesh), "bf16"))
        question = f"H100, data parallel {where}: tokens per GPU {bound}; {left_out}"
        yield Answer(question, book, _fewest_tokens(machine, mesh))


def _at_peak(machine: Machine) -> Machine:
    return replace(machine, flops=machine.peak or machine.flops)


def _torus(axes: Mapping[str, tuple[int, ...]]) -> Machine:
    """Return TPU v5p chips whose mesh axes are whole axes of a torus, with these lengths."""
    sheet = hardware("tpu-v5p")
    assert sheet.torus is not None  # noqa: S101
    link, hop = sheet.torus.link_bandwidth.value, sheet.torus.hop_latency_s.value
    routes = {
        axis: Route(tuple(Ring(length, True, link, hop) for length in lengths))
        for axis, lengths in axes.items()
    }
    alone = of_sheet(sheet, MeshShape.parse("data=64"), "bf16")
    return replace(_at_peak(alone), route=lambda along: routes[along[0]])


def _step(mesh: str, machine: Machine, width: float = _WIDE, tokens: float = 1.0) -> Work:
    """Return a step of the book's model, whose layers are feed-forward networks of this width."""
    model = Transformer(
        name="MLP blocks", parameters=2 * _WIDTH * width * _LAYERS, layers=_LAYERS,
        width=_WIDTH, sequence=0, blocks=1,
    )  # fmt: skip
    return work(model.program(MeshShape.parse(mesh), tokens), machine)


def _fewest_tokens(machine: Machine, mesh: str, width: float = _WIDE) -> float:
    """Return the smallest number of tokens per chip with which compute hides all it can.

    Compute grows with the tokens, while communication of parameters and gradients does not.
    """
    step = _step(mesh, machine, width)
    after_forward = step.after_forward_s / (1 - FORWARD[""])
    return max(step.hideable_s, after_forward) / step.products_s


def _narrowest(ways: int) -> float:
    """Return the smallest feed-forward width at which compute dominates the forward pass.

    Tensor parallelism is over one axis of this many v5p chips. Compute grows with the width, while
    communication of activations does not.
    """
    step = _step(f"model={ways}", _torus({"model": (ways,)}), width=1.0, tokens=4096)
    # The forward pass has half of a step's collectives.
    return step.waited_s / 2 / (FORWARD[""] * step.products_s)


def _fewest_mixed_tokens(width: int) -> float:
    """Return `_fewest_tokens` with the best degree of tensor parallelism.

    Both axes communicate at the same time, hidden behind compute, as the book assumes.
    """
    feasible = itertools.takewhile(lambda ways: _narrowest(ways) <= width, itertools.count(2))
    tori = ((ways, _torus({"fsdp": (16, 16), "model": (ways,)})) for ways in feasible)
    return min(_fewest_tokens(torus, f"fsdp=256,model={ways}", width) for ways, torus in tori)
