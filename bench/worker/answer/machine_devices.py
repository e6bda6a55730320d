"""Prints a description of jax's devices as JSON, for `doctor`."""

import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from bench.contract import divided_sequences
from bench.records.machine_rows import JaxDevices
from bench.records.nvml import UnknownError
from bench.records.printable import shortened
from bench.worker.event_stream import answer_requests
from bench.worker.prove.failures import name_and_text
from bench.worker.time import energy_counters

SIZE = 512
"""Rows of the matrices that are multiplied under the profiler."""

KERNELS = {"gpu": ("cuda", "cuDNN"), "tpu": ("tpu", "splash attention")}
"""JAX's name of the platform that has a kernel of attention, and the kernel's, by platform."""


def describe_devices() -> JaxDevices:
    """Describe the devices, and try operations that may not be permitted."""
    device = jax.devices()[0]
    planes, no_trace = traced_planes(device.platform)
    counted, no_energy = counted_kinds()
    attention, no_attention = attention_kernel(device.platform)
    return JaxDevices(
        platform=device.platform,
        kinds=[one.device_kind for one in jax.devices()],
        memory_bytes=(device.memory_stats() or {}).get("bytes_limit"),
        backend=" ".join(str(device.client.platform_version).split()),
        counted=counted,
        no_energy=no_energy,
        planes=planes,
        no_trace=no_trace,
        attention=attention,
        no_attention=no_attention,
    )


def attention_kernel(platform: str) -> tuple[str, str]:
    """Run fused attention and its gradient; return the kernel's name, or why there is none."""
    name, kernel = KERNELS.get(platform, (platform, ""))
    query = jnp.ones((1, 1024, 1, 64), jnp.bfloat16)
    attend = divided_sequences.kernels(query).get(name)
    if attend is None:
        return (
            "",
            f"jax finds no {kernel} for this device" if kernel else "it has no kernel on CPUs",
        )
    try:
        jax.block_until_ready(jax.jit(jax.grad(lambda x: attend(x, x, x).sum()))(query))
    except Exception as error:  # noqa: BLE001 - a library may raise anything
        return "", shortened(name_and_text(error))
    return kernel, ""


def counted_kinds() -> tuple[list[str], str]:
    """Return the kinds of boards or packages with readable energy, or why there are none."""
    try:
        return [one.kind for one in energy_counters.counters(jax.local_devices())], ""
    except UnknownError as error:
        return [], str(error)
    except Exception as error:  # noqa: BLE001 - a driver may raise anything
        return [], name_and_text(error)


def traced_planes(platform: str) -> tuple[list[str], str]:
    """Trace a matrix product; return the planes that show it, or why there are none."""
    product = jax.jit(jnp.dot)
    x = jnp.ones((SIZE, SIZE))
    product(x, x).block_until_ready()
    try:
        with tempfile.TemporaryDirectory() as folder:
            with jax.profiler.trace(folder):
                product(x, x).block_until_ready()
            (path,) = Path(folder).rglob("*.xplane.pb")
            data: Any = jax.profiler.ProfileData.from_file(str(path))
            wanted = "/host:CPU" if platform == "cpu" else "/device:"
            planes = [
                plane.name
                for plane in data.planes
                if plane.name.startswith(wanted)
                and any(True for line in plane.lines for _ in line.events)
            ]
    except Exception as error:  # noqa: BLE001 - a driver may raise anything
        return [], name_and_text(error)
    return planes, "" if planes else "the profiler showed no operation of a device"


if __name__ == "__main__":
    answer_requests(lambda _: describe_devices())
