"""What one device does in a step of a dense transformer, by formula. Imports no jax.

For models that nobody compiles here, such as those of published results. The formulae are those of
the scaling book, https://jax-ml.github.io/scaling-book/, part 5 ("How to Parallelize a Transformer
for Training"), and of attention those of PaLM (Chowdhery et al. 2022, appendix B): 12 layers x
width x sequence FLOPs a token, forward and backward, without regard to the causal mask.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bench.project.compiled_programs import Program
from bench.project.step_model import FORWARD
from bench.records.cells import StepOptions
from bench.records.collective_kinds import bus_factor
from bench.records.mesh import MeshShape
from bench.records.rows import Communication

STATE_BYTES = 12
"""Of a parameter, under Adam in float32: itself and two moments."""


@dataclass(frozen=True)
class Transformer:
    """A model of equal layers."""

    name: str
    parameters: float
    layers: int
    width: int
    """Of the residual stream."""
    sequence: int
    """Tokens that attend to one another; 0 leaves attention's own products out."""
    blocks: int = 2
    """Of a layer, whose products `model` divides: attention and a feed-forward network."""

    @property
    def flops(self) -> float:
        """Of a token, forward and backward: 6 a parameter, and attention's."""
        return 6 * self.parameters + 12 * self.layers * self.width * self.sequence


@dataclass(frozen=True)
class Traffic:
    """What is sent of parameters and gradients."""

    parameter_bytes: int = 2
    """Of one that is gathered."""
    gradient_bytes: int = 2
    """Of one that is reduced."""
    gathers: int = 2
    """How often parameters are gathered along `fsdp` in a pass over a microbatch: before the
    forward and again before the backward pass, or once where they are kept (ZeRO-2)."""


def program(
    model: Transformer,
    mesh: MeshShape,
    tokens: float,
    traffic: Traffic,
    *,
    remat: bool = False,
    microbatches: int = 1,
) -> Program:
    """A step of the model, parameters divided over `fsdp` and `model`, the batch over `data`, too.

    Its memory is unknown, and left at that of its state.

    Args:
      model: what is trained.
      mesh: its axes are `data`, `fsdp` and `model`.
      tokens: a chip.
      traffic: what is sent.
      remat: whether the backward pass computes the forward pass again.
      microbatches: for each of which parameters are gathered and gradients reduce-scattered.
    """
    again = FORWARD[False] / FORWARD[True]
    flops = model.flops * tokens * (again if remat else 1)
    state = STATE_BYTES * model.parameters / (mesh.axis("fsdp") * mesh.axis("model"))
    return Program(
        implementation=model.name,
        workload="transformer",
        size=f"{model.parameters:.3g}",
        mesh=mesh,
        batch=round(tokens * mesh.size / max(model.sequence, 1)),
        options=StepOptions("bf16", microbatches=microbatches, remat=remat),
        flops=flops,
        accessed_bytes=None,
        memory_bytes=state,
        state_bytes=state,
        communication=tuple(_communication(model, mesh, tokens, traffic, remat, microbatches)),
        model_flops=model.flops * tokens * mesh.size,
        units=tokens * mesh.size,
        unit="tokens",
        bubble=0.0,
        read="formula",
    )


def _communication(
    model: Transformer,
    mesh: MeshShape,
    tokens: float,
    traffic: Traffic,
    remat: bool,
    microbatches: int,
) -> Iterator[Communication]:
    """What is sent, layer by layer: part 5, on data, fully-sharded and tensor parallelism.

    Tensor parallelism gathers what goes into a block and scatters what comes out of it, on the way
    forward and back, and forward again where that is computed again.
    """
    data, fsdp, ways = (mesh.axis(name) for name in ("data", "fsdp", "model"))
    own = model.parameters / ways
    passes = model.layers * microbatches
    if fsdp > 1:
        gathered = traffic.gathers * traffic.parameter_bytes * own * microbatches
        scattered = traffic.gradient_bytes * own * microbatches
        yield _row("all-gather", "fsdp", fsdp, traffic.gathers * passes, gathered)
        yield _row("reduce-scatter", "fsdp", fsdp, passes, scattered)
    if data > 1:
        yield _row("all-reduce", "data", data, model.layers, traffic.gradient_bytes * own / fsdp)
    if ways > 1:
        times = model.blocks * model.layers * (3 if remat else 2)
        activations = 2 * tokens * ways * model.width * times
        for kind in ("all-gather", "reduce-scatter"):
            yield _row(kind, "model", ways, times * microbatches, activations)


def _row(kind: str, axis: str, members: int, count: int, payload: float) -> Communication:
    return Communication(
        kind=kind,
        axes=[axis],
        members=members,
        dtypes=[],
        count=count,
        payload_bytes=round(payload),
        wire_bytes=bus_factor(kind, members) * payload,
    )
