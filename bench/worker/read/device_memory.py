"""Memory of the devices: where a step's arrays lie, the compiler's plan, and the measured peak."""

import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
import psutil
from jax.sharding import Mesh

from bench.contract import TrainStep
from bench.contract.logical_axes import path_of
from bench.records.host import host_id
from bench.records.messages import ArrayLayout, Inspection
from bench.records.step_programs import MemoryBytes
from bench.worker import process_exchange
from bench.worker.time.clock import Arm


def inspection(mesh: Mesh, step: TrainStep | None, batch: Any = None, why: str = "") -> Inspection:
    """Describe where a step's state and a placed batch lie, or `why` there is no step."""
    rows = mesh.devices.reshape(-1, mesh.devices.shape[-1])  # the last axis runs across
    found = Inspection(
        axes=[[name, size] for name, size in mesh.shape.items()],
        devices=[[int(device.id) for device in row] for row in rows],
        unsupported=why,
        parameters=[],
        device_bytes={},
    )
    if step is not None:
        params = (step.held or step.params)(step.state)
        leaves = jax.tree_util.tree_leaves_with_path(params)
        found["parameters"] = [_layout(*own) for own in leaves if isinstance(own[1], jax.Array)]
        trees = {"parameters": params, "state": step.state, "batch": batch}
        found["device_bytes"] = {name: device_bytes(tree) for name, tree in trees.items()}
    return found


def device_bytes(tree: Any) -> dict[str, int]:
    """Return the bytes of a tree's arrays on each device, by device id."""
    total: Counter[str] = Counter()
    for leaf in jax.tree.leaves(tree):
        if isinstance(leaf, jax.Array):
            devices: set[Any] = leaf.sharding.device_set
            total.update({str(device.id): shard_bytes(leaf) for device in devices})
    return dict(total)


def shard_bytes(array: Any) -> int:
    """Return the bytes of an array, or of its shape with a sharding, on one device."""
    return math.prod(array.sharding.shard_shape(array.shape)) * int(array.dtype.itemsize)


def _layout(path: Any, array: jax.Array) -> ArrayLayout:
    """Describe which device holds which shard of an array."""
    parts: dict[tuple[tuple[int, int], ...], list[int]] = {}
    shards: Mapping[Any, Any] = array.sharding.devices_indices_map(array.shape)
    for device, index in shards.items():
        ranges = zip(index or (), array.shape, strict=True)
        key = tuple((part.start or 0, part.stop or size) for part, size in ranges)
        parts.setdefault(key, []).append(int(device.id))
    return ArrayLayout(
        path=path_of(path),
        shape=list(array.shape),
        dtype=str(array.dtype),
        bytes=int(array.nbytes),
        device_bytes=shard_bytes(array),
        parts=[{"index": [*map(list, key)], "devices": sorted(ids)} for key, ids in parts.items()],
    )


LOOK_EVERY_S = 1e-4
LOOKED_AT_STEPS = 3
"""Steps of an arm that run while its memory is polled."""


def device_memory(devices: Sequence[Any]) -> int:
    """Return the bytes that each device may use: the least of all processes of the launch.

    CPU devices share what their host has available. Every process calls this at the same point,
    with its own devices.
    """
    neighbours = process_exchange.gather(host_id()).count(host_id())
    limit = memory_count(devices[0], "bytes_limit")
    shared = psutil.virtual_memory().available // (neighbours * len(devices))
    return min(process_exchange.gather(shared if limit is None else limit))


def largest_program(programs: Sequence[Any]) -> MemoryBytes | None:
    """Return the planned memory of the largest program; None without programs or figures.

    A device runs a step's programs one after another, so it must hold the largest; state that
    another program keeps meanwhile is not included.
    """
    plans = map(memory_bytes, programs)
    return max((plan for plan in plans if plan), key=lambda plan: plan["total_bytes"], default=None)


def high_water(arm: Arm, devices: Sequence[Any]) -> int | None:
    """Measure the peak memory of an arm, on the device with the most, while it runs some steps.

    It is the rise above the level at rest plus the arm's own state and batch, in bytes; None if the
    backend does not count. A thread polls the bytes in use, because the backends' own peak cannot
    be reset after the proof in float64; what is held for less than LOOK_EVERY_S may be missed.
    """
    at_rest = [memory_count(device, "bytes_in_use") for device in devices]
    if any(size is None for size in at_rest):
        return None
    most = np.array(at_rest)

    def look() -> None:
        now = [memory_count(device, "bytes_in_use") or 0 for device in devices]
        np.maximum(most, now, out=most)

    with polling(look, LOOK_EVERY_S):
        arm.run(LOOKED_AT_STEPS)
    own = device_bytes((arm.state, arm.batch))
    held = [own.get(str(device.id), 0) for device in devices]
    return int((most - at_rest + held).max())


def memory_count(device: Any, name: str) -> int | None:
    """Return a count of bytes on a device; None if its backend has none of this name."""
    try:
        value = (device.memory_stats() or {}).get(name)
    except jax.errors.JaxRuntimeError:  # unimplemented by this backend
        return None
    return None if value is None else int(value)


def memory_bytes(program: Any) -> MemoryBytes | None:
    """Return one program's memory plan, per device; None if the backend has no figures."""
    try:
        stats = program.get_compiled_memory_stats()
    except jax.errors.JaxRuntimeError:  # unimplemented by this backend
        return None
    arguments, outputs = stats.argument_size_in_bytes, stats.output_size_in_bytes
    temporary, alias = stats.temp_size_in_bytes, stats.alias_size_in_bytes
    return MemoryBytes(
        total_bytes=arguments + outputs + temporary - alias,
        argument_bytes=arguments,
        output_bytes=outputs,
        temporary_bytes=temporary,
        alias_bytes=alias,
    )


@contextmanager
def polling(look: Callable[[], None], every_s: float) -> Iterator[None]:
    """Call `look` on a thread repeatedly within the context, and once more at its end."""
    done = threading.Event()

    def poll() -> None:
        look()
        while not done.wait(every_s):
            look()
        look()

    poller = threading.Thread(target=poll, daemon=True)
    poller.start()
    try:
        yield
    finally:
        done.set()
        poller.join()
