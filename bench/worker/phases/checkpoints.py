"""Saving and restoring a cell's state with Orbax, in a phase after the rounds.

Every process writes and reads the shards of its own devices. The checks are in saved_state.
"""

import logging
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh, Sharding

from bench.records.mesh import MeshShape
from bench.records.numbers import bytes_
from bench.records.rows import Checkpoint, RestoredCheckpoint, SavedCheckpoint
from bench.worker import process_exchange
from bench.worker.block_session import BlockSession
from bench.worker.phases import saved_state
from bench.worker.process_exchange import EndedError
from bench.worker.prove.failures import UnsupportedError, in_all_processes
from bench.worker.prove.gate import Gate
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


class Orbax:
    """Saves and restores trees below a folder."""

    def __init__(self, folder: Path) -> None:
        import orbax.checkpoint as ocp  # noqa: PLC0415 - an extra, which takes long to import

        logging.getLogger("absl").setLevel(logging.ERROR)
        self._args = ocp.args
        self._paths = (folder / str(number) for number in count())
        self._sync = ocp.Checkpointer(ocp.StandardCheckpointHandler())
        self._async = ocp.AsyncCheckpointer(ocp.StandardCheckpointHandler())

    def save(self, tree: saved_state.Tree, mode: str = "sync") -> Path:
        """Save a tree in a mode of bench.records.arms.CHECKPOINT_MODES."""
        path, saver = next(self._paths), self._async if mode == "async" else self._sync
        saver.save(path, args=self._args.StandardSave(tree))
        return path

    def completed_at(self) -> float:
        """Wait until asynchronous saves are complete; return the time."""
        self._async.wait_until_finished()
        return time.monotonic()

    def restore(self, path: Path, shapes: saved_state.Shapes) -> saved_state.Tree:
        """Restore a tree, each array directly into its sharding."""
        args = self._args.StandardRestore(shapes)
        return jax.block_until_ready(self._sync.restore(path, args=args))

    def close(self) -> None:
        """End Orbax's threads."""
        self._sync.close()
        self._async.close()


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
            checkpoint = no_checkpoint(error.reason)
            if process_exchange.is_main():
                shutil.rmtree(folder, ignore_errors=True)
        session.cells[arm.name]["checkpoint"] = checkpoint
        session.send_rows()  # the next file may end the worker


def measure_checkpoints(arm: Arm, mesh: Mesh, modes: Sequence[str], folder: Path) -> Checkpoint:
    """Save an arm's state in these modes, and restore it on its own mesh and on another.

    The arm runs steps during asynchronous saves. All processes share the folder.

    Raises:
      UnsupportedError: the state cannot be saved, or the disk has too little room for it.
      WrongStepError: the state comes back different.
    """
    size = sum(array.nbytes for array in saved_state.arrays(arm.state).values())
    folder.mkdir(parents=True, exist_ok=True)
    free = min(process_exchange.gather(shutil.disk_usage(folder).free))
    if free < ROOM * size:
        raise UnsupportedError(
            f"its files may need {bytes_(ROOM * size)}, but only {bytes_(free)} is free on the disk"
        )
    with closing(Orbax(folder)) as orbax:
        clear(orbax.save(saved_state.arrays(arm.state)))
        saves: dict[str, SavedCheckpoint] = {}
        for mode in modes:
            saves[mode], saved = measure_saves(arm, orbax, mode)
            saved_state.check_equal(orbax.restore(saved.path, saved.shapes), saved)
            if mode != modes[-1]:
                clear(saved.path)
        stored = sum(file.stat().st_size for file in _files(saved.path))
        own = str(MeshShape(tuple(mesh.shape.items())))
        layouts = {own: {name: shape.sharding for name, shape in saved.shapes.items()}}
        layouts |= saved_state.other_layouts(mesh, saved.shapes)
        restores = [measure_restores(orbax, saved, *layout) for layout in layouts.items()]
        clear(saved.path)
    return Checkpoint(
        reason="",
        state_bytes=size,
        stored_bytes=process_exchange.from_main(stored),
        saves={mode: slowest(save) for mode, save in saves.items()},
        restores=[{**one, "seconds": slowest(one["seconds"])} for one in restores],
    )


def slowest(figures: Any) -> Any:
    """Replace each time in a tree of lists by the slowest process's."""
    return jax.tree.map(lambda *times: max(times), *process_exchange.gather(figures))


def no_checkpoint(reason: str) -> Checkpoint:
    """Return the record of a state that has no figures, with the reason."""
    return Checkpoint(reason=reason, state_bytes=0, stored_bytes=0, saves={}, restores=[])


def measure_saves(
    arm: Arm, orbax: Orbax, mode: str
) -> tuple[SavedCheckpoint, saved_state.SavedState]:
    """Save an arm's state repeatedly, and keep the last save."""
    asynchronous = mode == "async"
    before = [arm.run(1, wait_each=True) for _ in range(STEPS if asynchronous else 0)]
    figures = SavedCheckpoint(blocking_s=[], total_s=[], steps_before_ns=before, steps_during_ns=[])
    for last in repetitions():
        tree = saved_state.arrays(arm.state)
        shapes, sums = saved_state.shapes_of(tree), saved_state.checksums(tree) if last else {}
        began = time.monotonic()
        path = orbax.save(tree, mode)
        complete = time.monotonic()
        figures["blocking_s"].append(complete - began)
        del tree  # a step may donate the arrays
        if asynchronous:
            complete = train_until_complete(arm, orbax, figures["steps_during_ns"])
        figures["total_s"].append(complete - began)
        if not last:
            clear(path)
    return figures, saved_state.SavedState(path, shapes, sums)


def repetitions() -> Iterator[bool]:
    """Yield, for each repetition, whether it is the last one; the same in all processes."""
    began, number, last = time.monotonic(), 0, False
    while not last:
        late = number > 0 and time.monotonic() - began > ENOUGH_S
        last = process_exchange.from_main(number == REPEATS - 1 or late)
        yield last
        number += 1


def train_until_complete(arm: Arm, orbax: Orbax, steps_ns: list[int]) -> float:
    """Run steps during a save, appending their times; return the time of its completion."""
    with ThreadPoolExecutor(1) as pool:
        complete = pool.submit(orbax.completed_at)
        for _ in range(MOST_STEPS):
            # Steps may communicate, so all processes must run the same number.
            if all(process_exchange.gather(complete.done())):
                break
            steps_ns.append(arm.run(1, wait_each=True))
        return complete.result()


def measure_restores(
    orbax: Orbax, saved: saved_state.SavedState, name: str, shardings: Mapping[str, Sharding]
) -> RestoredCheckpoint:
    """Restore a state repeatedly, and compare the last one with what was saved."""
    shapes = saved_state.shapes_of(saved.shapes, shardings)
    seconds: list[float] = []
    for last in repetitions():
        drop_from_cache(saved.path)
        began = time.monotonic()
        restored = orbax.restore(saved.path, shapes)
        seconds.append(time.monotonic() - began)
        if last:
            saved_state.check_equal(restored, saved)
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
