"""Copies of whole states on the host, from which states can be made again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np

from bench.worker.prove.carried_state import is_key, private, words
from bench.worker.prove.held_state import digest_of


class StateCopy:
    """The arrays of a state, copied to the host shard by shard: replicas may differ.

    Args:
      state: the state.
      places: indices of the leaves to copy; all if None.
      replicas: whether to copy every replica; otherwise the first stands for all.
    """

    def __init__(
        self, state: Any, places: Iterable[int] | None = None, *, replicas: bool = True
    ) -> None:
        flattened: tuple[list[Any], Any] = jax.tree.flatten(state)
        leaves, self._tree = flattened
        chosen = range(len(leaves)) if places is None else places
        self.kept = {place: _kept(leaves[place], replicas=replicas) for place in chosen}
        """For each leaf, the checksums of its shards, and a function that makes it again."""

    def equals(self, other: StateCopy) -> bool:
        """Whether all leaves of this copy are in the other one, and equal."""
        return all(other.kept[place][0] == digests for place, (digests, _) in self.kept.items())

    def restored(self, later: Any = None) -> Any:
        """Make a state of the copies, and of a later state's leaves where none were copied."""
        leaves = jax.tree.leaves(later)
        places = range(self._tree.num_leaves)
        made = (self.kept[at][1]() if at in self.kept else leaves[at] for at in places)
        return jax.tree.unflatten(self._tree, made)


def _kept(leaf: Any, *, replicas: bool) -> tuple[list[int], Callable[[], Any]]:
    """Copy a leaf, for `StateCopy.kept`."""
    own = private(leaf) if hasattr(leaf, "shape") else leaf
    if not isinstance(own, jax.Array):
        return [digest_of(np.asarray(own))], lambda: own
    kind = jax.random.key_impl(own) if is_key(own) else None
    numbers = words(own)
    shape, sharding, is_committed = numbers.shape, numbers.sharding, leaf.committed
    known: dict[int, np.ndarray] = {}  # equal replicas share memory
    first: dict[str, int] = {}
    digests, pieces = [], []
    for shard in numbers.addressable_shards:
        digest = None if replicas else first.get(str(shard.index))
        if digest is None:
            values = np.asarray(shard.data)
            digest = first[str(shard.index)] = digest_of(values)
            known.setdefault(digest, values)
        digests.append(digest)
        pieces.append((known[digest], shard.data.sharding))

    def make() -> Any:
        if is_committed:
            placed = [jax.device_put(*piece) for piece in pieces]
            array = jax.make_array_from_single_device_arrays(shape, sharding, placed)
        else:
            array = jax.device_put(pieces[0][0])
        return array if kind is None else jax.random.wrap_key_data(array, impl=kind)

    return digests, make
