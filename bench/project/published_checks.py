"""Predictions beside public results: measured steps, and the scaling book's worked answers.

Measured ones (published.toml) also calibrate predictions for hardware that is not here, by the same
fit as of steps that are measured here. Of a chip with three models or more, each model is left out
in turn; another is predicted from all chips of its kind, GPU or TPU, and the error of that is what
each chip comes to that is predicted from the others of its kind.

They are all of large language models, in which products are large. That a step of other kind
reaches a like share of a chip is assumed. Imports no jax.
"""

from __future__ import annotations

import functools
import itertools
import math
import tomllib
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, model_validator

from bench.project.calibration import (
    LEAST_GROUPS,
    Calibrated,
    Observation,
    calibrate,
    judged,
    spread,
)
from bench.project.collective_costs import Ring, Route
from bench.project.hardware import hardware
from bench.project.machines import Machine, of_sheet
from bench.project.step_model import FORWARD, work
from bench.project.transformer_formula import Traffic, Transformer, program
from bench.records.mesh import MeshShape

BOOK = "https://jax-ml.github.io/scaling-book"


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Row(_Part):
    """One measurement."""

    mesh: str
    tokens_per_s: PositiveFloat | None = None
    """Of a chip."""
    mfu: PositiveFloat | None = None

    @model_validator(mode="after")
    def _one_figure(self) -> Row:
        if (self.tokens_per_s is None) == (self.mfu is None):
            raise ValueError("give one of tokens_per_s and mfu")
        return self


class Published(_Part):
    """Measurements that differ by the number of chips alone."""

    name: str
    hardware: str
    source: Annotated[str, Field(pattern="^https://")]
    says: Annotated[str, Field(min_length=1)]
    assumed: str
    """What no source tells; empty if nothing had to be assumed."""
    parameters: PositiveFloat
    layers: PositiveInt
    width: PositiveInt
    sequence: PositiveInt
    tokens: PositiveInt
    """A chip and step."""
    gradient_bytes: PositiveInt
    gathers: PositiveInt = 2
    remat: bool = False
    microbatches: PositiveInt = 1
    rows: tuple[Row, ...]

    @property
    def step(self) -> str:
        """What tells its steps from others. On another chip, a model has another share of it."""
        return f"{self.name} on {self.hardware}"

    def observations(self, group: str) -> list[Observation]:
        """Its steps, left out with their group."""
        model = Transformer(self.step, self.parameters, self.layers, self.width, self.sequence)
        traffic = Traffic(gradient_bytes=self.gradient_bytes, gathers=self.gathers)
        found = []
        for row in self.rows:
            mesh = MeshShape.parse(row.mesh)
            # Its program has the collectives that its framework makes: one for each block.
            machine = replace(of_sheet(hardware(self.hardware), mesh, "bf16"), combines=False)
            step = program(
                model,
                mesh,
                self.tokens,
                traffic,
                remat=self.remat,
                microbatches=self.microbatches,
            )
            found.append(
                Observation(work(step, machine), self._seconds(row, model, machine), group)
            )
        return found

    def _seconds(self, row: Row, model: Transformer, machine: Machine) -> float:
        if row.tokens_per_s is not None:
            return self.tokens / row.tokens_per_s
        if row.mfu is None or machine.peak is None:
            raise ValueError(f"{self.name}: neither tokens a second nor an MFU of a known peak")
        return self.tokens * model.flops / (row.mfu * machine.peak)


class LeftOut(_Part):
    """A public result that cannot be predicted."""

    name: str
    source: Annotated[str, Field(pattern="^https://")]
    says: str
    why: str


@dataclass(frozen=True)
class Beside:
    """A published step and what is predicted for it from other chips alone."""

    name: str
    hardware: str
    chips: int
    mesh: str
    published_s: float
    predicted_s: float
    published_efficiency: float | None
    """Of weak scaling, to the smallest number of chips; None there."""
    predicted_efficiency: float | None
    within: bool
    """Whether the published step time is in an interval by the errors of the other groups."""
    source: str


@functools.cache
def published() -> tuple[list[Published], list[LeftOut]]:
    """What others have measured, and what cannot be predicted."""
    text = Path(__file__).with_name("published.toml").read_text(encoding="utf-8")
    found = tomllib.loads(text)
    return (
        [Published(**entry) for entry in found["published"]],
        [LeftOut(**entry) for entry in found["left_out"]],
    )


@functools.cache
def elsewhere(name: str) -> Calibrated:
    """The calibration of a chip that is not here, from what is published of it, or of its kind."""
    entries = published()[0]
    own = [entry for entry in entries if entry.hardware == name]
    if len(own) >= LEAST_GROUPS:
        return calibrate([one for entry in own for one in entry.observations(entry.name)])
    found = _kinds()
    tried = [one for calibrated in found.values() for one in calibrated.tried]
    return judged(found[kind(name)].calibration, tried)


@functools.cache
def _kinds() -> dict[str, Calibrated]:
    """Calibrations of GPUs and of TPUs, each tried on its chips by turns."""
    steps: defaultdict[str, list[Observation]] = defaultdict(list)
    for entry in published()[0]:
        steps[kind(entry.hardware)] += entry.observations(entry.hardware)
    return {each: calibrate(observations) for each, observations in steps.items()}


def kind(name: str) -> str:
    """`GPU` or `TPU`: chips behind switches, or on a torus."""
    return "GPU" if hardware(name).torus is None else "TPU"


def measured_on(name: str) -> int:
    """Published models by which a chip is calibrated; 0 where those of other chips are taken."""
    own = sum(entry.hardware == name for entry in published()[0])
    return own if own >= LEAST_GROUPS else 0


def beside() -> list[Beside]:
    """Every published step beside what is predicted for it without its group."""
    rows = []
    for entry in published()[0]:
        found = elsewhere(entry.hardware)
        tried = [
            one for one in found.tried if one.observation.work.program.implementation == entry.step
        ]
        first = min(tried, key=lambda one: one.observation.work.program.mesh.size)
        own = first.observation.group
        width = spread([error for group, error in found.errors.items() if group != own])
        for one in tried:
            step, smallest = one.observation, one is first
            mesh = step.work.program.mesh
            rows.append(
                Beside(
                    name=entry.name,
                    hardware=entry.hardware,
                    chips=mesh.size,
                    mesh=str(mesh),
                    published_s=step.seconds,
                    predicted_s=one.predicted_s,
                    published_efficiency=None
                    if smallest
                    else first.observation.seconds / step.seconds,
                    predicted_efficiency=None if smallest else first.predicted_s / one.predicted_s,
                    within=width is not None and abs(one.log_error) <= width,
                    source=entry.source,
                )
            )
    return rows


@dataclass(frozen=True)
class Answer:
    """A worked answer of the scaling book beside ours."""

    question: str
    book: float
    ours: float
    source: str


def answers() -> list[Answer]:
    """When communication takes longer than compute, at the peak and with all hidden that can be."""
    ring = "TPU v5p, {} over {}: tokens a chip below which it is bound by communication"
    axes = {1: "one axis", 3: "three axes"}
    found = []
    for way, axis in (("data parallel", "data"), ("FSDP", "fsdp")):
        for count, words in axes.items():
            tokens = _fewest_tokens(_torus("tpu-v5p", {axis: (16,) * count}), f"{axis}={16**count}")
            found.append(Answer(ring.format(way, words), 2550 / count, tokens, f"{BOOK}/training/"))
    found.append(
        Answer(
            "TPU v5p, 16-way tensor parallel over one axis: feed-forward width below which it is "
            "bound by communication",
            16 * 2550,
            _narrowest(16),
            f"{BOOK}/training/",
        )
    )
    found.append(
        Answer(
            "TPU v5p, FSDP over two axes and tensor parallel over the third, feed-forward width "
            "32,768: tokens a chip below which it is bound by communication; the book lets axes "
            "have any length",
            2550**2 / (2 * 32_768),
            _fewest_mixed_tokens(32_768),
            f"{BOOK}/training/",
        )
    )
    for book, mesh, where in ((2200, "data=8", "in a node"), (2475, "data=1024", "of 1,024")):
        machine = of_sheet(hardware("h100-sxm"), MeshShape.parse(mesh), "bf16")
        found.append(
            Answer(
                f"H100, data parallel {where}: tokens a GPU below which it is bound by "
                "communication; the book leaves out (n - 1) / n and latency",
                book,
                _fewest_tokens(_at_peak(machine), mesh),
                f"{BOOK}/gpus/",
            )
        )
    return found


def _at_peak(machine: Machine) -> Machine:
    return replace(machine, flops=machine.peak or machine.flops)


def _torus(name: str, axes: Mapping[str, tuple[int, ...]]) -> Machine:
    """Chips whose mesh axes lie along whole axes of a torus, which have these lengths."""
    sheet = hardware(name)
    if sheet.torus is None:
        raise ValueError(f"{name} is no torus")
    link, hop = sheet.torus.link_bandwidth.value, sheet.torus.hop_latency_s.value
    routes = {
        axis: Route(
            tuple(Ring(length, wraps=True, bandwidth=link, latency_s=hop) for length in lengths)
        )
        for axis, lengths in axes.items()
    }
    alone = of_sheet(sheet, MeshShape((("data", math.prod(sheet.torus.shapes.value[-1])),)), "bf16")
    return replace(_at_peak(alone), route=lambda along: routes[along[0]])


_BOOKS = Transformer("MLP blocks", 1e11, layers=64, width=8192, sequence=0, blocks=1)
"""The book's model: attention left out; large enough that latencies do not count."""


def _of_width(width: float) -> Transformer:
    """The book's model with a feed-forward network of this width."""
    return replace(_BOOKS, parameters=2 * _BOOKS.width * width * _BOOKS.layers)


def _fewest_tokens(machine: Machine, mesh: str, model: Transformer = _BOOKS) -> float:
    """Tokens a chip from which on compute hides what can be hidden."""
    shape = MeshShape.parse(mesh)

    def bound(tokens: float) -> bool:
        found = work(program(model, shape, tokens, Traffic()), machine)
        return found.overlapped_s(found.products_s) > found.products_s

    return _switch(bound, 1.0, 1e6)


def _narrowest(ways: int) -> float:
    """Width of the feed-forward network from which on compute binds in the forward pass.

    Tensor parallelism is over one axis of so many v5p.
    """
    shape, machine = MeshShape((("model", ways),)), _torus("tpu-v5p", {"model": (ways,)})

    def bound(width: float) -> bool:
        found = work(program(_of_width(width), shape, 4096, Traffic()), machine)
        # Both collectives of a block once, of the two times that a step has them.
        return found.waited_s / 2 > FORWARD[False] * found.products_s

    return _switch(bound, 1.0, 1e6)


def _fewest_mixed_tokens(width: int) -> float:
    """As `_fewest_tokens`, with as many ways of tensor parallelism as are best.

    The axes communicate at the same time, and both behind compute, as the book assumes.
    """
    fewest = math.inf
    for ways in itertools.takewhile(lambda ways: _narrowest(ways) <= width, itertools.count(2)):
        machine = _torus("tpu-v5p", {"fsdp": (16, 16), "model": (ways,)})
        mesh = f"fsdp={16**2},model={ways}"
        fewest = min(fewest, _fewest_tokens(machine, mesh, _of_width(width)))
    return fewest


def _switch(bound: Callable[[float], bool], low: float, high: float) -> float:
    """Where what holds at the low end ceases to."""
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if bound(middle) else (low, middle)
    return high
