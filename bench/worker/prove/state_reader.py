"""States of an implementation: whole copies, and their parts in the problem's layout."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple
from zlib import crc32

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bench.contract import Params, Problem, TrainStep
from bench.contract.logical_axes import path_of, shapes_of_params
from bench.contract.model_state import ModelState, is_float
from bench.worker.prove.carried_state import (
    is_key,
    leaves_by_path,
    model_state_of,
    on_host,
    private,
    words,
)
from bench.worker.prove.failures import APPROXIMATE, WrongStepError


class HostState(NamedTuple):
    """The contents of a state, copied to the host, where no later donation can delete them."""

    params: Params
    opt_state: Any
    """The state in the layout of the problem's optimizer; None if it was not found."""
    model_state: ModelState


class StateReader:
    """Reads states of one step.

    Where `params` returns arrays of the state itself, the reader takes them from there and calls no
    function of the file, which would tell the step that it is checked. Elsewhere it calls `params`
    on a copy of the state, after the round.

    The optimizer's state is a run of leaves with the shapes and dtypes of a fresh optimizer state
    for the parameters, which are the result of `held`, or else of `params`. Of several such runs,
    it is the first of those whose paths share most field names with that state; if none has any in
    common, the choice is a guess (`guesses`). To convert moments to the problem's layout, they take
    the parameters' places in the state, which is then read.

    Raises WrongStepError if reading changes the state.
    """

    def __init__(self, train_step: TrainStep, problem: Problem, state: Any) -> None:
        leaves, again = [jax.tree.leaves(state) for _ in range(2)]  # some make leaves when asked
        places = {id(leaf): number for number, leaf in enumerate(leaves)}
        given = shapes_of_params(problem)
        names, layout = leaves_by_path(given), jax.tree.structure(given)

        def read(state: Any) -> tuple[Params, ModelState]:
            found = leaves_by_path(train_step.params(state))  # perhaps of another mapping's class
            params = jax.tree.unflatten(layout, [found[name] for name in names])
            return params, model_state_of(problem, train_step, state)

        params, model_state = read(state)
        parts: tuple[list[Any], Any] = jax.tree.flatten((params, model_state))
        held_by = getattr(train_step, "held", None) or train_step.params
        held = jax.tree_util.tree_leaves_with_path(held_by(state))
        trios = zip(leaves, again, jax.tree.leaves(state), strict=True)
        if any(one is same and one is not now for one, same, now in trios):
            raise WrongStepError("`params` changes the state: part of the step is done untimed")
        self._read, self._parts = read, parts[1]
        self._own = [places.get(id(leaf), -1) for leaf in parts[0]]
        """Indices of the parameters and the model state among the leaves; -1 for computed ones."""
        self.is_plain = -1 not in self._own
        """Whether all of them are leaves of the state."""
        self.is_elsewhere = is_elsewhere(train_step)
        paths = {places.get(id(leaf)): path_of(path) for path, leaf in held}
        self.held = sorted(place for place in paths if place is not None)
        """Indices of the parameters among the state's leaves, in ascending order."""
        init = problem.optimizer.init
        self.guesses = False
        self.optimizer: tuple[int, Any] | None = None
        """Index of the optimizer state's first leaf, and the state's tree structure over a list of
        parameters, each in a dict under its path, on which an optimizer may depend; None if the
        state was not found."""
        if len(self.held) < len(held):  # params are computed
            return
        shapes = jax.eval_shape(init, [{paths[at]: leaves[at]} for at in self.held])
        self._layout: tuple[list[Any], Any] = jax.tree.flatten(
            jax.eval_shape(init, params),
            is_leaf=lambda part: isinstance(part, dict) and part.keys() == params.keys(),
        )
        """Parts and tree structure of the optimizer's state in the problem's layout."""
        wanted = jax.tree.leaves(shapes)
        # The attributes in the path of each leaf, such as `.trace`.
        paths_of = (leaves_by_path(tree) for tree in (state, shapes))
        fields, own = ([{*re.findall(r"\.\w+", path)} for path in each] for each in paths_of)

        def likeness(place: int) -> int:
            """Count names in common: an average of the parameters looks like their momentum."""
            return sum(map(len, map(set.intersection, fields[place:], own)))

        fitting = [
            place
            for place in range(len(leaves) - len(wanted) + 1)
            if all(map(_fits, leaves[place:], wanted))
            and not set(self.held) & set(range(place, place + len(wanted)))
        ]
        if fitting:
            place = max(fitting, key=likeness)
            self.optimizer = place, jax.tree.structure(shapes)
            self.guesses = any(own) and not likeness(place)

    def parts(self, state: Any) -> tuple[Params, ModelState]:
        """Return the parameters and the model state of a state; `params` may raise anything."""
        if not self.is_plain:
            return self._read(state)
        leaves = jax.tree.leaves(state)
        return self._parts.unflatten(leaves[at] for at in self._own)

    def read(self, state: Any, parts: tuple[Params, ModelState]) -> HostState:
        """Copy a state, given its parts, to the host: a collective if processes share arrays."""
        params, model_state = on_host(parts)
        if self.optimizer is None:
            return HostState(params, None, model_state)
        leaves, tree = jax.tree.flatten(state)
        place, optimizers = self.optimizer
        held = jax.tree.unflatten(optimizers, leaves[place : place + optimizers.num_leaves])

        def is_moment(part: Any) -> bool:
            return isinstance(part, list) and len(part) == len(self.held)

        def in_layout(part: Any, wanted: Any) -> Any:
            if not is_moment(part):
                return on_host(part) if wanted.shape else on_host(part).ravel()[0]
            replaced = list(leaves)
            for number, own in zip(self.held, part, strict=True):
                for leaf in jax.tree.leaves(own):  # none if the parameter has no such moment
                    replaced[number] = leaf
            whole = on_host(self.parts(jax.tree.unflatten(tree, replaced))[0])
            return jax.tree.map(
                lambda one, leaf: one if isinstance(one, optax.MaskedNode) else leaf,
                wanted, whole, is_leaf=lambda one: isinstance(one, optax.MaskedNode),
            )  # fmt: skip

        wanted, layout = self._layout
        pieces = jax.tree.leaves(held, is_leaf=is_moment)
        opt_state = jax.tree.unflatten(layout, map(in_layout, pieces, wanted))
        return HostState(params, opt_state, model_state)


class StateCopy:
    """The arrays of a state, copied to the host shard by shard: replicas may differ.

    Without `replicas`, one stands for all.
    """

    def __init__(self, state: Any, *, replicas: bool = True) -> None:
        leaves, self._tree = jax.tree.flatten(state)
        self._kept = [_kept(leaf, replicas=replicas) for leaf in leaves]

    def restored(self) -> Any:
        """Make a state from the copies."""
        return jax.tree.unflatten(self._tree, [make() for make in self._kept])


def _kept(leaf: Any, *, replicas: bool) -> Callable[[], Any]:
    """Copy a leaf; return a function that makes it again."""
    own = private(leaf) if hasattr(leaf, "shape") else leaf
    if not isinstance(own, jax.Array):
        return lambda: own
    kind = jax.random.key_impl(own) if is_key(own) else None
    numbers = words(own)
    shape, sharding, is_committed = numbers.shape, numbers.sharding, leaf.committed
    known: dict[int, np.ndarray] = {}  # equal replicas share memory
    first: dict[str, int] = {}
    pieces = []
    for shard in numbers.addressable_shards:
        digest = None if replicas else first.get(str(shard.index))
        if digest is None:
            values = np.asarray(shard.data)
            digest = first[str(shard.index)] = digest_of(values)
            known.setdefault(digest, values)
        pieces.append((known[digest], shard.data.sharding))

    def make() -> Any:
        if is_committed:
            placed = [jax.device_put(*piece) for piece in pieces]
            array = jax.make_array_from_single_device_arrays(shape, sharding, placed)
        else:
            array = jax.device_put(pieces[0][0])
        return array if kind is None else jax.random.wrap_key_data(array, impl=kind)

    return make


def is_elsewhere(train_step: TrainStep) -> bool:
    """Whether a step's state and batch are in other processes, as a foreign step's are."""
    return hasattr(train_step, "children")


def check_room(problem: Problem, params: Params, state: Any) -> None:
    """Raise WrongStepError if a state lacks room for the parameters and moments in their dtypes."""
    wanted = floats((params, jax.eval_shape(problem.optimizer.init, params)))
    found = floats(state)
    for width in {leaf.dtype.itemsize for leaf in wanted.values()}:
        needed, room = (
            sum(leaf.size for leaf in floats.values() if leaf.dtype.itemsize >= width)
            for floats in (wanted, found)
        )
        narrow = [path for path, leaf in found.items() if leaf.dtype.itemsize < width]
        if room < needed:
            raise WrongStepError(
                f"the state's {narrow[0]} is {found[narrow[0]].dtype}, narrower than the "
                f"parameters or what the optimizer's init makes ({APPROXIMATE})"
                if narrow
                else f"the state has {room} numbers, where parameters and the optimizer's state "
                f"have {needed}: the step keeps the rest outside of `state`"
            )


def floats(tree: Any) -> dict[str, Any]:
    """Return the floating-point arrays of a tree by path."""
    found = leaves_by_path(tree).items()
    return {path: leaf for path, leaf in found if hasattr(leaf, "dtype") and is_float(leaf)}


def _fits(leaf: Any, wanted: Any) -> bool:
    """Whether a leaf may be the wanted one. A counter may be stacked, one copy per device."""
    shape = getattr(leaf, "shape", ())
    fits = shape == wanted.shape or (not wanted.shape and len(shape) == 1)
    return fits and getattr(leaf, "dtype", type(leaf)) == wanted.dtype


def digest_of(params: Params) -> int:
    """Return a checksum of parameters, by which equal ones are recognized."""
    digest = 0
    for leaf in jax.tree.leaves(params):
        digest = crc32(np.ascontiguousarray(leaf).view(np.uint8).data, digest)
    return digest


def is_count(leaf: Any) -> bool:
    """Whether a leaf of an optimizer's state counts its updates."""
    return leaf.ndim == 0 and jnp.issubdtype(leaf.dtype, jnp.integer)


def counters(opt_state: Any) -> dict[str, int]:
    """Return the integers among the scalars of an optimizer's state, by path."""
    return {path: int(leaf) for path, leaf in leaves_by_path(opt_state).items() if is_count(leaf)}


def scalars(opt_state: Any) -> Any:
    """Return an optimizer's state with empty arrays in place of its moments; None for None."""
    return jax.tree.map(lambda leaf: np.zeros(0) if leaf.ndim else leaf, opt_state)


def moments(opt_state: Any) -> dict[str, np.ndarray]:
    """Return the floating-point arrays of an optimizer's state, as float64 by path."""
    found = floats(opt_state).items()
    return {path: np.asarray(leaf, np.float64) for path, leaf in found if leaf.ndim and leaf.size}
