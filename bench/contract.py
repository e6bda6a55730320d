"""What a workload gives and what an implementation returns.

A workload is a module in bench/workloads/ with `SIZES`, `DEFAULT_SIZE` and `problem`; an
implementation is a module in implementations/ with `why_unsupported` and `build`. Both are found
by their file's name, which is their name. The protocols below are for the reader and the type
checker: nothing has to inherit from them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh
from jax.typing import DTypeLike

Batch = Any
"""A pytree of arrays whose leading axis is the global batch: NumPy on the host."""
Params = Any
"""A pytree of parameters: nested dicts named as the model's attributes are."""
LossFn = Callable[[Params, Batch], jax.Array]
"""Mean loss over the batch it is given; a scalar."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A workload at one size, batch and precision: what one training step has to compute."""

    make_model: Callable[[], nnx.Module]
    """The single-device model; the same parameters at every call. Its state is `nnx.Param` only."""
    loss: Callable[[Any, Batch], jax.Array]
    """`loss(model, batch)`: the mean over the batch, so that the mean over equal shards of their
    losses is the loss of the whole."""
    optimizer: optax.GradientTransformation
    batch: Callable[[int], Batch]
    """`batch(i)`: the i-th global batch on the host; the same at every call."""
    batch_size: int
    """Samples in a global batch."""
    model_flops: float
    """FLOPs of one step by the workload's formula: forward, backward, no recomputation."""
    units_per_step: int
    """Samples or tokens in a global batch."""
    unit: str = "samples"

    def functional(self) -> tuple[Params, LossFn]:
        """The model as plain functions: its parameters, and `loss_fn(params, batch)`.

        The parameters are nested dicts of arrays, which JAX flattens at every call several times
        faster than an `nnx.State`.
        """
        graphdef, state = nnx.split(self.make_model(), nnx.Param)

        def loss_fn(params: Params, batch: Batch) -> jax.Array:
            return self.loss(nnx.merge(graphdef, params), batch)

        return nnx.to_pure_dict(state), loss_fn


@dataclass(frozen=True, kw_only=True)
class TrainStep:
    """One way to run the step, ready to run on a mesh."""

    state: Any
    """Parameters and optimizer state, placed on the mesh."""
    place: Callable[[Batch], Any]
    """Puts a host batch onto the mesh. Not timed."""
    step: Callable[[Any, Any], tuple[Any, jax.Array]]
    """`step(state, placed_batch)` gives the next state and the mean loss over the global batch.
    This is what is timed: it returns while the devices still work, and may donate the state."""
    params: Callable[[Any], Params]
    """The parameters in a state, in the layout of `Problem.functional`. Not timed. Where they are
    replicated, the replicas stay as they are, one a device: the gate compares them bit by bit."""


class Implementation(Protocol):
    """A module that says how to distribute a problem's step over a mesh."""

    def why_unsupported(self, problem: Problem, mesh: Mesh) -> str | None:
        """A reason, for people, why this cannot run; None if it can."""

    def build(self, problem: Problem, mesh: Mesh) -> TrainStep:
        """The train step on this mesh."""


class Workload(Protocol):
    """A module that makes problems."""

    SIZES: Mapping[str, Callable[[], Any]]
    """Functions that return a configuration, from the smallest, which is the one for tests."""
    DEFAULT_SIZE: str

    def problem(self, config: Any, batch_size: int, precision: str) -> Problem:
        """The problem of this size. `precision` is a key of PRECISIONS."""


@dataclass(frozen=True)
class Precision:
    """Which dtype computes and which dtype keeps."""

    compute: DTypeLike
    """Of activations and matrix products."""
    params: DTypeLike
    """Of parameters, gradients and optimizer state."""


PRECISIONS = {
    "fp32": Precision(jnp.float32, jnp.float32),
    "bf16": Precision(jnp.bfloat16, jnp.float32),
    "fp64": Precision(jnp.float64, jnp.float64),
}
"""`fp64` is for proofs, not for timing; it needs `jax.enable_x64(True)` around its use."""
