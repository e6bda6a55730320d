"""Saved and restored state: its arrays, other shardings of them, and their comparison.

Restored and saved arrays are compared by checksums, which depend on every bit of an array but not
on its sharding.
"""

from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh, NamedSharding, Sharding, SingleDeviceSharding

from bench.records.mesh import MeshShape
from bench.records.numbers import count
from bench.worker.process_exchange import to_host
from bench.worker.prove.carried_state import words
from bench.worker.prove.failures import UnsupportedError, WrongStepError
from bench.worker.prove.replica_drift import find_drifts

Shapes = dict[str, jax.ShapeDtypeStruct]
"""Shape, dtype and sharding of each array of a state."""
Tree = dict[str, jax.Array]
"""The arrays of a state, by their number."""


class SavedState(NamedTuple):
    """A saved state, whose arrays may have been deleted."""

    path: Path
    shapes: Shapes
    checksums: dict[str, str]


def arrays(state: Any) -> Tree:
    """Return a state's arrays, PRNG keys as words; UnsupportedError if one cannot be saved."""
    leaves = jax.tree.leaves(state)
    for leaf in leaves:
        kind = type(leaf).__name__
        if not isinstance(leaf, jax.Array):
            raise UnsupportedError(f"its state holds {kind} values, not only jax.Arrays")
        if not isinstance(leaf.sharding, NamedSharding | SingleDeviceSharding):
            kind = type(leaf.sharding).__name__
            raise UnsupportedError(f"its state has an array with a {kind}, which names no mesh")
    return {f"{number:05d}": words(leaf) for number, leaf in enumerate(leaves)}


def shapes_of(tree: Tree) -> Shapes:
    """Describe arrays with their own shardings."""
    return {n: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding) for n, x in tree.items()}


def layouts(mesh: Mesh, shapes: Shapes) -> dict[str, Shapes]:
    """Describe a state on its own mesh and, unless that is a single device, on another; by name.

    The other mesh has half of the devices, along an axis that shards the state, if there is one. If
    that would leave a single device, or a process without devices, it has all devices in reverse
    order, so that each reads shards written by another.
    """
    own_name = str(MeshShape(tuple(mesh.shape.items())))
    if mesh.size == 1:
        return {own_name: shapes}
    specs = [getattr(shape.sharding, "spec", ()) for shape in shapes.values()]
    divided = set(jax.tree.leaves([tuple(spec) for spec in specs]))
    even = [name for name, size in mesh.shape.items() if size % 2 == 0]
    axis = next((name for name in even if name in divided), next(iter(even), ""))
    if jax.process_count() == 1 and axis and mesh.size > 2:  # noqa: PLR2004
        halves = {name: size // 2 if name == axis else size for name, size in mesh.shape.items()}
        devices = mesh.devices.take(range(halves[axis]), mesh.axis_names.index(axis))
        name = str(MeshShape(tuple(halves.items())))
    else:
        devices = mesh.devices.ravel()[::-1].reshape(mesh.devices.shape)
        name = f"{own_name}, devices reversed"

    def moved(sharding: Any) -> Sharding:
        if not isinstance(sharding, NamedSharding):
            return SingleDeviceSharding(devices.ravel()[-1])
        own, shape = sharding.mesh, [*sharding.mesh.devices.shape]
        place = own.axis_names.index(axis) if axis in own.axis_names else 0
        shape[place] = shape[place] * devices.size // mesh.size
        other = Mesh(devices.reshape(shape), own.axis_names, axis_types=own.axis_types)
        return NamedSharding(other, sharding.spec)

    others = {key: shape.update(sharding=moved(shape.sharding)) for key, shape in shapes.items()}
    return {own_name: shapes, name: others}


def checksums(tree: Tree) -> dict[str, str]:
    """Return checksums, the same in all processes; WrongStepError if replicas of a shard differ."""
    if find_drifts(tree):
        raise WrongStepError("devices hold different copies of one array")
    return {name: sha256(to_host(array).tobytes()).hexdigest() for name, array in tree.items()}


def check_equal(restored: Tree, saved: SavedState) -> None:
    """Compare restored arrays with saved ones; WrongStepError in all processes if any differs."""
    found = checksums(restored)
    if wrong := sum(found[name] != checksum for name, checksum in saved.checksums.items()):
        of = count(len(restored), "array")
        raise WrongStepError(f"{wrong} of {of} came back different from what was saved")
