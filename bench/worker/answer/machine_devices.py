"""Prints a description of jax's devices as JSON, for `doctor`."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp

from bench.contract import divided_sequences
from bench.records.machine_rows import JaxDevices
from bench.records.nvml import UnknownError
from bench.records.printable import shortened
from bench.worker.event_stream import answer_requests
from bench.worker.prove.failures import name_and_text
from bench.worker.read.device_memory import memory_count
from bench.worker.time import energy_counters
from bench.worker.trace import xspace

SIZE = 512
"""Rows of the matrices that are multiplied under the profiler."""


def describe_devices() -> JaxDevices:
    """Describe the devices, and try operations that may not be permitted."""
    device = jax.devices()[0]
    trials = {"Traces": trace, "Energy": _count_energy, "Fused attention": fuse_attention}
    return JaxDevices(
        platform=device.platform,
        kinds=[one.device_kind for one in jax.devices()],
        memory_bytes=memory_count(device, "bytes_limit"),
        backend=" ".join(str(device.client.platform_version).split()),
        missing={name: why_missing(trial, device.platform) for name, trial in trials.items()},
    )


def why_missing(trial: Callable[[str], str], platform: str) -> str:
    """Return why an operation is not possible on a platform; empty if it is."""
    try:
        return trial(platform)
    except UnknownError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - a library or a driver may raise anything
        return shortened(name_and_text(error))


def fuse_attention(platform: str) -> str:
    """Run fused attention and its gradient."""
    query = jnp.ones((1, 1024, 1, 64), jnp.bfloat16)
    attend = divided_sequences.cudnn_attention(query)
    if attend is None or platform != "gpu":
        return "jax finds no cuDNN for this device"
    jax.block_until_ready(jax.jit(jax.grad(lambda x: attend(x, x, x).sum()))(query))
    return ""


def _count_energy(_platform: str) -> str:
    energy_counters.counters(jax.local_devices())
    return ""


def trace(_platform: str) -> str:
    """Trace a matrix product."""
    product = jax.jit(jnp.dot)
    x = jnp.ones((SIZE, SIZE))
    product(x, x).block_until_ready()
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            product(x, x).block_until_ready()
        (path,) = Path(folder).rglob("*.xplane.pb")
        recording = xspace.read(path.read_bytes(), "")
    return "" if recording.events else "the profiler showed no operation of a device"


if __name__ == "__main__":
    answer_requests(lambda _: describe_devices())
