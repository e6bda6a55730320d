"""Ceilings of this machine, measured: matrix products, memory and all-reduces.

They are measured on all devices of the mesh at once, because virtual devices share caches and
memory. A ceiling is the best of several repetitions and sizes.

- Products multiply square matrices in the workload's compute dtype, at jax's default matmul
  precision, as the steps do: 2 n^3 FLOPs each.
- Memory runs the Scale kernel of STREAM (McCalpin, "Memory Bandwidth and Machine Balance in Current
  High Performance Computers", 1995, https://www.cs.virginia.edu/stream/) in place, a[i] = s a[i]:
  every element is read once and written once, and nothing else is moved, whereas a separate target
  would first be read into the cache. As STREAM requires, the array has four times the bytes of the
  last-level caches that the devices reach.
- All-reduces sum float32 over the whole mesh. Their rate counts the bytes that a device sends on a
  ring (bench.records.collective_kinds.bus_factor), as nccl-tests' bus bandwidth does.
"""

import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bench.contract import PRECISIONS
from bench.records.collective_kinds import bus_factor
from bench.records.host import cache_bytes
from bench.records.rows import Ceilings
from bench.worker import process_exchange
from bench.worker.process_exchange import EndedError
from bench.worker.prove.failures import in_all_processes
from bench.worker.read.device_memory import device_memory

REPETITION_S = 0.02
"""Duration of a repetition, which calls a program repeatedly."""
PATIENCE = 4
"""Consecutive repetitions without improvement after which the best one counts."""
GAIN = 0.01
"""A repetition is better if it is faster by more than this share."""

CALL_S = 0.005
"""Larger sizes are tried only while their calls take at most this long."""

SHARE_OF_MEMORY = 1 / 16
"""Largest share to use of a device's memory, or of a host's available memory."""
CACHE_MULTIPLE = 4
"""Bytes of an array that exceeds the last-level caches, as a multiple of theirs."""
ACCELERATORS_ARRAY = 1 << 30
"""Bytes of the array on a device with unknown caches: many times the cache of any device."""

PRODUCTS = tuple(2**power for power in range(8, 15))
"""Widths of matrices: 256 to 16,384."""
PAYLOADS = tuple(2**power for power in range(20, 29))
"""Bytes of an all-reduce: 1 to 256 MiB."""

FLOAT = 4
"""Bytes of a float32."""

_AXIS = "devices"
_SCALE = 1 - 2.0**-20
"""Factor of the Scale kernel: nearly 1, so that the values stay normal numbers."""

Call = Callable[[], jax.Array]
"""Launches a program, and returns its output."""


def measure_ceilings(mesh: Mesh, precision: str) -> Ceilings | None:
    """Measure the ceilings of the mesh's devices, all of them at once.

    Every process of a launch calls this at the same point; nothing stays on the devices. If it
    fails in any process, all return None, and the reason goes to stderr.
    """
    own = Mesh(np.array(mesh.local_devices), _AXIS)
    whole = Mesh(mesh.devices.reshape(-1), _AXIS)
    try:
        room, array = sizes(own)
        reduced = (None, None) if whole.size == 1 else all_reduce(whole, room)
        return Ceilings(
            matmul_flops=matmul_flops(own, precision, room),
            memory_bytes=memory_bytes(own, array),
            all_reduce_bytes=reduced[0],
            all_reduce_s=reduced[1],
        )
    except EndedError as error:
        print(f"the machine's ceilings are not known: {error}", file=sys.stderr)  # noqa: T201
        return None


def sizes(own: Mesh) -> tuple[int, int]:
    """Return the bytes of memory to use on a device, and of the array for the memory's rate.

    All processes agree on the least memory, and on the array for the largest cache.
    """
    room, array = int(SHARE_OF_MEMORY * device_memory(list(own.devices))), ACCELERATORS_ARRAY
    if own.devices[0].platform == "cpu":
        array = CACHE_MULTIPLE * cache_bytes(own.size) // own.size
    return room, min(room, max(process_exchange.gather(array)))


def matmul_flops(own: Mesh, precision: str, room: int) -> float:
    """Measure a device's FLOP/s in products of square matrices."""
    dtype = np.dtype(PRECISIONS[precision].compute)

    def product(width: int) -> Call:
        # Not zeros: a device's power draw, and so its clock rate, depends on the values.
        numbers = np.random.default_rng(0).standard_normal(1 << 16).astype(dtype)
        matrix = jax.device_put(np.resize(numbers, (width, width)), NamedSharding(own, P()))
        return chained(squared, filled(own, (width, width), 0.0, dtype), own, matrix)

    widths = [width for width in PRODUCTS if 3 * width**2 * dtype.itemsize <= room]
    return best_rate(product, lambda width: 2.0 * width**3, widths)


def squared(last: jax.Array, matrix: jax.Array) -> jax.Array:
    """Multiply a matrix by itself, once the last product is ready."""
    _, matrix = jax.lax.optimization_barrier((last, matrix))
    return matrix @ matrix


def memory_bytes(own: Mesh, array: int) -> float:
    """Measure the bytes per second that a device reads and writes."""

    def scaling(size: int) -> Call:
        return chained(lambda x: _SCALE * x, filled(own, (size // FLOAT,), 1.0), own)

    return best_rate(scaling, lambda size: 2.0 * size, [array])


def all_reduce(whole: Mesh, room: int) -> tuple[float, float]:
    """Measure the bytes per second that a device sends, and the seconds of a minimal all-reduce."""

    def summing(size: int) -> Call:
        # Zeros stay zeros, however often they are summed.
        zeros = filled(whole, (size // FLOAT,), 0.0)
        return chained(partial(jax.lax.psum, axis_name=_AXIS), zeros, whole)

    payloads = [size for size in PAYLOADS if 2 * size <= room]
    factor = bus_factor("all-reduce", whole.size)
    rate = best_rate(summing, lambda size: size * factor, payloads)
    return rate, fastest(partial(summing, FLOAT))


def best_rate(
    make: Callable[[int], Call], work: Callable[[int], float], sizes: Sequence[int]
) -> float:
    """Find the highest rate of work, over ascending sizes whose calls are not too long.

    `make` makes the program of a size, and `work` returns the work of one call of it. EndedError if
    there are no sizes.
    """
    best, fitting = 0.0, sizes[:1]
    if not fitting:
        raise EndedError("unsupported", "there is too little memory")
    while fitting:
        size = fitting[-1]  # only the largest, because every size is compiled
        best = max(best, work(size) / fastest(partial(make, size)))
        fitting = [larger for larger in sizes if larger > size and work(larger) <= best * CALL_S]
    return best


def fastest(make: Callable[[], Call]) -> float:
    """Return the seconds per call of the best repetition, timed by its slowest process."""
    # All processes compile and allocate before any of them waits for others in a collective.
    call = in_all_processes(make)
    in_all_processes(partial(repeat, call, 1))
    best, calls, in_vain = float("inf"), 1, 0
    while in_vain < PATIENCE:  # all processes start together, and the slowest one's time counts
        took_s = max(process_exchange.gather(in_all_processes(partial(repeat, call, calls))))
        in_vain = 0 if took_s / calls < (1 - GAIN) * best else in_vain + 1
        best = min(best, took_s / calls)
        calls = max(calls, round(REPETITION_S / best))
    return best


def repeat(call: Call, times: int) -> float:
    """Call a program several times and wait once, as in a span of steps; return the seconds."""
    start = time.perf_counter()
    for _ in range(times):
        output = call()
    output.block_until_ready()
    return time.perf_counter() - start


def filled(mesh: Mesh, shape: tuple[int, ...], value: float, dtype: Any = jnp.float32) -> jax.Array:
    """Make a constant array of this shape on each device, sharded along its first dimension."""
    whole, sharding = (mesh.size * shape[0], *shape[1:]), NamedSharding(mesh, P(_AXIS))
    make = jax.jit(lambda: jnp.full(whole, value, dtype), out_shardings=sharding)
    return make().block_until_ready()


def chained(kernel: Callable[..., jax.Array], x: jax.Array, mesh: Mesh, *whole: jax.Array) -> Call:
    """Compile a program that maps each device's shard of x; the next call takes its output.

    The donated chain makes each call wait for the last one, as in a step. Independent calls might
    run concurrently, on CPU on more cores than there are devices.

    `kernel` maps a device's shard of x and the replicated arguments `whole` to the next shard of
    x, an array that is sharded over the single axis of the mesh along its first dimension.
    """
    specs = (P(_AXIS), *(P() for _ in whole))
    local = jax.shard_map(kernel, mesh=mesh, in_specs=specs, out_specs=P(_AXIS), check_vma=False)
    program = jax.jit(local, donate_argnums=0).lower(x, *whole).compile()

    def call() -> jax.Array:
        nonlocal x
        x = program(x, *whole)
        return x

    return call
