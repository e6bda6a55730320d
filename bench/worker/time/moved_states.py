"""States are moved to other memory between rounds, which turns the effect of addresses into noise.

A step that donates its state keeps the same memory for as long as its process lives. On CPU, copies
of one program therefore differ by up to a few percent in all rounds alike, which no number of
rounds averages out. Randomizing memory layouts follows Curtsinger and Berger, "STABILIZER:
Statistically Sound Performance Evaluation" (ASPLOS 2013).
"""

from typing import Any

import jax
from flax import nnx
from jaxlib.xla_client import ArrayImpl

from bench.worker.prove.carried_state import private

MOVED_EVERY = 4
"""Rounds from one move to the next. A move copies every state once, outside of all spans."""


def moved(state: Any, *, rebuilt: bool) -> Any:
    """Return a state with its arrays in other memory, in the same shardings, layouts and replicas.

    A state that the step rebuilds is made anew; in others, the arrays of NNX objects are replaced,
    and the rest stays. Nothing moves on accelerators, which have little room for copies. Neither do
    uncommitted arrays, since a committed copy would make the step compile again.
    """
    if jax.default_backend() != "cpu":
        return state
    if rebuilt:
        return jax.tree.map(_moved_leaf, state)
    for part in jax.tree.leaves(state, is_leaf=lambda part: isinstance(part, nnx.Pytree)):
        if isinstance(part, nnx.Pytree):
            nnx.update(part, jax.tree.map(_moved_leaf, nnx.state(part)))
    return state


def is_rebuilt(before: Any, after: Any) -> bool:
    """Whether a step returned only new containers, and none of those of its previous state.

    A step that returns the same objects, such as NNX modules, may hold on to them and ignore
    others.
    """
    given, returned = _containers(before), _containers(after)
    return not given.keys() & returned.keys()


def _moved_leaf(leaf: Any) -> Any:
    return private(leaf) if type(leaf) is ArrayImpl and leaf.committed else leaf


def _containers(tree: Any) -> dict[int, Any]:
    """Return the containers of a tree that hold arrays, by their identities."""
    parts: dict[int, Any] = {}
    jax.tree.leaves(tree, is_leaf=lambda part: parts.setdefault(id(part), part) is None)
    return {
        key: part
        for key, part in parts.items()
        if jax.tree.leaves(part) and not jax.tree_util.all_leaves([part])
    }
