"""What a workload gives and what an implementation returns.

A workload is a module in bench/contract/workloads/ with `SIZES`, `DEFAULT_SIZE` and `problem`; an
implementation is a module in implementations/ with `why_unsupported` and `build`. Both are found
by their file's name, which is their name. The protocols below are for the reader and the type
checker: nothing has to inherit from them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

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
AxisNames = tuple[str | None, ...]
"""What each dimension of a parameter is, such as `("embed", "mlp")`; None for nothing shared."""

Model = TypeVar("Model")
Gradients = TypeVar("Gradients")


@dataclass(frozen=True)
class ModelAxis:
    """The mesh axis over which the widths of a model's layers are divided, as its code sees it.

    A model's part on one device calls these where Megatron (Shoeybi et al. 2019) has its operators;
    the whole model, whose axis has no name, calls them too, and they do nothing. Used within
    jax.shard_map with its check of varying axes on: what is not divided is known to be the same on
    all devices of the axis, so that its gradient is summed over them without being told to.
    """

    name: str = ""
    size: int = 1

    def part(self, width: int) -> int:
        """A device's share of a width, which divides by the axis."""
        return width // self.size

    def first(self, width: int) -> jax.Array | int:
        """Where this device's share of a width begins."""
        return jax.lax.axis_index(self.name) * self.part(width) if self.name else 0

    def total(self, partial: jax.Array) -> jax.Array:
        """The sum of all devices' values: one all-reduce."""
        return jax.lax.psum(partial, self.name) if self.name else partial

    def largest(self, value: jax.Array) -> jax.Array:
        """The elementwise maximum of all devices' values. It has no gradient."""
        value = jax.lax.stop_gradient(value)
        return jax.lax.pmax(value, self.name) if self.name else value

    def if_divides(self, width: int) -> ModelAxis:
        """This axis where the width divides by it, else one that divides nothing."""
        return self if width % self.size == 0 else WHOLE


WHOLE = ModelAxis()
"""Divides nothing: a model on one device."""


class Records(Protocol):
    """Single samples by number: what a batch is of, without its leading axis."""

    def __len__(self) -> int:
        """How many there are."""

    def __getitem__(self, number: int, /) -> Batch:
        """The sample of a number below that, NumPy on the host; the same at every call."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A workload at one size, batch and precision: what one training step has to compute."""

    make_model: Callable[[], nnx.Module]
    """The single-device model; the same parameters at every call. Its state is `nnx.Param` only."""
    make_part: Callable[[ModelAxis], nnx.Module] | None = None
    """The model's part on one device of an axis that divides its layers' widths: as `make_model`,
    with parameters of a device's shapes. None where the model has no such parts."""
    axis_names: Mapping[str, AxisNames] = field(default_factory=dict)
    """What the dimensions of parameters are, by the end of the parameter's path: `up/kernel` is
    `("embed", "mlp")`. See bench.contract.logical_axes; parameters that are not named are never divided."""
    make_stages: Callable[[ModelAxis], Stages] | None = None
    """The model, or its part, as a chain, for pipelines; None where it is not one."""
    loss: Callable[[Any, Batch], jax.Array]
    """`loss(model, batch)`: the mean over the batch, so that the mean over equal shards of their
    losses is the loss of the whole."""
    optimizer: optax.GradientTransformation
    batch: Callable[[int], Batch]
    """`batch(i)`: the i-th global batch on the host; the same at every call."""
    batch_size: int
    """Samples in a global batch."""
    records: Records | None = None
    """The data as a loader reads it, a sample at a time. None where it is drawn by batches."""
    model_flops: float
    """FLOPs of one step by the workload's formula: forward, backward, no recomputation."""
    units_per_step: int
    """Samples or tokens in a global batch."""
    unit: str = "samples"
    microbatches: int = 1
    """Parts that a batch is computed in, one after the other, for one update."""
    start: Params | None = None
    """Host arrays to start from, in place of the parameters that `make_model` draws."""

    def functional(self) -> tuple[Params, LossFn]:
        """The model as plain functions: its parameters, and `loss_fn(params, batch)`.

        The parameters are nested dicts of arrays, which JAX flattens at every call several times
        faster than an `nnx.State`.
        """
        return self.draw(), self.loss_function()

    def model(self) -> nnx.Module:
        """The single-device model with its initial parameters."""
        return nnx.merge(self._structure(self.make_model), self.draw())

    def draw(self) -> Params:
        """The initial parameters. In a jitted function, each is made where it is wanted."""
        if self.start is not None:
            return jax.tree.map(jnp.array, self.start)
        return nnx.to_pure_dict(nnx.state(self.make_model(), nnx.Param))

    def loss_function(self, axis: ModelAxis = WHOLE) -> LossFn:
        """`loss_fn(params, batch)` of the model, or of its part on one device of an axis."""
        if axis is WHOLE:
            structure = self._structure(self.make_model)
        else:
            assert self.make_part is not None, "the model has no parts"  # noqa: S101
            structure = self._structure(partial(self.make_part, axis))

        def loss_fn(params: Params, batch: Batch) -> jax.Array:
            return self.loss(nnx.merge(structure, params), batch)

        return loss_fn

    def stages(self, axis: ModelAxis = WHOLE) -> Stages:
        """The model as a chain, or its part on one device of an axis."""
        assert self.make_stages is not None, "the model is not a chain"  # noqa: S101
        return self.make_stages(axis)

    def _structure(self, make: Callable[[], nnx.Module]) -> Any:
        """What is left of a model without its parameters, none of which is computed."""
        return nnx.split(nnx.eval_shape(make), nnx.Param)[0]

    def over_microbatches(
        self, value_and_grad: Callable[[Model, Batch], tuple[jax.Array, Gradients]]
    ) -> Callable[[Model, Batch], tuple[jax.Array, Gradients]]:
        """The same function of a batch, computed one microbatch after the other.

        A scan adds up losses and gradients, in the gradients' dtype, and divides once: the mean
        over microbatches of equal size is the batch's. Only one microbatch's activations are alive
        at a time. Microbatch i is rows i, i + n, i + 2n ... of n microbatches, so that every device
        that holds some rows of the batch has its share of each.

        Args:
          value_and_grad: mean loss over a batch, and its gradients by the model or parameters.
        """
        count = self.microbatches
        if count == 1:
            return value_and_grad

        def accumulated(model: Model, batch: Batch) -> tuple[jax.Array, Gradients]:
            parts = jax.tree.map(
                lambda x: jnp.swapaxes(x.reshape(-1, count, *x.shape[1:]), 0, 1), batch
            )

            def of_part(part: Batch) -> tuple[jax.Array, Gradients]:
                # An nnx model may only be differentiated where it was made: the scan has its own.
                return value_and_grad(jax.tree.map(lambda x: x, model), part)

            def add(total: Any, part: Batch) -> tuple[Any, None]:
                return jax.tree.map(jnp.add, total, of_part(part)), None

            first = jax.tree.map(lambda x: x[0], parts)
            zeros = jax.tree.map(_zeros, jax.eval_shape(of_part, first))
            total, _ = jax.lax.scan(add, zeros, parts)
            return jax.tree.map(lambda x: x / count, total)

        return accumulated


def varying_axes(array: Any) -> frozenset[str]:
    """The axes of the enclosing jax.shard_map over which an array, or its shape, is known to vary.

    Empty outside of jax.shard_map, and where it does not check them (`check_vma=False`).
    """
    kind = array if isinstance(array, jax.ShapeDtypeStruct) else jax.typeof(array)
    found: frozenset[str] = kind.manual_axis_type.varying if kind.manual_axis_type else frozenset()
    return found


def _zeros(like: jax.ShapeDtypeStruct) -> jax.Array:
    """Zeros that vary over the same axes as what will be added to them."""
    axes = tuple(sorted(varying_axes(like)))
    zeros = jnp.zeros(like.shape, like.dtype)
    return jax.lax.pcast(zeros, axes, to="varying") if axes else zeros


@dataclass(frozen=True, kw_only=True)
class Stages:
    """A model as a chain: what comes before its equal blocks, the blocks, and what comes after.

    The parameters hold those of the blocks under `blocks`, by number.
    """

    first: Callable[[Params, Batch], jax.Array]
    """Activations that enter the first block, (batch, ...), from the parameters without blocks."""
    block: Callable[[Params, jax.Array], jax.Array]
    """One block, from its own parameters: activations to activations of the same shape."""
    last: Callable[[Params, jax.Array, Batch], jax.Array]
    """Mean loss over the batch, from the parameters without blocks and the last activations."""


@dataclass(frozen=True, kw_only=True)
class TrainStep:
    """One way to run the step, ready to run on a mesh."""

    state: Any
    """Parameters and optimizer state, placed on the mesh."""
    place: Callable[[Batch], Any]
    """Puts a host batch onto the mesh. Timed only where input is measured: see bench.records.arms."""
    step: Callable[[Any, Any], tuple[Any, jax.Array]]
    """`step(state, placed_batch)` gives the next state and the mean loss over the global batch.
    This is what is timed: it returns while the devices still work, and may donate the state."""
    params: Callable[[Any], Params]
    """The parameters in a state, in the layout of `Problem.functional`. Not timed. Where they are
    replicated, the replicas stay as they are, one a device: the gate compares them bit by bit."""
    held: Callable[[Any], Params] | None = None
    """The parameters as a state holds them, where `params` arranges them in another way. Nothing is
    computed: this is for looking at where they lie."""
    bubble: float = 0.0
    """Share of a step in which a device has nothing to do, as a pipeline's schedule has it."""


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

    def problem(self, config: Any, batch_size: int, precision: str, remat: bool = False) -> Problem:
        """The problem of this size.

        Args:
          config: what a function in SIZES returned.
          batch_size: samples in a global batch.
          precision: a key of PRECISIONS.
          remat: whether blocks keep only their inputs for the backward pass, and compute again what
            they need.
        """


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
    "fp16": Precision(jnp.float16, jnp.float32),
    "fp64": Precision(jnp.float64, jnp.float64),
}
"""`fp64` is for proofs, not for timing; it needs `jax.enable_x64(True)` around its use.

Under `fp16` the loss is not scaled: gradients of activations below 6e-8 become 0, and where that
changes losses or updates by more than the gate's tolerance, the step is refused."""
