"""Measured memory is the arm's own, and is said only where it is known."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import jax
import jax.numpy as jnp

from bench.worker.read.device_memory import high_water, largest_program
from bench.worker.time.clock import Arm


class Device:
    """Counts like a backend's allocator."""

    def __init__(self, device, in_use):
        self.id, self.in_use = device.id, in_use
        self.read = threading.Event()

    def memory_stats(self):
        in_use = self.in_use
        self.read.set()
        return {"bytes_in_use": in_use}

    def wait_until_read(self):
        """Wait for a reading that began after this call did."""
        for _ in range(2):  # the first may have begun before
            self.read.clear()
            assert self.read.wait(timeout=60)


def test_the_most_that_was_seen_of_the_arm_on_the_largest_device():
    """Others hold 100 and 900 bytes; the arm's state and batch are 40 on the first device."""
    real = jax.devices()[:2]
    devices = [Device(real[0], 140), Device(real[1], 900)]
    state = jax.device_put(jnp.ones(6), real[0])
    batch = jax.device_put(jnp.ones(4), real[0])

    def step(state, batch):
        devices[0].in_use += 7
        devices[1].in_use += 5
        for device in devices:
            device.wait_until_read()
        devices[0].in_use -= 7
        devices[1].in_use -= 5
        return state, batch[0]

    assert high_water(Arm("arm", step, state, batch), devices) == 7 + 40


def planned(arguments: int, outputs: int, temporary: int, alias: int) -> SimpleNamespace:
    """A program with the compiler's figures."""
    stats = SimpleNamespace(
        argument_size_in_bytes=arguments,
        output_size_in_bytes=outputs,
        temp_size_in_bytes=temporary,
        alias_size_in_bytes=alias,
    )
    return SimpleNamespace(get_compiled_memory_stats=lambda: stats)


def test_the_plan_is_that_of_the_largest_program_where_a_donated_array_counts_once():
    programs = planned(100, 30, 20, 0), planned(100, 80, 50, 70), planned(1, 1, 1, 1)
    found = largest_program(programs)
    assert found == {
        "total_bytes": 160, "argument_bytes": 100, "output_bytes": 80, "temporary_bytes": 50,
        "alias_bytes": 70,
    }  # fmt: skip
    assert largest_program([]) is None


def test_backends_that_do_not_count():
    arm = Arm("arm", lambda state, batch: (state, jnp.sum(batch)), None, jnp.ones(4))
    assert high_water(arm, jax.devices("cpu")) is None

    def refuse():
        raise jax.errors.JaxRuntimeError("UNIMPLEMENTED")

    assert high_water(arm, [SimpleNamespace(memory_stats=refuse)]) is None
