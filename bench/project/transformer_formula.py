"""The work of one device in a step of a dense transformer, by formula.

It serves models that are not compiled here, such as those of published results. The formulae are
from the scaling book, https://jax-ml.github.io/scaling-book/, part 5 ("How to Parallelize a
Transformer for Training"). Those of attention are from PaLM (Chowdhery et al. 2022, appendix B): 12
x layers x width x sequence FLOPs per token, forward and backward, regardless of the causal mask.
"""

from collections.abc import Iterator

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from bench.project.compiled_programs import Program
from bench.project.hardware import Part
from bench.project.step_model import FORWARD
from bench.records.cells import FULL, Block, Cell, StepOptions
from bench.records.collective_kinds import bus_factor
from bench.records.mesh import MeshShape
from bench.records.rows import Communication

STATE_BYTES = 12
"""Bytes per parameter under Adam in float32: the parameter and two moments."""


class Transformer(Part):
    """A model of equal layers, and how its training step is computed."""

    name: str
    parameters: PositiveFloat
    layers: PositiveInt
    width: PositiveInt
    """Width of the residual stream."""
    sequence: NonNegativeInt
    """Tokens that attend to one another; 0 omits attention's own products."""
    blocks: PositiveInt = 2
    """Blocks per layer that are sharded over `model`: attention and a feed-forward network."""
    parameter_bytes: PositiveInt = 2
    """Bytes per gathered parameter."""
    gradient_bytes: PositiveInt = 2
    """Bytes per reduced gradient."""
    gathers: PositiveInt = 2
    """How often a microbatch gathers the parameters along `fsdp`: before the forward and again
    before the backward pass, or once if they are kept in between (ZeRO-2)."""
    remat: bool = False
    """Whether the backward pass recomputes the forward pass."""
    microbatches: PositiveInt = 1
    """Each of them gathers the parameters and reduce-scatters the gradients."""

    @property
    def step(self) -> str:
        """The common name of its steps, like an implementation's name."""
        return self.name

    @property
    def flops(self) -> float:
        """FLOPs per token, forward and backward: 6 per parameter, and attention's."""
        return 6 * self.parameters + 12 * self.layers * self.width * self.sequence

    def program(self, mesh: MeshShape, tokens: float) -> Program:
        """Return one step on a mesh of `data`, `fsdp` and `model`, with `tokens` per chip.

        Parameters are sharded over `fsdp` and `model`, the batch over `data` and `fsdp`. The memory
        is unknown, so the program has that of its state.
        """
        again = FORWARD[""] / FORWARD[FULL] if self.remat else 1
        state = STATE_BYTES * self.parameters / (mesh.axis("fsdp") * mesh.axis("model"))
        batch = round(tokens * mesh.size / max(self.sequence, 1))
        options = StepOptions(
            "bf16", microbatches=self.microbatches, remat=FULL if self.remat else ""
        )
        block = Block("transformer", f"{self.parameters:.3g}", mesh, batch, options)
        return Program(
            Cell(block, self.step),
            flops=self.flops * tokens * again,
            accessed_bytes=None,
            memory_bytes=state,
            state_bytes=state,
            communication=[*self._communication(mesh, tokens)],
            model_flops=self.flops * tokens * mesh.size,
            units=tokens * mesh.size,
            unit="tokens",
            bubble=0.0,
            read="formula",
        )

    def _communication(self, mesh: MeshShape, tokens: float) -> Iterator[Communication]:
        """Yield the collectives by layer: part 5 on data, fully sharded and tensor parallelism.

        Tensor parallelism gathers the inputs of a block and scatters its outputs, in the forward
        and in the backward pass, and in a recomputed forward pass.
        """
        data, fsdp, ways = (mesh.axis(name) for name in ("data", "fsdp", "model"))
        own = self.parameters / ways
        passes = self.layers * self.microbatches
        if fsdp > 1:
            gathered = self.gathers * self.parameter_bytes * own * self.microbatches
            scattered = self.gradient_bytes * own * self.microbatches
            yield _row("all-gather", "fsdp", fsdp, self.gathers * passes, gathered)
            yield _row("reduce-scatter", "fsdp", fsdp, passes, scattered)
        if data > 1:
            yield _row("all-reduce", "data", data, self.layers, self.gradient_bytes * own / fsdp)
        if ways > 1:
            times = self.blocks * self.layers * (3 if self.remat else 2)
            activations = 2 * tokens * ways * self.width * times
            for kind in ("all-gather", "reduce-scatter"):
                yield _row(kind, "model", ways, times * self.microbatches, activations)


def _row(kind: str, axis: str, members: int, count: int, payload: float) -> Communication:
    return Communication(
        kind=kind, axes=[axis], members=members, dtypes=[], count=count,
        payload_bytes=round(payload), wire_bytes=bus_factor(kind, members) * payload,
    )  # fmt: skip
