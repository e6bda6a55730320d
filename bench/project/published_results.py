"""Published step times, and the calibration of hardware that is not here.

The measurements in published.toml calibrate predictions for other hardware, with the same fit as
steps that are measured here. All of these results train large language models, with large matrix
products. The assumption that other steps reach a similar share of a chip is not tested.

The models are not compiled here: the work of one device in a step of a dense transformer is given
by formulae of the scaling book, https://jax-ml.github.io/scaling-book/, part 5 ("How to Parallelize
a Transformer for Training"). Those of attention are from PaLM (Chowdhery et al. 2022, appendix B):
12 x layers x width x sequence FLOPs per token, forward and backward, regardless of the causal mask.
"""

import functools
import math
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import PositiveFloat, PositiveInt

from bench.project import calibration
from bench.project.calibration import Calibrated, Trial, calibrate
from bench.project.compiled_programs import Program
from bench.project.hardware import Hardware, HardwareError, Part, Quotation, Source, hardware
from bench.project.machines import of_sheet
from bench.project.step_model import FORWARD, Prediction, predict, work
from bench.records.cells import FULL, Block, Cell, StepOptions
from bench.records.collective_kinds import bus_factor
from bench.records.mesh import MeshShape
from bench.records.step_programs import Communication

STATE_BYTES = 12
"""Bytes per parameter under Adam in float32: the parameter and two moments."""
PARAMETER_BYTES = 2
"""Bytes per gathered parameter: frameworks gather in bfloat16."""
BLOCKS = 2
"""Blocks per layer that are sharded over `model`: attention and a feed-forward network."""


class Row(Part):
    """One measurement: its throughput or its MFU."""

    mesh: str
    tokens_per_s: PositiveFloat | None = None
    """Tokens per second and chip."""
    mfu: PositiveFloat | None = None


class Published(Part):
    """Measurements of a model of equal layers that differ only in the number of chips."""

    name: str
    hardware: str
    source: Source
    says: Quotation
    assumed: str
    """Assumptions that no source supports; empty if nothing is assumed."""
    parameters: PositiveFloat
    layers: PositiveInt
    width: PositiveInt
    """Width of the residual stream."""
    attention: PositiveInt | None = None
    """Heads times their width, if that is not the residual stream's."""
    sequence: PositiveInt
    """Tokens that attend to one another."""
    tokens: PositiveInt
    """Tokens per chip and step."""
    gradient_bytes: PositiveInt
    """Bytes per reduced gradient; those of a gathered parameter are PARAMETER_BYTES."""
    gathers: PositiveInt = 2
    """How often a microbatch gathers the parameters along `fsdp`: before the forward and again
    before the backward pass, or once if they are kept in between (ZeRO-2)."""
    remat: bool = False
    """Whether the backward pass recomputes the forward pass."""
    microbatches: PositiveInt = 1
    """Each of them gathers the parameters and reduce-scatters the gradients."""
    rows: tuple[Row, ...]

    @property
    def step(self) -> str:
        """The name that its steps share. A model reaches a different share of each chip."""
        return f"{self.name} on {self.hardware}"

    def observations(self, group: str) -> list[Trial]:
        """Return its measured steps, as members of a group that cross-validation leaves out."""
        observed = []
        for row in self.rows:
            mesh = MeshShape.parse(row.mesh)
            # The program has its framework's collectives, one per block: nothing combines them.
            machine = replace(of_sheet(hardware(self.hardware), mesh, "bf16"), combines=False)
            step = work(self.program(mesh), machine)
            rate = row.tokens_per_s or (row.mfu or 0.0) * machine.peak / self.flops
            observed.append(Trial(step, self.tokens / rate, group))
        return observed

    @property
    def flops(self) -> float:
        """FLOPs per token, forward and backward: 6 per parameter, and attention's."""
        attention = 12 * self.layers * (self.attention or self.width) * self.sequence
        return 6 * self.parameters + attention

    def program(self, mesh: MeshShape) -> Program:
        """Return one step on a mesh of `data`, `fsdp` and `model`.

        Parameters are sharded over `fsdp` and `model`, the batch over `data` and `fsdp`. The memory
        is unknown, so the program has that of its state.
        """
        remat = FULL if self.remat else ""
        state = STATE_BYTES * self.parameters / (mesh.axis("fsdp") * mesh.axis("model"))
        tokens = self.tokens * mesh.size
        options = StepOptions("bf16", microbatches=self.microbatches, remat=remat)
        batch = round(tokens / self.sequence)
        block = Block("transformer", f"{self.parameters:.3g}", mesh, batch, options)
        return Program(
            cell=Cell(block, self.step),
            flops=self.flops * self.tokens * (FORWARD[""] / FORWARD[remat]),
            memory_bytes=state,
            state_bytes=state,
            communication=[*self._communication(mesh)],
            model_flops=self.flops * tokens,
            units=tokens,
            unit="tokens",
            read="formula",
        )

    def _communication(self, mesh: MeshShape) -> Iterator[Communication]:
        """Yield the collectives by layer: part 5 on data, fully sharded and tensor parallelism.

        Tensor parallelism gathers the inputs of a block and scatters its outputs, in the forward
        and in the backward pass, and in a recomputed forward pass.
        """
        data, fsdp, ways = (mesh.axis(name) for name in ("data", "fsdp", "model"))
        own = self.parameters / ways
        passes = self.layers * self.microbatches
        if fsdp > 1:
            gathered = self.gathers * PARAMETER_BYTES * own * self.microbatches
            scattered = self.gradient_bytes * own * self.microbatches
            yield _row("all-gather", "fsdp", fsdp, self.gathers * passes, gathered)
            yield _row("reduce-scatter", "fsdp", fsdp, passes, scattered)
        if data > 1:
            yield _row("all-reduce", "data", data, self.layers, self.gradient_bytes * own / fsdp)
        if ways > 1:
            times = BLOCKS * self.layers * (3 if self.remat else 2)
            activations = 2 * self.tokens * ways * self.width * times
            for kind in ("all-gather", "reduce-scatter"):
                yield _row(kind, "model", ways, times * self.microbatches, activations)


def _row(kind: str, axis: str, members: int, count: int, payload: float) -> Communication:
    return Communication(
        kind=kind, axes=[axis], members=members, dtypes=[], count=count,
        payload_bytes=round(payload), wire_bytes=bus_factor(kind, members) * payload,
    )  # fmt: skip


@functools.cache
def published() -> list[Published]:
    """Return the published results."""
    content = tomllib.loads(Path(__file__).with_name("published.toml").read_text(encoding="utf-8"))
    return [Published(**entry) for entry in content["published"]]


@functools.cache
def calibration_of_chip(name: str) -> Calibrated:
    """Return a chip's calibration by at least three models on it, or else by chips of its kind.

    Its own models are left out in turn. Otherwise, the interval comes from predicting every chip,
    of either kind, from the others of its kind.
    """
    if measured_on(name):
        own = (entry for entry in published() if entry.hardware == name)
        return calibrate([one for entry in own for one in entry.observations(entry.name)])
    tried = tuple(trial for calibrated in _kinds().values() for trial in calibrated.tried)
    return replace(_kinds()[kind(name)], tried=tried)


def predict_on(sheet: Hardware, program: Program) -> Prediction | str:
    """Predict a program on as many chips as its mesh has, or return why they cannot run it."""
    try:
        machine = of_sheet(sheet, program.mesh, program.cell.block.options.precision)
        return predict(work(program, machine), calibration_of_chip(sheet.name).calibration)
    except HardwareError as error:
        return str(error)


@functools.cache
def _kinds() -> dict[str, Calibrated]:
    """Return the calibrations of GPUs and of TPUs; cross-validation leaves out chips in turn."""
    steps = defaultdict[str, list[Trial]](list)
    for entry in published():
        steps[kind(entry.hardware)] += entry.observations(entry.hardware)
    return {each: calibrate(observations) for each, observations in steps.items()}


def kind(name: str) -> str:
    """Return `GPU` or `TPU`: chips behind switches, or on a torus."""
    return "GPU" if hardware(name).torus is None else "TPU"


def measured_on(name: str) -> int:
    """Return the number of published models that calibrate a chip; 0 if other chips do."""
    own = sum(entry.hardware == name for entry in published())
    return own if own >= calibration.LEAST_GROUPS else 0


def compare() -> list[dict[str, Any]]:
    """Return every published step beside its prediction without its own group.

    `within` is whether the published time is in the interval from the other groups' errors. The
    efficiencies are those of weak scaling, relative to the fewest chips.
    """
    rows: list[dict[str, Any]] = []
    for entry in published():
        calibrated = calibration_of_chip(entry.hardware)
        own = [trial for trial in calibrated.tried if trial.cell.implementation == entry.step]
        first = min(own, key=lambda trial: trial.mesh.size)
        errors = [error for name, error in calibrated.errors.items() if name != first.group]
        width = calibration.spread(errors)
        rows += [
            {
                "name": entry.name,
                "hardware": entry.hardware,
                "mesh": trial.mesh,
                "measured_s": trial.measured_s,
                "predicted_s": trial.predicted_s,
                "error": trial.ratio - 1,
                "within": width is not None and abs(math.log(trial.ratio)) <= width,
                "measured_efficiency": first.measured_s / trial.measured_s,
                "predicted_efficiency": first.predicted_s / trial.predicted_s,
            }
            for trial in own
        ]
    return rows
