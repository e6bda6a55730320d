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
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

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
    one's times count.

    Raises:
      UnsupportedError: the state cannot be saved, or the disk has too little room for it.
      WrongStepError: the state comes back different.
    """
    import orbax.checkpoint as ocp  # noqa: PLC0415 - an extra, which takes long to import

    logging.getLogger("absl").setLevel(logging.ERROR)
    size = sum(array.nbytes for array in saved_state.arrays(arm.state).values())
    folder.mkdir(parents=True, exist_ok=True)
    free = min(process_exchange.gather(shutil.disk_usage(folder).free))
    if free < ROOM * size:
        raise UnsupportedError(
            f"its files may need {bytes_(ROOM * size)}, but only {bytes_(free)} is free on the disk"
        )
    with closing(ocp.StandardCheckpointer()) as orbax:
        orbax.save(folder / "first", saved_state.arrays(arm.state))
        orbax.wait_until_finished()
        clear(folder / "first")
        saves: dict[str, SavedCheckpoint] = {}
        for mode in modes:
            saves[mode], saved = measure_saves(arm, orbax, folder, mode)
            saved_state.check_equal(orbax.restore(saved.path, saved.shapes), saved)
            if mode != modes[-1]:
                clear(saved.path)
        stored = sum(file.stat().st_size for file in _files(saved.path))
        layouts = saved_state.layouts(mesh, saved.shapes).items()
        restores = [measure_restores(orbax, saved, *layout) for layout in layouts]
        clear(saved.path)
    own = Checkpoint(
        reason="", state_bytes=size, stored_bytes=stored, saves=saves, restores=restores
    )
    return jax.tree.map(lambda *figures: max(figures), *process_exchange.gather(own))


def measure_saves(
    arm: Arm, orbax: Any, folder: Path, mode: str
) -> tuple[SavedCheckpoint, saved_state.SavedState]:
    """Save an arm's state repeatedly in a folder by an orbax.checkpoint.StandardCheckpointer.

    The mode is one of bench.records.arms.CHECKPOINT_MODES. The last save is kept.
    """
    asynchronous = mode == "async"
    before = [arm.run(1, wait_each=True) for _ in range(STEPS if asynchronous else 0)]
    figures = SavedCheckpoint(blocking_s=[], total_s=[], steps_before_ns=before, steps_during_ns=[])
    for number, last in enumerate(repetitions()):
        tree, path = saved_state.arrays(arm.state), folder / f"{mode}-{number}"
        shapes, sums = saved_state.shapes_of(tree), saved_state.checksums(tree) if last else {}
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
    return figures, saved_state.SavedState(path, shapes, sums)


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
    orbax: Any, saved: saved_state.SavedState, name: str, shapes: saved_state.Shapes
) -> RestoredCheckpoint:
    """Restore a state repeatedly, and compare the last one with what was saved."""
    seconds: list[float] = []
    for last in repetitions():
        drop_from_cache(saved.path)
        began = time.monotonic()
        restored = jax.block_until_ready(orbax.restore(saved.path, shapes))
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
