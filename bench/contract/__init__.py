"""The contract between workloads, implementations and the harness.

A workload is a module in bench/contract/workloads/ with `SIZES`, `DEFAULT_SIZE` and `problem`. An
implementation is a module in implementations/ with `why_unsupported` and `build`. The file's name
is its name. The protocols below document both; modules need not inherit from them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh
from jax.typing import DTypeLike

from bench.contract.model_state import (
    LOCAL,
    SYNCHRONIZED,
    ModelState,
    Statistics,
    mean_over_axis,
    split_model,
    state_of,
)
from bench.contract.varying import zeros_for

Batch = Any
"""A pytree of arrays whose leading axis is the global batch; NumPy arrays on the host."""
Params = Any
"""A pytree of parameters: nested dicts, keyed by the names of the model's attributes."""
LossFn = Callable[[Params, Batch], jax.Array]
"""`loss_fn(params, batch)`: the mean loss over that batch, a scalar."""
StateLossFn = Callable[[Params, ModelState, Batch], tuple[jax.Array, ModelState]]
"""`loss_fn(params, model_state, batch)`: the mean loss, and the model state after the step."""
AxisNames = tuple[str | None, ...]
"""Logical names of a parameter's dimensions, such as `("embed", "mlp")`; no rule shards None."""


@dataclass(frozen=True)
class ModelAxis:
    """The mesh axis that shards the widths of a model's layers, as the model's code sees it.

    Layers call these methods where Megatron (Shoeybi et al. 2019) places its operators. On the
    whole model the axis has no name, and they do nothing. Inside jax.shard_map they rely on
    `check_vma`: arrays known to be equal on all devices of the axis have their gradients summed
    automatically.
    """

    name: str = ""
    size: int = 1

    def part(self, width: int) -> int:
        """Return the width of one device's shard; the axis size must divide `width`."""
        return width // self.size

    def first(self, width: int) -> jax.Array | int:
        """Return the index at which this device's shard of a width begins."""
        return jax.lax.axis_index(self.name) * self.part(width) if self.name else 0

    def total(self, partial: jax.Array) -> jax.Array:
        """Sum over all devices of the axis, by one all-reduce."""
        return jax.lax.psum(partial, self.name) if self.name else partial

    def largest(self, value: jax.Array) -> jax.Array:
        """Elementwise maximum over all devices of the axis; it has no gradient."""
        value = jax.lax.stop_gradient(value)
        return jax.lax.pmax(value, self.name) if self.name else value


WHOLE = ModelAxis()
"""The axis of an unsharded model."""


class Records(Protocol):
    """Random access to single samples: elements of a batch, without its leading axis."""

    def __len__(self) -> int:
        """Number of samples."""

    def __getitem__(self, number: int, /) -> Batch:
        """Return the sample at this index, as NumPy arrays; every call returns the same values."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A workload at one size, batch and precision: the specification of one train step."""

    make_model: Callable[[], nnx.Module]
    """Returns the single-device model, with the same parameters at every call. Its variables other
    than `nnx.Param` are its model state, such as the averages of `nnx.BatchNorm`."""
    statistics: Statistics = SYNCHRONIZED
    """Whether BatchNorm takes its statistics over the global batch or over each shard of it."""
    make_part: Callable[[ModelAxis], nnx.Module] | None = None
    """Returns one device's shard of the model under tensor parallelism: like `make_model`, with
    parameters of the shard's shapes. None if the model cannot be sharded by hand."""
    axis_names: Mapping[str, AxisNames] = field(default_factory=dict)
    """Maps the end of a parameter's path to logical axis names, such as `up/kernel` to
    `("embed", "mlp")`; see bench.contract.logical_axes. No rule shards other parameters."""
    make_stages: Callable[[ModelAxis], Stages] | None = None
    """Returns the model, or one device's shard of it, as a chain of equal blocks for pipelines.
    None if the model is not such a chain."""
    stacked: str = ""
    """The key of the parameter subtree that stacks all layers as (layers, ...) for a loop; empty if
    each layer has its own subtree. See bench.contract.layer_stacks."""
    sequence: TokenSequence | None = None
    """How to shard a batch along its tokens; None if the model has no sequence."""
    loss: Callable[[Any, Batch], jax.Array]
    """`loss(model, batch)`: the mean over the batch, so that the mean of the losses of equal shards
    is the loss of the whole batch."""
    optimizer: optax.GradientTransformation
    elementwise: bool = True
    """Whether an element's update depends only on its own gradients and on global norms."""
    batch: Callable[[int], Batch]
    """`batch(i)`: the i-th global batch on the host, the same at every call."""
    batch_size: int
    """Number of samples in a global batch."""
    records: Records | None = None
    """The data as a loader reads it, sample by sample. None if whole batches are generated."""
    model_flops: float
    """FLOPs of one step by the workload's formula: forward and backward, without recomputation."""
    units_per_step: int
    """Number of `unit`s in a global batch."""
    unit: str = "samples"
    microbatches: int = 1
    """Number of equal parts of the batch that are computed one after another for one update."""
    outline: Mapping[str, Any] = field(default_factory=dict)
    """A JSON description from which a program in another framework computes the same step: see
    docs/foreign-contract.md. Empty if the workload has no such programs."""
    start: Params | None = None
    """Initial parameters as host arrays; None if `make_model` draws them."""
    start_state: ModelState | None = None
    """Initial model state; None if `make_model` makes it."""

    def functional(self) -> tuple[Params, LossFn]:
        """Return the initial parameters and `loss_fn(params, batch)`.

        The parameters are nested dicts, which JAX flattens much faster than an `nnx.State`.
        ValueError if the model has state beside its parameters, such as BatchNorm's averages.
        """
        return self.draw(), self.loss_function()

    def functional_with_state(self, axis: str = "") -> tuple[Params, ModelState, StateLossFn]:
        """Return the initial parameters and model state, and `loss_with_state(axis)`."""
        return self.draw(), self.draw_state(), self.loss_with_state(axis)

    def loss_with_state(self, axis: str = "") -> StateLossFn:
        """Return `loss_fn(params, model_state, batch) -> (loss, model_state)`, for `has_aux`.

        Statistics are averaged over `axis`, the axis of the enclosing jax.shard_map over which the
        batch is split. Without an axis, the function treats its batch as a whole.
        """
        definition, _ = split_model(self.make_model, "" if self.statistics == LOCAL else axis)

        def loss_fn(
            params: Params, model_state: ModelState, batch: Batch
        ) -> tuple[jax.Array, ModelState]:
            model = nnx.merge(definition, params, model_state)
            loss, new_state = self.loss(model, batch), state_of(model)
            local = axis and self.statistics == LOCAL
            return loss, mean_over_axis(new_state, axis) if local else new_state

        return loss_fn

    def model(self) -> nnx.Module:
        """Return the single-device model with its initial parameters and model state."""
        return nnx.merge(split_model(self.make_model)[0], self.draw(), self.draw_state())

    def draw(self) -> Params:
        """Return the initial parameters. Inside a jitted function they can be created sharded."""
        if self.start is not None:
            return jax.tree.map(jnp.array, self.start)
        return nnx.to_pure_dict(nnx.state(self.make_model(), nnx.Param))

    def draw_state(self) -> ModelState:
        """Return the initial model state; empty if the model has none."""
        if self.start_state is not None:
            return jax.tree.map(jnp.copy, self.start_state)
        return state_of(self.make_model()) if self.state_names else {}

    @cached_property
    def state_names(self) -> list[str]:
        """Paths of the model's variables beside its parameters."""
        leaves = jax.tree_util.tree_leaves_with_path(split_model(self.make_model)[1])
        return ["/".join(str(key.key) for key in path) for path, _ in leaves]

    def loss_function(self, axis: ModelAxis = WHOLE) -> LossFn:
        """Return the loss function of `functional`, or that of one device's shard of the model."""
        make = self.make_model
        if axis is not WHOLE:
            assert self.make_part is not None, "the model has no parts"  # noqa: S101
            make = partial(self.make_part, axis)
        definition, others = split_model(make)
        if others:
            raise ValueError(
                f"the model has state beside its parameters ({', '.join(self.state_names)}), "
                "which this step would not carry: see Problem.functional_with_state"
            )

        def loss_fn(params: Params, batch: Batch) -> jax.Array:
            return self.loss(nnx.merge(definition, params), batch)

        return loss_fn

    def over_microbatches(self, value_and_grad: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a gradient function so that it accumulates over microbatches.

        A scan sums losses and gradients in the gradients' dtype and divides once. Only the
        activations of one microbatch are alive at a time. Of n microbatches, microbatch i consists
        of rows i, i + n, i + 2n ..., an equal share on every device, and starts from the model
        state that its predecessor returned. `value_and_grad`, a result of jax.value_and_grad, takes
        (model or parameters, batch), or with `has_aux` (parameters, model state, batch).
        """
        if (count := self.microbatches) == 1:
            return value_and_grad

        def accumulated(model: Any, *others: Any) -> tuple[Any, Any]:
            *state, batch = others
            parts = jax.tree.map(lambda x: x.reshape(-1, count, *x.shape[1:]).swapaxes(0, 1), batch)

            def of_part(state: list[ModelState], part: Batch) -> tuple[Any, list[ModelState]]:
                # A copy, because nnx differentiates a model only in the trace that created it.
                value, grads = value_and_grad(jax.tree.map(lambda x: x, model), *state, part)
                loss, *state = value if state else (value,)
                return (loss, grads), state

            def add(carried: Any, part: Batch) -> tuple[Any, None]:
                own, state = of_part(carried[1], part)
                return (jax.tree.map(jnp.add, carried[0], own), state), None

            first = jax.tree.map(lambda x: x[0], parts)
            zeros = jax.tree.map(zeros_for, jax.eval_shape(of_part, state, first)[0])
            (total, state), _ = jax.lax.scan(add, (zeros, state), parts)
            loss, grads = jax.tree.map(lambda x: x / count, total)
            return (loss, *state) if state else loss, grads

        return accumulated

    def model_gradients(self, model: nnx.Module, batch: Batch) -> tuple[jax.Array, nnx.State]:
        """Return the loss and gradients of a model, and update its model state.

        This is nnx.value_and_grad of `loss`, accumulated over microbatches by a pure function.
        """
        definition, params, model_state = nnx.split(model, nnx.Param, ...)

        def value_and_grad(params: Any, model_state: Any, part: Batch) -> Any:
            own = nnx.merge(definition, params, model_state)
            loss, grads = nnx.value_and_grad(self.loss)(own, part)
            return (loss, nnx.state(own, nnx.Not(nnx.Param))), grads

        gradients = self.over_microbatches(value_and_grad)
        (loss, model_state), grads = gradients(params, model_state, batch)
        nnx.update(model, model_state)
        return loss, grads


@dataclass(frozen=True, kw_only=True)
class TokenSequence:
    """How devices can shard the token sequences of a batch.

    The model calls bench.contract.divided_sequences for its attention and positions.
    """

    length: int
    """Number of tokens in a sequence."""
    heads: int
    """Heads in every attention layer."""
    split: Callable[[Batch], Batch]
    """Maps a batch to arrays (batch, length, ...), such as tokens and their labels."""
    loss: Callable[[Any, Batch], jax.Array]
    """`loss(model, parts)`: the mean loss over the tokens of `parts`, which are the result of
    `split` or a shard of it along the length."""


@dataclass(frozen=True, kw_only=True)
class Stages:
    """A model as a chain: a first part, equal blocks, and a last part.

    The parameter tree keeps the blocks' subtrees under the key `blocks`, by number.
    """

    first: Callable[[Params, Batch], jax.Array]
    """Maps parameters outside the blocks and a batch to the first block's input, (batch, ...)."""
    block: Callable[[Params, jax.Array], jax.Array]
    """Maps one block's parameters and its input to its output, of the same shape."""
    last: Callable[[Params, jax.Array, Batch], jax.Array]
    """Maps parameters outside the blocks, the last block's output and the batch to the loss."""


@dataclass(frozen=True, kw_only=True)
class TrainStep:
    """An implementation of a train step, ready to run on a mesh."""

    state: Any
    """Parameters, optimizer state and model state, placed on the mesh."""
    place: Callable[[Batch], Any]
    """Places a host batch on the mesh. It is timed only under `--input`."""
    step: Callable[[Any, Any], tuple[Any, jax.Array]]
    """`step(state, placed_batch)` returns the next state and the mean loss over the global batch.
    This call is timed. It returns before the devices have finished, and may donate the state."""
    params: Callable[[Any], Params]
    """Returns a state's parameters in the layout of `Problem.functional`; not timed. Replicated
    parameters stay replicated, because the gate compares their replicas bit by bit."""
    model_state: Callable[[Any], ModelState] | None = None
    """Returns a state's model state in the layout of `Problem.functional_with_state`; None in an
    implementation that carries none. Replicas of it are compared as well."""
    held: Callable[[Any], Params] | None = None
    """Returns the parameters in the state's own layout, without computing anything; None if
    `params` does not rearrange them. `inspect` shows where these arrays are placed."""
    bubble: float = 0.0
    """Fraction of a step in which a device idles, by the pipeline's schedule."""
    taken: float = 1.0
    """Share of the runs of a condition in which some stage of the pipeline takes its branch."""
    period: int = 1
    """Steps from one change of `params` to the next, in an approximate step. Work under a condition
    is done once per period."""


class Implementation(Protocol):
    """A module that distributes a problem's step over a mesh.

    If its step carries model state, the module says so: `STATISTICS = ("synchronized", "local")`
    names the semantics of BatchNorm that it can compute on several devices. Without it, models that
    have state beside their parameters are unsupported. If its step differs from the problem's but
    trains as well, `approximate = "why"` says how it differs; see docs/design/approximate-steps.md.
    """

    def why_unsupported(self, problem: Problem, mesh: Mesh) -> str | None:
        """Return a readable reason why this implementation cannot run; None if it can."""

    def build(self, problem: Problem, mesh: Mesh) -> TrainStep:
        """Return the train step on this mesh."""


class Workload(Protocol):
    """A module that defines a model, its data and its optimizer at several sizes."""

    SIZES: Mapping[str, Callable[[], Any]]
    """Functions that return a configuration, smallest first; tests use the smallest."""
    DEFAULT_SIZE: str

    def problem(self, config: Any, batch_size: int, precision: str, remat: str = "") -> Problem:
        """Return the problem of this size.

        `config` is the result of a function in SIZES, `batch_size` the samples of a global batch,
        `precision` a key of PRECISIONS, and `remat` one of bench.contract.rematerialization's
        POLICIES, which choose what the backward pass recomputes, or empty. A workload whose layers
        can be stacked for a loop has a further argument, `scan_layers`.
        """


@dataclass(frozen=True)
class Precision:
    """The dtypes of computation and of state."""

    compute: DTypeLike
    """Dtype of activations and matrix products."""
    params: DTypeLike
    """Dtype of parameters, gradients and optimizer state."""

    def of_layer(self, rngs: nnx.Rngs) -> dict[str, Any]:
        """Return keyword arguments for an nnx layer that draws its parameters from `rngs`."""
        return {"dtype": self.compute, "param_dtype": self.params, "rngs": rngs}


PRECISIONS = {
    "fp32": Precision(jnp.float32, jnp.float32),
    "bf16": Precision(jnp.bfloat16, jnp.float32),
    "fp16": Precision(jnp.float16, jnp.float32),
    "fp64": Precision(jnp.float64, jnp.float64),
}
"""`fp64` is for proofs only, and needs `jax.enable_x64(True)` around its use.

Under `fp16` the loss is not scaled: activation gradients below 6e-8 become 0. A step that this
changes by more than the gate's tolerance is refused."""
