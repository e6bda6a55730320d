"""Saving and restoring a cell's state with Orbax, in a pass of its own after the rounds.

Every process writes and reads the shards of its own devices. No device is to hold more of an array
than its sharding says: what Orbax restores into carries a sharding for each array, and a thread
looks at the arrays that are alive meanwhile, which it knows by their shape and dtype. What is
restored is compared with what was saved bit by bit, on the host and piece by piece.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import shutil
import threading
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import psutil
from jax.sharding import Mesh, NamedSharding, Sharding, SingleDeviceSharding

from bench.records import numbers
from bench.records.mesh import MeshShape
from bench.records.rows import Checkpoint, RestoredCheckpoint, SavedCheckpoint
from bench.worker import process_exchange
from bench.worker.prove.failures import UnsupportedError
from bench.worker.prove.gate import WrongStepError
from bench.worker.read.program_memory import device_bytes
from bench.worker.time.clock import Arm

REPEATS = 5
"""Of every save and restore, after one save that does not count."""

ENOUGH_S = 30.0
"""No further repetition begins after so long, but a second one always does."""

STEPS = 20
"""That are timed before an asynchronous save, to compare with those during it."""

MOST_STEPS = 500
"""That are run during one."""

ROOM = 3
"""Times the state's bytes that have to be free on the disk."""

LOOK_EVERY_S = 1e-3

Index = tuple[tuple[int, int], ...]
"""First and last but one of each dimension."""
Pieces = dict[Index, int]
"""Checksums of an array's pieces, as devices hold them."""
Shapes = dict[str, jax.ShapeDtypeStruct]
"""What a tree of arrays is, each with its sharding."""
Tree = dict[str, jax.Array]
"""The arrays of a state, by their number."""


class Saved(NamedTuple):
    """A state that was saved. Its arrays may be gone."""

    path: Path
    shapes: Shapes
    pieces: dict[str, Pieces]


class Orbax:
    """Saves and restores trees below a folder."""

    def __init__(self, folder: Path) -> None:
        import orbax.checkpoint as ocp  # noqa: PLC0415 - an extra, which takes long to import

        logging.getLogger("absl").setLevel(logging.ERROR)
        self._ocp = ocp
        self._folder = folder
        self._sync = ocp.Checkpointer(ocp.StandardCheckpointHandler())
        self._async = ocp.AsyncCheckpointer(ocp.StandardCheckpointHandler())
        self._number = 0

    def save(self, tree: Tree, mode: str = "sync") -> Path:
        """Save a tree in a mode of bench.records.arms."""
        self._number += 1
        path = self._folder / str(self._number)
        saver = self._async if mode == "async" else self._sync
        saver.save(path, args=self._ocp.args.StandardSave(tree))
        return path

    def wait(self) -> None:
        """Wait until what is saved asynchronously is complete."""
        self._async.wait_until_finished()

    def restore(self, path: Path, shapes: Shapes) -> Tree:
        """Restore a tree, each array straight into its sharding."""
        restored: Tree = self._sync.restore(path, args=self._ocp.args.StandardRestore(shapes))
        return jax.block_until_ready(restored)

    def close(self) -> None:
        """End its threads."""
        self._sync.close()
        self._async.close()


def measure_checkpoints(arm: Arm, mesh: Mesh, modes: Sequence[str], folder: Path) -> Checkpoint:
    """Save an arm's state in these modes, and restore it on its own mesh and on another.

    Args:
      arm: at rest; it runs steps while it is saved asynchronously.
      mesh: that it runs on.
      modes: of bench.records.arms.
      folder: where files may lie meanwhile; of several processes, the same for all.

    Raises:
      UnsupportedError: the state cannot be saved, or there is no room for it.
      WrongStepError: what was restored differs from what was saved, or a device held more of an
        array than its sharding says.
    """
    size = sum(array.nbytes for array in arrays(arm.state).values())
    folder.mkdir(parents=True, exist_ok=True)
    free = min(process_exchange.gather(shutil.disk_usage(folder).free))
    if free < ROOM * size:
        there, needed = numbers.bytes_(free), numbers.bytes_(ROOM * size)
        raise UnsupportedError(f"{there} are free for its files, and {needed} may be needed")
    with contextlib.closing(Orbax(folder)) as orbax:
        clear(orbax.save(arrays(arm.state)))
        saves: dict[str, SavedCheckpoint] = {}
        saved: Saved | None = None
        for mode in modes:
            if saved is not None:
                clear(saved.path)
            saves[mode], saved = measure_saves(arm, orbax, mode)
            check(orbax.restore(saved.path, saved.shapes), saved)
        assert saved is not None, "there are modes"  # noqa: S101
        stored = sum(file.stat().st_size for file in files(saved.path))
        own = str(MeshShape(tuple(mesh.shape.items())))
        restores = [
            measure_restores(orbax, saved, name, shardings)
            for name, shardings in [
                (own, {name: shape.sharding for name, shape in saved.shapes.items()}),
                *other_layouts(mesh, saved.shapes),
            ]
        ]
        clear(saved.path)
    return Checkpoint(
        reason="",
        file_system=file_system(folder),
        state_bytes=size,
        stored_bytes=process_exchange.from_main(stored),
        saves={mode: slowest(save) for mode, save in saves.items()},
        restores=[{**one, "seconds": slowest(one["seconds"])} for one in restores],
    )


def slowest(figures: Any) -> Any:
    """Lists of times, each as it was in the process that took longest; trees of them."""
    each = process_exchange.gather(figures)
    return jax.tree.map(lambda *times: max(times), *each)


def no_checkpoint(reason: str) -> Checkpoint:
    """The row of a state of which there are no figures."""
    return Checkpoint(
        reason=reason, file_system="", state_bytes=0, stored_bytes=0, saves={}, restores=[]
    )


def arrays(state: Any) -> Tree:
    """The arrays of a state.

    Raises:
      UnsupportedError: it holds something else, or an array of which no other layout can be told.
    """
    leaves = jax.tree.leaves(state)
    for leaf in leaves:
        if not isinstance(leaf, jax.Array):
            raise UnsupportedError(f"its state holds {type(leaf).__name__}, which is no array")
        if not isinstance(leaf.sharding, NamedSharding | SingleDeviceSharding):
            kind = type(leaf.sharding).__name__
            raise UnsupportedError(f"its state is placed by {kind}, which is of no mesh")
    return {f"{number:05d}": leaf for number, leaf in enumerate(leaves)}


def shapes_of(tree: Tree | Shapes, shardings: Mapping[str, Sharding] | None = None) -> Shapes:
    """What the arrays are, in their own shardings or in others."""
    return {
        name: jax.ShapeDtypeStruct(
            array.shape, array.dtype, sharding=shardings[name] if shardings else array.sharding
        )
        for name, array in tree.items()
    }


def other_layouts(mesh: Mesh, shapes: Shapes) -> Iterator[tuple[str, dict[str, Sharding]]]:
    """Shardings over another mesh, and its name; none where there is one device.

    Half of the devices, along an axis that the state is divided over, if there is one. Where that
    would leave a single one, or a process without any, all of them in reverse order, so that each
    reads what another has written.
    """
    if mesh.size == 1:
        return
    divided = {axis for shape in shapes.values() for axis in axes_of(shape.sharding)}
    even = [name for name, size in mesh.shape.items() if size % 2 == 0]
    axis = next((name for name in even if name in divided), next(iter(even), ""))
    if jax.process_count() == 1 and axis and mesh.size > 2:  # noqa: PLR2004
        halves = {name: size // 2 if name == axis else size for name, size in mesh.shape.items()}
        devices = mesh.devices.take(range(halves[axis]), mesh.axis_names.index(axis))
        name = str(MeshShape(tuple(halves.items())))
    else:
        devices = mesh.devices.ravel()[::-1].reshape(mesh.devices.shape)
        name = f"{MeshShape(tuple(mesh.shape.items()))}, devices reversed"
    kept = devices.ravel()

    def moved(sharding: Any) -> Sharding:
        if isinstance(sharding, NamedSharding):
            own = sharding.mesh
            shape = tuple(
                size * kept.size // mesh.size if number == place else size
                for place, size in enumerate(own.devices.shape)
                for number in [own.axis_names.index(axis) if axis in own.axis_names else 0]
            )
            arranged = devices if own.axis_names == mesh.axis_names else kept.reshape(shape)
            other = Mesh(arranged, own.axis_names, axis_types=own.axis_types)
            return NamedSharding(other, sharding.spec)
        return SingleDeviceSharding(kept[-1])

    yield name, {key: moved(shape.sharding) for key, shape in shapes.items()}


def axes_of(sharding: Any) -> set[str]:
    """The mesh axes that an array is divided over."""
    if not isinstance(sharding, NamedSharding):
        return set()
    parts = [part for part in sharding.spec if part is not None]
    return {name for part in parts for name in ([part] if isinstance(part, str) else part)}


def measure_saves(arm: Arm, orbax: Orbax, mode: str) -> tuple[SavedCheckpoint, Saved]:
    """Save an arm's state again and again, and keep the last."""
    asynchronous = mode == "async"
    found = SavedCheckpoint(
        blocking_s=[],
        total_s=[],
        steps_before_ns=[arm.run(1, wait_each=True) for _ in range(STEPS if asynchronous else 0)],
        steps_during_ns=[],
    )
    for last in repetitions():
        tree = arrays(arm.state)
        shapes = shapes_of(tree)
        pieces = {name: pieces_of(array) for name, array in tree.items()} if last else {}
        began = time.monotonic()
        path = orbax.save(tree, mode)
        complete = time.monotonic()
        found["blocking_s"].append(complete - began)
        del tree  # what a step donates is its own
        if asynchronous:
            complete = train_until_complete(arm, orbax, found["steps_during_ns"])
        found["total_s"].append(complete - began)
        if last:
            return found, Saved(path, shapes, pieces)
        clear(path)
    raise AssertionError("there is a last repetition")


def repetitions() -> Iterator[bool]:
    """Again and again, as all processes do: whether it is for the last time."""
    began, number, last = time.monotonic(), 0, False
    while not last:
        late = number > 0 and time.monotonic() - began > ENOUGH_S
        last = process_exchange.from_main(number == REPEATS - 1 or late)
        yield last
        number += 1


def train_until_complete(arm: Arm, orbax: Orbax, steps_ns: list[int]) -> float:
    """Run steps while a save goes on, and note their times; when it was complete."""
    ended: list[float] = []
    failed: list[BaseException] = []

    def wait() -> None:
        try:
            orbax.wait()
        except BaseException as error:  # noqa: BLE001 - raised below, where it is asked for
            failed.append(error)
        ended.append(time.monotonic())

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    for _ in range(MOST_STEPS):
        # Steps may be collectives: all processes take the same number of them.
        if all(process_exchange.gather(bool(ended))):
            break
        steps_ns.append(arm.run(1, wait_each=True))
    waiting.join()
    if failed:
        raise failed[0]
    return ended[0]


def measure_restores(
    orbax: Orbax, saved: Saved, name: str, shardings: Mapping[str, Sharding]
) -> RestoredCheckpoint:
    """Restore a state again and again, and see what lies where.

    Raises:
      WrongStepError: as of `measure_checkpoints`.
    """
    shapes = shapes_of(saved.shapes, shardings)
    bounds = allowed(shapes)
    largest = max(bounds.values())
    seconds: list[float] = []
    seen: dict[str, int] = {}
    for last in repetitions():
        forget(saved.path)
        with watched(seen):
            began = time.monotonic()
            restored = orbax.restore(saved.path, shapes)
            seconds.append(time.monotonic() - began)
        if last:
            check(restored, saved)
            held = device_bytes(restored)
        del restored
    most = 0
    for process in process_exchange.gather(seen):
        for array, size in process.items():
            bound = bounds.get(array, largest)
            if size > bound:
                raise WrongStepError(
                    f"restored on {name}, a device held {numbers.bytes_(size)} of one array, "
                    f"{array}, and may hold {numbers.bytes_(bound)} of it"
                )
            most = max(most, size)
    return RestoredCheckpoint(
        mesh=name,
        seconds=seconds,
        device_bytes=max(process_exchange.gather(max(held.values(), default=0))),
        largest_bytes=largest,
        seen_bytes=most,
    )


def shard_bytes(sharding: Any, array: Any) -> int:
    """Bytes of an array that a device holds."""
    return math.prod(sharding.shard_shape(array.shape)) * int(array.dtype.itemsize)


def kind_of(shape: Sequence[int], dtype: Any) -> str:
    """What an array that comes alive is known by: `float32[8, 4]`."""
    return f"{dtype}{[*shape]}"


def allowed(shapes: Shapes) -> dict[str, int]:
    """Bytes that a device may hold of one array, by its kind: a shard of the saved array of it.

    Orbax puts each shard on its device as an array of its own, and then joins them. So a shard is
    allowed as well, also where another array is of its kind as a whole.
    """
    bounds: dict[str, int] = {}
    for array in shapes.values():
        sharding: Any = array.sharding
        for shape in (array.shape, sharding.shard_shape(array.shape)):
            kind = kind_of(shape, array.dtype)
            bounds[kind] = max(bounds.get(kind, 0), shard_bytes(sharding, array))
    return bounds


@contextmanager
def watched(seen: dict[str, int]) -> Iterator[None]:
    """Look, over and over, at the arrays that come alive: the most that a device holds of one.

    What lives for a shorter time than between two looks may be missed.

    Args:
      seen: bytes by kind, which are raised to what is seen.
    """
    before = jax.live_arrays()
    known = set(map(id, before))
    done = threading.Event()

    def look() -> None:
        while True:
            last = done.is_set()
            for array in jax.live_arrays():
                if id(array) not in known:
                    kind = kind_of(array.shape, array.dtype)
                    seen[kind] = max(seen.get(kind, 0), shard_bytes(array.sharding, array))
            if last:
                return
            time.sleep(LOOK_EVERY_S)

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
        del before  # whose places no new array could have as long as they were alive


def pieces_of(array: jax.Array) -> Pieces:
    """Checksums of what this process's devices hold of an array.

    Raises:
      WrongStepError: copies of one piece differ.
    """
    pieces: Pieces = {}
    for shard in array.addressable_shards:
        found = checksum(np.asarray(shard.data))
        if pieces.setdefault(index_of(shard, array), found) != found:
            raise WrongStepError("devices hold different copies of one array")
    return pieces


def index_of(shard: Any, array: Any) -> Index:
    """Where a shard begins and ends."""
    return tuple(
        part.indices(size)[:2] for part, size in zip(shard.index, array.shape, strict=True)
    )


def checksum(values: np.ndarray) -> int:
    """CRC-32 of the bytes of an array, in the order of its elements."""
    return zlib.crc32(np.ascontiguousarray(values).tobytes())


def check(restored: Tree, saved: Saved) -> None:
    """Compare what was restored with what was saved, in all processes.

    Raises:
      WrongStepError: in one of them, an array differs or lacks a part.
    """
    own = [(name, index, c) for name, one in saved.pieces.items() for index, c in one.items()]
    pieces: dict[str, Pieces] = {name: {} for name in restored}
    for process in process_exchange.gather(own):
        for name, index, found in process:
            pieces[name][tuple((first, end) for first, end in index)] = found
    wrong = [
        name
        for name, array in restored.items()
        if not all(same(shard, array, pieces[name]) for shard in array.addressable_shards)
    ]
    count = max(process_exchange.gather(len(wrong)))
    if count:
        raise WrongStepError(
            f"of {numbers.count(len(restored), 'array')}, {count} came back other than they were "
            "saved"
        )


def same(shard: Any, array: jax.Array, pieces: Pieces) -> bool:
    """Whether a shard is made of pieces that were saved, and of nothing else."""
    values, own = np.asarray(shard.data), index_of(shard, array)
    covered = 0
    for index, found in pieces.items():
        inner = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(index, own, strict=True))
        if inner != index:
            continue  # of another shard
        part = values[tuple(slice(a - c, b - c) for (a, b), (c, _) in zip(index, own, strict=True))]
        if checksum(part) != found:
            return False
        covered += part.size
    return covered == values.size


def files(folder: Path) -> list[Path]:
    """All files below a folder."""
    return [path for path in folder.rglob("*") if path.is_file()]


def forget(folder: Path) -> None:
    """Have the kernel drop its copies of files, so that they are read from where they lie."""
    if not hasattr(os, "posix_fadvise"):
        return
    for path in files(folder):
        with path.open("rb") as file:
            os.fsync(file.fileno())  # only what is written can be dropped
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def clear(folder: Path) -> None:
    """Remove what was saved, once no process needs it any more."""
    process_exchange.gather(None)
    if process_exchange.is_main():
        shutil.rmtree(folder)
    process_exchange.gather(None)


def file_system(folder: Path) -> str:
    """The kind of file system that a folder lies on; empty where the system does not tell."""
    resolved = folder.resolve()
    mounts = {
        Path(part.mountpoint): part.fstype
        for part in psutil.disk_partitions(all=True)
        if resolved.is_relative_to(part.mountpoint)
    }
    return mounts[max(mounts, key=lambda place: len(place.parts))] if mounts else ""
