"""Memory of one device: as the compiler plans it for a step's programs, and as measured."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import jax

from bench.records.rows import MemoryBytes
from bench.worker.time.clock import Arm

LOOK_EVERY_S = 1e-4
LOOKED_AT_STEPS = 3
"""Of an arm, while its memory is looked at."""


def largest_program(programs: Sequence[Any]) -> MemoryBytes | None:
    """Planned memory of the largest of the programs.

    A step of several programs runs them one after the other on a device, so the largest is what
    the device must hold; state that another program keeps meanwhile is not in it.

    Returns:
      None if there are no programs or the backend gives no figures.
    """
    plans = map(memory_bytes, programs)
    return max((plan for plan in plans if plan), key=lambda plan: plan["total_bytes"], default=None)


def high_water(arm: Arm, devices: Sequence[Any]) -> int | None:
    """The most that a device is seen to hold for an arm while it runs some steps.

    Backends count what is in use at the moment, and the most since the process began, which cannot
    be reset and which the proof in float64 has set. So a thread looks at the moment, over and over:
    what is held for a shorter time than between two looks may be missed.

    Args:
      arm: at rest.
      devices: that it runs on.

    Returns:
      Bytes on the device that holds most of them: what was seen above the state of rest, and the
      arm's own state and batch; None where the backend does not count.
    """
    before = [_in_use(device) for device in devices]
    at_rest = [size for size in before if size is not None]
    if len(at_rest) < len(before):
        return None
    most = list(at_rest)
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            for number, device in enumerate(devices):
                most[number] = max(most[number], _in_use(device) or 0)
            time.sleep(LOOK_EVERY_S)

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        arm.run(LOOKED_AT_STEPS)
    finally:
        done.set()
        watcher.join()
    own = device_bytes((arm.state, arm.batch))
    return max(
        top - rest + own.get(str(device.id), 0)
        for top, rest, device in zip(most, at_rest, devices, strict=True)
    )


def device_bytes(tree: Any) -> dict[str, int]:
    """Bytes of a tree's arrays on each device, by its id."""
    total: Counter[str] = Counter()
    for leaf in jax.tree.leaves(tree):
        if isinstance(leaf, jax.Array):
            for shard in leaf.addressable_shards:
                total[str(shard.device.id)] += int(shard.data.nbytes)
    return dict(total)


def _in_use(device: Any) -> int | None:
    try:
        value = (device.memory_stats() or {}).get("bytes_in_use")
    except jax.errors.JaxRuntimeError:  # unimplemented by this backend
        return None
    return None if value is None else int(value)


def memory_bytes(program: Any) -> MemoryBytes | None:
    """One program's plan, per device; None if the backend has no figures."""
    try:
        stats = program.get_compiled_memory_stats()
    except jax.errors.JaxRuntimeError:  # unimplemented by this backend
        return None
    return MemoryBytes(
        total_bytes=stats.argument_size_in_bytes
        + stats.output_size_in_bytes
        + stats.temp_size_in_bytes
        - stats.alias_size_in_bytes,
        argument_bytes=stats.argument_size_in_bytes,
        output_bytes=stats.output_size_in_bytes,
        temporary_bytes=stats.temp_size_in_bytes,
        alias_bytes=stats.alias_size_in_bytes,
    )
