"""Helpers that implementations share: placing batches and state on a mesh, reducing gradients."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bench.contract import Params, Problem, TrainStep
from bench.contract.logical_axes import path_of, shapes_of_params
from bench.contract.varying import varying_axes


def unknown_axes(mesh: Mesh, *known: str) -> str | None:
    """Return why a step over only the `known` axes cannot use this mesh; None if it can."""
    missing = [name for name in known if name not in mesh.shape]
    if missing:
        axes = "axis" if len(missing) == 1 else "axes"
        return f"needs the {axes} {' and '.join(missing)}, which this mesh lacks"
    other = [name for name, size in mesh.shape.items() if size > 1 and name not in known]
    if not other:
        return None
    return f"distributes only over {' and '.join(known)}, but this mesh also has {', '.join(other)}"


def why_not_in_shards(problem: Problem, mesh: Mesh, *axes: str) -> str | None:
    """Return why devices cannot update their own shards of parameters; None if they can.

    `axes` are those that shard parameters.
    """
    parts = [f"{name}={mesh.shape[name]}" for name in axes if mesh.shape.get(name, 1) > 1]
    if problem.elementwise or not parts:
        return None
    return (
        "the optimizer needs whole matrices, and each device would update its shards over "
        f"{' and '.join(parts)} by itself"
    )


def batch_axes(mesh: Mesh) -> tuple[str, ...]:
    """Return the axes of the mesh that split a batch: `data`, `fsdp` or both.

    If it has neither, return `data`, so that `unknown_axes` names it as missing.
    """
    return tuple(name for name in ("data", "fsdp") if name in mesh.shape) or ("data",)


def create_data_parallel_sharding(
    mesh: Mesh, data_axis: str | tuple[str, ...] = "data"
) -> NamedSharding:
    """Return a sharding that splits only the leading dimension, over one axis or several.

    ValueError if the mesh has no such axis.
    """
    return NamedSharding(mesh, P(data_axis))


def place_batch_on_shards(batch: Any, sharding: NamedSharding) -> Any:
    """Place a host batch, a pytree of NumPy arrays (global batch, ...), on the mesh.

    `sharding`, the result of `create_data_parallel_sharding`, splits the leading dimensions.
    ValueError if a leaf is a scalar, or its rows do not divide evenly into the shards.
    """
    return jax.device_put(batch, sharding)


def place_model_state_on_shards(
    state: Any, mesh: Mesh, param_sharding: Literal["replicate"] | Mapping[str, P] = "replicate"
) -> Any:
    """Copy a pytree of arrays, such as parameters and optimizer state, onto the mesh.

    `param_sharding` is `"replicate"`, or PartitionSpecs by regular expression. The first expression
    that matches within an array's path, such as `blocks/0/up/kernel`, applies; arrays that match
    none are replicated. ValueError if it is another string, or an expression applies to no array.
    """
    if isinstance(param_sharding, str) and param_sharding != "replicate":
        raise ValueError(
            f"param_sharding is {param_sharding!r}; it is 'replicate' or a PartitionSpec by path"
        )
    by_path = {} if isinstance(param_sharding, str) else param_sharding
    rules = [
        (expression, lambda path, _, e=expression: re.search(e, path), spec)
        for expression, spec in by_path.items()
    ]
    leaves = jax.tree_util.tree_leaves_with_path(state)
    return _copy(state, mesh, [(path_of(path), leaf) for path, leaf in leaves], rules)


def place_nnx_state_on_shards(
    state: nnx.State, mesh: Mesh, filter_sharding: Sequence[tuple[Any, P]]
) -> nnx.State:
    """Copy an `nnx.State`, of a model or an optimizer, onto the mesh, sharded by nnx filters.

    `filter_sharding` has pairs of an nnx filter (`nnx.Param`, `nnx.PathContains("bias")`, `...` for
    all) and a PartitionSpec. The first filter that matches a variable applies; variables that match
    none are replicated. ValueError if a filter applies to no variable.
    """
    rules = [(kind, nnx.filterlib.to_predicate(kind), spec) for kind, spec in filter_sharding]
    # Where an optimizer keeps nothing for a parameter, a variable holds no array.
    leaves = [variable for variable in nnx.to_flat_state(state) if jax.tree.leaves(variable[1])]
    return _copy(state, mesh, leaves, rules)


def _copy(
    tree: Any,
    mesh: Mesh,
    leaves: Sequence[tuple[Any, Any]],
    rules: Sequence[tuple[Any, Callable[..., Any], P]],
) -> Any:
    """Copy a pytree onto the mesh; the first rule that matches a leaf shards it.

    A compiled program makes the copy, because `jax.device_put` may alias its source's buffer as one
    of the replicas; a step that donates the replica would then delete the source. A leaf is a path
    and a value; a rule is a name, a predicate of path and value, and a PartitionSpec.
    """
    first = [next((rule for rule in rules if rule[1](path, leaf)), None) for path, leaf in leaves]
    for rule in rules:
        if rule not in first:
            paths = ", ".join(str(path) for path, _ in leaves)
            raise ValueError(f"nothing is left that matches {rule[0]!r}; the paths are: {paths}")
    specs = [P() if rule is None else rule[2] for rule in first]
    arrays, structure = jax.tree.flatten(tree)
    copy = jax.jit(
        lambda arrays: [jnp.copy(array) for array in arrays],
        out_shardings=[NamedSharding(mesh, spec) for spec in specs],
    )
    return jax.tree.unflatten(structure, copy(arrays))


def create_sharded_state(
    problem: Problem,
    mesh: Mesh,
    specs: Params,
    arrange: Callable[[Params], Params] = lambda params: params,
) -> tuple[Params, Any]:
    """Create initial parameters and optimizer state directly as shards.

    In one compiled program, each device draws only its own shards of the parameters and of the
    optimizer state, so a model may be larger than one device's memory. If the problem has a
    `start`, that is sharded instead. `arrange` rearranges the model's parameters (jax or NumPy
    arrays) into the state's own tree, in which `specs` has a PartitionSpec for each.
    """
    shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)

    def create(start: Params | None) -> tuple[Params, Any]:
        params = arrange(problem.draw()) if start is None else jax.tree.map(jnp.copy, start)
        return params, problem.optimizer.init(params)

    start = None if problem.start is None else jax.device_put(arrange(problem.start), shardings)
    params, opt_state = jax.eval_shape(create, start)
    opt_specs = optimizer_specs(problem, params, opt_state, specs)
    opt_shardings = jax.tree.map(lambda s: NamedSharding(mesh, s), opt_specs)
    return jax.jit(create, out_shardings=(shardings, opt_shardings))(start)


def shard_mapped_step(
    problem: Problem,
    mesh: Mesh,
    state: tuple[Params, Any],
    axes: str | tuple[str, ...],
    loss_and_gradients: Callable[[Params, Any], tuple[jax.Array, Params]],
    sum_over: tuple[str, ...] = (),
    **more: Any,
) -> TrainStep:
    """Return a step in jax.shard_map, in which each device updates its shards of the state.

    The state, parameters and optimizer state, is placed on the mesh; `axes` split the batch.
    `loss_and_gradients` maps this device's parameters and its shard of the batch to its terms of
    the loss of the global batch, and of that loss's gradients. Terms are summed over the axes
    `sum_over`, except that a gradient is not summed over axes that shard its parameter. Over other
    axes, jax.shard_map tracks replication, and jax.grad sums. `more` has further TrainStep fields.
    """
    batch_sharding = create_data_parallel_sharding(mesh, axes)
    specs = jax.tree.map(lambda x: x.sharding.spec, state)

    def left(spec: P) -> tuple[str, ...]:
        return tuple(name for name in sum_over if name not in spec)

    @partial(jax.jit, donate_argnums=0)
    @partial(jax.shard_map, mesh=mesh, in_specs=(specs, P(axes)), out_specs=(specs, P()))
    def step(state: tuple[Params, Any], batch: Any) -> tuple[Any, jax.Array]:
        params, opt_state = state
        # Without this mark, jax.grad would sum the gradients over these axes by itself.
        own = jax.tree.map(lambda x, s: jax.lax.pcast(x, left(s), to="varying"), params, specs[0])
        loss, grads = loss_and_gradients(own, batch)
        grads = jax.tree.map(lambda x, spec: jax.lax.psum(x, left(spec)), grads, specs[0])
        updates, opt_state = problem.optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), jax.lax.psum(loss, sum_over)

    return TrainStep(
        state=state,
        place=lambda batch: place_batch_on_shards(batch, batch_sharding),
        step=step,
        **{"params": lambda state: state[0], **more},
    )


def optimizer_specs(problem: Problem, params: Params, opt_state: Any, specs: Params) -> Any:
    """Return PartitionSpecs for an optimizer's state; it and parameters are arrays or shapes.

    State of a parameter's shape, such as moments, is sharded like the parameter; the rest, such as
    a step count or Adafactor's factors, is replicated. optax.MaskedNode stands where a parameter
    has no such state.
    """

    def is_masked(node: Any) -> bool:
        return isinstance(node, optax.MaskedNode)

    return optax.tree_utils.tree_map_params(
        problem.optimizer,
        lambda own, spec, like: own if is_masked(own) else spec if own.shape == like.shape else P(),
        opt_state,
        specs,
        params,
        transform_non_params=lambda _: P(),
        is_leaf=is_masked,
    )


def shard_axis(mesh: Mesh) -> str:
    """Return the axis over which FSDP shards parameters: `fsdp`, or `data` if `fsdp` has size 1."""
    return "fsdp" if mesh.shape.get("fsdp", 1) > 1 or "data" not in mesh.shape else "data"


def fsdp_specs(problem: Problem, mesh: Mesh, axis: str, layers: Params | None = None) -> Params:
    """Return PartitionSpecs that shard parameters over an axis along their largest dimension.

    `layers` has PartitionSpecs to keep, by default replicated ones. The dimension is the largest
    that they do not shard and that the axis divides evenly; a parameter without one keeps its spec.
    The first dimension of stacked layers is not sharded. The result is a tree like the parameters.
    """

    def spec(path: Any, leaf: jax.ShapeDtypeStruct, taken: P) -> P:
        own = [*taken, *(None,) * (len(leaf.shape) - len(taken))]
        first = int(path[0].key == problem.stacked)
        sizes = list(enumerate(leaf.shape))[first:]
        fitting = [d for d, size in sizes if own[d] is None and size % parts == 0]
        if fitting:
            own[max(fitting, key=lambda d: leaf.shape[d])] = axis
        while own and own[-1] is None:
            own.pop()
        return P(*own)

    parts, shapes = mesh.shape[axis], shapes_of_params(problem)
    layers = layers or jax.tree.map(lambda _: P(), shapes)
    return jax.tree_util.tree_map_with_path(spec, shapes, layers)


def gather_for_use(axis: str, shard: jax.Array, spec: P) -> jax.Array:
    """All-gather a parameter by its spec; its transpose reduce-scatters the gradient."""
    if axis not in spec:
        return shard
    return jax.lax.all_gather(shard, axis, axis=spec.index(axis), tiled=True)


def scatter_gradient(axis: str, gradient: jax.Array, spec: P) -> jax.Array:
    """Reduce-scatter a gradient over an axis by its spec; all-reduce it if the spec lacks it."""
    if axis not in spec:
        return jax.lax.psum(gradient, axis)
    return jax.lax.psum_scatter(gradient, axis, scatter_dimension=spec.index(axis), tiled=True)


def own_shard(axis: str, whole: jax.Array, spec: P) -> jax.Array:
    """Slice this device's shard, by its spec, out of a whole parameter."""
    if axis not in spec:
        return whole
    dimension = spec.index(axis)
    size = whole.shape[dimension] // jax.lax.axis_size(axis)
    start = jax.lax.axis_index(axis) * size
    return jax.lax.dynamic_slice_in_dim(whole, start, size, dimension)


def keep_no_gathered(primitive: Any, *_: Any, **__: Any) -> bool:
    """A policy of jax.checkpoint that drops gathered parameters, and the casts that copy them.

    Casts, transposes and reshapes of activations are recomputed with them.
    """
    return primitive.name not in {"all_gather", "convert_element_type", "transpose", "reshape"}


def reduce_gradients_across_devices(
    gradients: Any, reduce_type: Literal["mean", "sum"] = "mean", axis_name: str = "data"
) -> Any:
    """Reduce the gradients of each device's own mean loss over an axis.

    Inside jax.shard_map with `check_vma=True` (the default), jax.grad returns gradients of
    replicated parameters already summed over the axis; with `check_vma=False` it returns each
    device's own. Both are handled: gradients that still vary over the axis are reduced; gradients
    that are sums already are only divided, for a mean. ValueError if `reduce_type` is neither
    "mean" nor "sum".
    """
    reductions = {"mean": jax.lax.pmean, "sum": jax.lax.psum}
    if reduce_type not in reductions:
        raise ValueError(f"reduce_type is {reduce_type!r}; it is 'mean' or 'sum'")
    checked = axis_name in varying_axes(jax.lax.axis_index(axis_name))

    def unless_summed(leaf: jax.Array) -> jax.Array | None:
        return None if checked and axis_name not in varying_axes(leaf) else leaf

    own = jax.tree.map(unless_summed, gradients)
    reduced = reductions[reduce_type](own, axis_name)
    divisor = jax.lax.axis_size(axis_name) if reduce_type == "mean" else 1
    return jax.tree.map(lambda x, done: x / divisor if done is None else done, gradients, reduced)
