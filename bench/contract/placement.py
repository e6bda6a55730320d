"""Placing batches and state on a mesh, and reducing gradients: what implementations share."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bench.contract import Params, Problem, varying_axes
from bench.contract.logical_axes import path_of

ReduceType = Literal["mean", "sum"]


def unknown_axes(mesh: Mesh, *known: str) -> str | None:
    """Why an implementation that distributes over the `known` axes alone cannot use this mesh.

    Returns:
      A reason that names axes which the mesh lacks, or has beside these with a size above 1; None
      if there are none.
    """
    missing = [name for name in known if name not in mesh.shape]
    if missing:
        axes = "axis" if len(missing) == 1 else "axes"
        return f"needs the {axes} {' and '.join(missing)}, which this mesh lacks"
    other = [name for name, size in mesh.shape.items() if size > 1 and name not in known]
    if not other:
        return None
    return f"distributes over {' and '.join(known)} only, and this mesh has {', '.join(other)}"


def batch_axes(mesh: Mesh) -> tuple[str, ...]:
    """The axes that a batch is split over, where the mesh has them: `data` and `fsdp`."""
    return tuple(name for name in ("data", "fsdp") if name in mesh.shape)


def create_data_parallel_sharding(
    mesh: Mesh, data_axis: str | tuple[str, ...] = "data"
) -> NamedSharding:
    """Sharding that splits an array's leading dimension over one axis, or several, and no other.

    Raises:
      ValueError: the mesh has no such axis.
    """
    names = (data_axis,) if isinstance(data_axis, str) else data_axis
    for name in names:
        if name not in mesh.shape:
            raise ValueError(f"mesh has no axis {name!r}; it has: {', '.join(mesh.axis_names)}")
    return NamedSharding(mesh, P(data_axis))


def place_batch_on_shards(batch: Any, sharding: NamedSharding) -> Any:
    """Put a host batch onto the mesh, each leaf's leading dimension split as `sharding` says.

    Args:
      batch: pytree of NumPy arrays of shape (global batch, ...).
      sharding: as `create_data_parallel_sharding` makes it.

    Raises:
      ValueError: a leaf is a scalar, or its leading dimension does not divide by the shards.
    """
    axes = sharding.spec[0] if sharding.spec else None
    names = (axes,) if isinstance(axes, str) else tuple(axes or ())
    shards = 1
    for name in names:
        shards *= sharding.mesh.shape[name]
    for path, leaf in jax.tree_util.tree_leaves_with_path(batch):
        name = jax.tree_util.keystr(path) or "the batch"
        if not jnp.shape(leaf):
            raise ValueError(f"{name} is a scalar: a batch has a leading dimension to split")
        if leaf.shape[0] % shards:
            raise ValueError(
                f"{name} has {leaf.shape[0]} rows, which do not divide into {shards} shards"
            )
    return jax.device_put(batch, sharding)


def place_model_state_on_shards(
    state: Any, mesh: Mesh, param_sharding: Literal["replicate"] | Mapping[str, P] = "replicate"
) -> Any:
    """A copy of a pytree of arrays on the mesh.

    The copy is made by a compiled program on purpose: `jax.device_put` may keep using its
    source's buffer for one of the replicas, and a step that donates the replica would then
    delete the source.

    Args:
      state: parameters, optimizer state, or both.
      mesh: where to.
      param_sharding: `"replicate"`, for a copy on every device; or how arrays are divided whose
        path, such as `blocks/0/up/kernel`, holds a regular expression. The first that is found
        counts; arrays in which none is found are replicated.

    Raises:
      ValueError: `param_sharding` is another word, or an expression divides nothing: it is in no
        path, or earlier ones are in all of its paths.
    """
    if isinstance(param_sharding, str):
        if param_sharding != "replicate":
            raise ValueError(
                f"param_sharding is {param_sharding!r}; "
                "it is 'replicate' or a PartitionSpec by path"
            )
        rules: Mapping[str, P] = {}
    else:
        rules = param_sharding
    used = set()

    def sharding(path: Any, _: Any) -> NamedSharding:
        for expression, spec in rules.items():
            if re.search(expression, path_of(path)):
                used.add(expression)
                return NamedSharding(mesh, spec)
        return NamedSharding(mesh, P())

    shardings = jax.tree_util.tree_map_with_path(sharding, state)
    unused = [expression for expression in rules if expression not in used]
    if unused:
        paths = [path_of(path) for path, _ in jax.tree_util.tree_leaves_with_path(state)]
        taken = [name for name in unused if any(re.search(name, path) for path in paths)]
        if taken:
            raise ValueError(
                f"earlier expressions hold for every path that {', '.join(taken)} is in"
            )
        raise ValueError(f"no path holds {', '.join(unused)}; there are: {', '.join(paths)}")
    copy = jax.jit(lambda tree: jax.tree.map(jnp.copy, tree), out_shardings=shardings)
    return copy(state)


def place_nnx_state_on_shards(
    state: nnx.State, mesh: Mesh, filter_sharding: Sequence[tuple[Any, P]]
) -> nnx.State:
    """A copy of an `nnx.State` on the mesh, divided by kinds of variables.

    Args:
      state: of a model or an optimizer.
      mesh: where to.
      filter_sharding: pairs of an nnx filter (`nnx.Param`, `nnx.PathContains("bias")`, `...` for
        all) and how what it lets through is divided. The first that does counts; what none lets
        through is replicated.

    Raises:
      ValueError: a filter divides nothing: it lets nothing through, or nothing that earlier ones
        do not.
    """
    filters = [(nnx.filterlib.to_predicate(kind), spec) for kind, spec in filter_sharding]
    used = set()

    def sharding(path: tuple[Any, ...], variable: Any) -> Any:
        for number, (lets_through, spec) in enumerate(filters):
            if lets_through(path, variable):
                used.add(number)
                return NamedSharding(mesh, spec)
        return NamedSharding(mesh, P())

    flat = nnx.to_flat_state(state)
    shardings = [sharding(path, variable) for path, variable in flat]
    for number, (kind, _) in enumerate(filter_sharding):
        if number not in used:
            if any(filters[number][0](path, variable) for path, variable in flat):
                raise ValueError(f"earlier filters let through all that {kind!r} does")
            raise ValueError(f"the filter {kind!r} lets no variable of the state through")
    arrays, structure = jax.tree.flatten(state)
    copy = jax.jit(lambda leaves: [jnp.copy(leaf) for leaf in leaves], out_shardings=shardings)
    return jax.tree.unflatten(structure, copy(arrays))


def create_sharded_state(
    problem: Problem,
    mesh: Mesh,
    specs: Params,
    arrange: Callable[[Params], Params] = lambda params: params,
) -> tuple[Params, Any]:
    """Initial parameters and optimizer state, made where they are to be.

    One compiled program draws the parameters and makes the optimizer state from them, each device
    its shards alone, so that a model may be larger than a device.

    Args:
      problem: draws its parameters in the program; where it has others to start from, each device
        gets its shards of those.
      mesh: where to.
      specs: a PartitionSpec for each parameter, in a tree like them.
      arrange: makes the tree that the state holds, and `specs` are of, from the model's parameters:
        arrays of jax or of NumPy.
    """
    shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)

    def create(start: Params | None) -> tuple[Params, Any]:
        params = arrange(problem.draw()) if start is None else jax.tree.map(jnp.copy, start)
        return params, problem.optimizer.init(params)

    start = None
    if problem.start is not None:
        start = jax.device_put(arrange(problem.start), shardings)
    shapes = jax.eval_shape(create, start)
    opt_specs = optimizer_specs(problem, shapes[1], specs)
    opt_shardings = jax.tree.map(lambda s: NamedSharding(mesh, s), opt_specs)
    return jax.jit(create, out_shardings=(shardings, opt_shardings))(start)


def optimizer_specs(problem: Problem, opt_state: Any, specs: Params) -> Any:
    """How an optimizer's state is divided.

    What it keeps of a parameter is as the parameter, the rest, such as a count of steps, not.

    Args:
      problem: whose optimizer it is.
      opt_state: the state, or its shapes.
      specs: a PartitionSpec for each parameter.
    """
    return optax.tree_utils.tree_map_params(
        problem.optimizer,
        lambda _, spec: spec,
        opt_state,
        specs,
        transform_non_params=lambda _: P(),
    )


def shapes_of_params(problem: Problem) -> Params:
    """The parameters as shapes and dtypes, none of which is computed."""
    return jax.eval_shape(problem.draw)


def shard_axis(mesh: Mesh) -> str:
    """The axis that FSDP divides parameters over: `fsdp`, or `data` where `fsdp` has no devices."""
    return "fsdp" if mesh.shape.get("fsdp", 1) > 1 or "data" not in mesh.shape else "data"


def fsdp_specs(problem: Problem, mesh: Mesh, axis: str) -> Params:
    """How each parameter is divided over an axis: along its largest dimension that divides evenly.

    A parameter of which no dimension does is not divided.
    """

    def spec(leaf: jax.ShapeDtypeStruct) -> P:
        fitting = [d for d, size in enumerate(leaf.shape) if size % mesh.shape[axis] == 0]
        if not fitting:
            return P()
        return P(*(None,) * max(fitting, key=lambda d: leaf.shape[d]), axis)

    return jax.tree.map(spec, shapes_of_params(problem))


def reduce_gradient_tree(tree: Any, reduce_type: ReduceType, axis_name: str) -> Any:
    """Sum or mean, over the devices of an axis, of trees that each device has one of.

    One psum or pmean of the whole tree, so that the compiler may make one all-reduce of it.

    Raises:
      ValueError: `reduce_type` is neither "mean" nor "sum".
    """
    reductions = {"mean": jax.lax.pmean, "sum": jax.lax.psum}
    if reduce_type not in reductions:
        raise ValueError(f"reduce_type is {reduce_type!r}; it is 'mean' or 'sum'")
    return reductions[reduce_type](tree, axis_name)


def reduce_gradients_across_devices(
    gradients: Any, reduce_type: ReduceType = "mean", axis_name: str = "data"
) -> Any:
    """Sum or mean, over the devices of an axis, of the gradients of their own losses.

    Within jax.shard_map, gradients by parameters that all devices hold alike come out of
    jax.grad already summed over them if varying axes are checked (`check_vma=True`, the default),
    and as each device's own if not. Both are handled: what still varies over the axis is reduced,
    what does not is a sum, which only a mean divides.

    Args:
      gradients: pytree, of the mean loss over this device's shard of the batch.
      reduce_type: "mean" or "sum".
      axis_name: an axis of the enclosing jax.shard_map or jax.pmap.

    Raises:
      ValueError: `reduce_type` is neither.
    """
    checked = axis_name in varying_axes(jax.lax.axis_index(axis_name))
    leaves, structure = jax.tree.flatten(gradients)
    summed = [checked and axis_name not in varying_axes(leaf) for leaf in leaves]
    own = [leaf for leaf, done in zip(leaves, summed, strict=True) if not done]
    reduced = iter(reduce_gradient_tree(own, reduce_type, axis_name))
    divisor = jax.lax.axis_size(axis_name) if reduce_type == "mean" else 1
    return jax.tree.unflatten(
        structure,
        [
            leaf / divisor if done else next(reduced)
            for leaf, done in zip(leaves, summed, strict=True)
        ],
    )
