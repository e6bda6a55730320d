"""Saving and restoring a cell's state with Orbax, in a phase after the rounds.

Every process writes and reads the shards of its own devices. Restored and saved arrays are compared
by checksums, which depend on every bit of an array but not on its sharding.
"""

import logging
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh, NamedSharding, Sharding, SingleDeviceSharding

from bench.records.mesh import MeshShape
from bench.records.numbers import bytes_, count
from bench.records.rows import Checkpoint, RestoredCheckpoint, SavedCheckpoint
from bench.worker import process_exchange
from bench.worker.block_session import BlockSession
from bench.worker.foreign.foreign_arm import ForeignArm
from bench.worker.process_exchange import EndedError, to_host
from bench.worker.prove.carried_state import words
from bench.worker.prove.failures import UnsupportedError, WrongStepError, in_all_processes
from bench.worker.prove.gate import Gate
from bench.worker.prove.replica_drift import find_drifts
from bench.worker.time.clock import Arm

REPEATS = 5
"""Measured saves and restores of each kind, after one warm-up save."""

ENOUGH_S = 30.0
"""Seconds after which the next repetition is the last; there are always at least two."""

STEPS = 20
"""Steps timed before an asynchronous save, to compare with those during it."""

MOST_STEPS = 500
"""Most steps that run during one asynchronous save."""

ROOM = 3
"""Free disk space that is required, as a multiple of the state's bytes."""

Shapes = dict[str, jax.ShapeDtypeStruct]
"""Shape, dtype and sharding of each array of a state."""
Tree = dict[str, jax.Array]
"""The arrays of a state, by their number."""


class SavedState(NamedTuple):
    """A saved state, whose arrays may have been deleted."""

    path: Path
    shapes: Shapes
    checksums: dict[str, str]


def save_and_restore_cells(session: BlockSession, _gate: Gate, settings: Mapping[str, Any]) -> None:
    """Save each ok cell's state in the settings' `modes`, in `folder`, and restore it."""
    arms = session.ok_arms()
    for number, arm in enumerate(arms):
        session.announce("checkpoint", arm.name, number, len(arms))
        folder = Path(settings["folder"]) / str(number)
        measure = partial(measure_checkpoints, arm, session.mesh, settings["modes"], folder)
        try:
            checkpoint = in_all_processes(measure)
        except EndedError as error:  # the cell's times stay valid
            checkpoint = Checkpoint(
                reason=error.reason, state_bytes=0, stored_bytes=0, saves={}, restores=[]
            )
            if process_exchange.is_main():
                shutil.rmtree(folder, ignore_errors=True)
        session.cells[arm.name]["checkpoint"] = checkpoint
        session.send_rows()  # the next file may end the worker


def measure_checkpoints(arm: Arm, mesh: Mesh, modes: Sequence[str], folder: Path) -> Checkpoint:
    """Save an arm's state in these modes, and restore it on its own mesh and on another.

    The arm runs steps during asynchronous saves. All processes share the folder, and the slowest
    one's times count. UnsupportedError if the state cannot be saved, or the disk has too little
    room for it; WrongStepError if it comes back different.
    """
    if isinstance(arm, ForeignArm):
        raise UnsupportedError("its steps run in other processes")
    import orbax.checkpoint as ocp  # noqa: PLC0415 - an extra, which takes long to import

    logging.getLogger("absl").setLevel(logging.ERROR)
    size = sum(array.nbytes for array in arrays(arm.state).values())
    folder.mkdir(parents=True, exist_ok=True)
    free = min(process_exchange.gather(shutil.disk_usage(folder).free))
    if free < ROOM * size:
        raise UnsupportedError(
            f"its files may need {bytes_(ROOM * size)}, but only {bytes_(free)} is free on the disk"
        )
    with closing(ocp.StandardCheckpointer()) as orbax:
        orbax.save(folder / "first", arrays(arm.state))
        orbax.wait_until_finished()
        clear(folder / "first")
        saves: dict[str, SavedCheckpoint] = {}
        for mode in modes:
            saves[mode], saved = measure_saves(arm, orbax, folder, mode)
            check_equal(orbax.restore(saved.path, saved.shapes), saved)
            if mode != modes[-1]:
                clear(saved.path)
        stored = sum(file.stat().st_size for file in _files(saved.path))
        on_meshes = layouts(mesh, saved.shapes).items()
        restores = [measure_restores(orbax, saved, *layout) for layout in on_meshes]
        clear(saved.path)
    own = Checkpoint(
        reason="", state_bytes=size, stored_bytes=stored, saves=saves, restores=restores
    )
    return jax.tree.map(lambda *figures: max(figures), *process_exchange.gather(own))


def measure_saves(
    arm: Arm, orbax: Any, folder: Path, mode: str
) -> tuple[SavedCheckpoint, SavedState]:
    """Save an arm's state repeatedly in a folder by an orbax.checkpoint.StandardCheckpointer.

    The mode is one of bench.records.arms.CHECKPOINT_MODES. The last save is kept.
    """
    asynchronous = mode == "async"
    before = [arm.run(1, wait_each=True) for _ in range(STEPS if asynchronous else 0)]
    figures = SavedCheckpoint(blocking_s=[], total_s=[], steps_before_ns=before, steps_during_ns=[])
    for number, last in enumerate(repetitions()):
        tree, path = arrays(arm.state), folder / f"{mode}-{number}"
        shapes, sums = shapes_of(tree), checksums(tree) if last else {}
        began = time.monotonic()
        orbax.save(path, tree)
        if not asynchronous:
            orbax.wait_until_finished()
        complete = time.monotonic()
        figures["blocking_s"].append(complete - began)
        del tree  # a step may donate the arrays
        if asynchronous:
            complete = train_until_complete(arm, orbax, figures["steps_during_ns"])
        figures["total_s"].append(complete - began)
        if not last:
            clear(path)
    return figures, SavedState(path, shapes, sums)


def repetitions() -> Iterator[bool]:
    """Yield, for each repetition, whether it is the last one; the same in all processes."""
    began, number, last = time.monotonic(), 0, False
    while not last:
        late = number > 0 and time.monotonic() - began > ENOUGH_S
        last = process_exchange.from_main(number == REPEATS - 1 or late)
        yield last
        number += 1


def train_until_complete(arm: Arm, orbax: Any, steps_ns: list[int]) -> float:
    """Run steps during a save, appending their times; return the time of its completion."""

    def completed_at() -> float:
        orbax.wait_until_finished()
        return time.monotonic()

    with ThreadPoolExecutor(1) as pool:
        complete = pool.submit(completed_at)
        for _ in range(MOST_STEPS):
            # Steps may communicate, so all processes must run the same number.
            if all(process_exchange.gather(complete.done())):
                break
            steps_ns.append(arm.run(1, wait_each=True))
        return complete.result()


def measure_restores(
    orbax: Any, saved: SavedState, name: str, shapes: Shapes
) -> RestoredCheckpoint:
    """Restore a state repeatedly, and compare the last one with what was saved."""
    seconds: list[float] = []
    for last in repetitions():
        drop_from_cache(saved.path)
        began = time.monotonic()
        restored = jax.block_until_ready(orbax.restore(saved.path, shapes))
        seconds.append(time.monotonic() - began)
        if last:
            check_equal(restored, saved)
        del restored
    return RestoredCheckpoint(mesh=name, seconds=seconds)


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def drop_from_cache(folder: Path) -> None:
    """Drop files from the system's page cache, so that they are read from the disk again."""
    for path in _files(folder) if hasattr(os, "posix_fadvise") else ():
        with path.open("rb") as file:
            os.fsync(file.fileno())  # only written pages can be dropped
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def clear(folder: Path) -> None:
    """Remove saved files once no process needs them any more."""
    process_exchange.gather(None)
    if process_exchange.is_main():
        shutil.rmtree(folder)
    process_exchange.gather(None)


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
