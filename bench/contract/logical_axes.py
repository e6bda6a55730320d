"""Logical axis names: rules map the names of dimensions to mesh axes, and so to shardings."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bench.contract import AxisNames, Params, Problem

T = TypeVar("T")
Rules = tuple[tuple[str, str | None], ...]
"""Pairs of a logical axis and the mesh axis that shards it; None means replicated."""

TENSOR_PARALLEL: Rules = (
    ("batch", "data"),
    ("embed", None),
    ("mlp", "model"),
    ("heads", "model"),
    ("vocab", "model"),
)
"""Shards the columns of one layer and the rows of the next, as Megatron does (Shoeybi et al. 2019,
https://arxiv.org/abs/1909.08053)."""


def path_of(path: Any) -> str:
    """Return a leaf's path as text, such as `blocks/0/up/kernel`."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def shapes_of_params(problem: Problem) -> Params:
    """Return the parameters' shapes and dtypes without computing any."""
    return jax.eval_shape(problem.draw)


def dimensions(problem: Problem) -> Params:
    """Return each parameter's dimensions, by logical name and size, in a tree like the parameters.

    ValueError if names match no parameter, or differ in number from the parameter's dimensions.
    """
    used = set()

    def of_leaf(path: Any, leaf: Any) -> tuple[tuple[str | None, int], ...]:
        name = path_of(path)
        first = ("layers",) if name.startswith(f"{problem.stacked}/") else ()
        for ending, rest in problem.axis_names.items():
            if name == ending or name.endswith(f"/{ending}"):
                used.add(ending)
                names = (*first, *rest)
                if len(names) != len(leaf.shape):
                    raise ValueError(f"{ending} is {names}, but {name} has shape {leaf.shape}")
                return tuple(zip(names, leaf.shape, strict=True))
        return tuple((None, size) for size in leaf.shape)

    tree = jax.tree_util.tree_map_with_path(of_leaf, shapes_of_params(problem))
    unused = sorted(set(problem.axis_names) - used)
    if unused:
        raise ValueError(f"no parameter's path ends in {', '.join(unused)}")
    return tree


def partition_specs(problem: Problem, rules: Rules, mesh: Mesh | AbstractMesh) -> Params:
    """Return each parameter's PartitionSpec by the rules, in a tree like the parameters.

    A dimension is replicated if its mesh axis does not divide it evenly, its name has no rule, or
    the mesh lacks the rule's axis.
    """
    axis_of = {name: axis for name, axis in rules if axis in mesh.shape}

    def spec(own: Sequence[tuple[str | None, int]]) -> P:
        axes = [(axis_of.get(name or ""), size) for name, size in own]
        return P(*(axis if axis and size % mesh.shape[axis] == 0 else None for axis, size in axes))

    return jax.tree.map(spec, dimensions(problem), is_leaf=lambda x: isinstance(x, tuple))


def undivided(problem: Problem, rules: Rules, mesh: Mesh | AbstractMesh, *must: str) -> str | None:
    """Return why the rules cannot shard the parameters as required; None if they can.

    At least one of the names in `must` must occur, and their dimensions must all divide evenly.
    """
    axis_of: Mapping[str, str | None] = dict(rules)
    leaves = jax.tree.leaves(dimensions(problem), is_leaf=lambda x: isinstance(x, tuple))
    found = [(name, size) for own in leaves for name, size in own if name in must]
    if not found:
        return f"the model has no dimension named {' or '.join(must)}, so none can be sharded"
    for name, size in found:
        axis = axis_of[name]
        parts = mesh.shape.get(axis, 1)
        if size % parts:
            return (
                f"the dimension `{name}` has size {size}, which is not divisible by {axis}={parts}"
            )
    return None


_constraint: ContextVar[Callable[[jax.Array, AxisNames], jax.Array]] = ContextVar(
    "constraint", default=lambda x, _: x
)


def constrain(x: jax.Array, names: AxisNames) -> jax.Array:
    """Constrain activations to the sharding of their logical axes.

    Models call this; it does nothing outside `constrained_activations`.
    """
    return _constraint.get()(x, names)


def constrained_activations(rules: Rules, mesh: Mesh) -> AbstractContextManager[None]:
    """Make `constrain` shard activations by the rules in models traced within this context."""
    axis_of = {name: axis for name, axis in rules if axis in mesh.shape}

    def by_rules(x: jax.Array, names: AxisNames) -> jax.Array:
        spec = P(*(axis_of.get(name or "") for name in names))
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec))

    return traced_with(_constraint, by_rules)


@contextmanager
def traced_with(variable: ContextVar[T], value: T) -> Iterator[None]:
    """Set a variable that models read, while they are traced within this context."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
