"""Measured memory is said only where it is known."""

from __future__ import annotations

from types import SimpleNamespace

import jax
import pytest

from bench.worker.memory import HighWater


class Device:
    """Counts like a backend's allocator."""

    def __init__(self, in_use=0):
        self.in_use = self.peak = in_use

    def use(self, size):
        self.in_use += size
        self.peak = max(self.peak, self.in_use)

    def memory_stats(self):
        return {"bytes_in_use": self.in_use, "peak_bytes_in_use": self.peak}


def test_the_most_of_the_largest_device_beside_what_was_there():
    devices = [Device(100), Device(200)]
    measured = HighWater(devices)
    for device, state in zip(devices, (10, 20), strict=True):
        device.use(state)
    measured.built()
    for device, temporary in zip(devices, (5, 3), strict=True):
        device.use(temporary)
        device.use(-temporary)
    assert measured.bytes() == 23


@pytest.mark.parametrize("before", [0, 40])
def test_what_an_earlier_maximum_hides_is_unknown(before):
    device = Device()
    device.use(before)
    device.use(-before)
    measured = HighWater([device])
    device.use(10)
    measured.built()
    device.use(5)
    assert measured.bytes() == (None if before else 15)


def test_what_building_needed_is_not_the_steps():
    device = Device()
    measured = HighWater([device])
    device.use(50)
    device.use(-40)
    measured.built()
    device.use(20)
    assert measured.bytes() is None


def test_backends_that_do_not_count():
    measured = HighWater(jax.devices("cpu"))
    measured.built()
    assert measured.bytes() is None

    def refuse():
        raise jax.errors.JaxRuntimeError("UNIMPLEMENTED")

    assert HighWater([SimpleNamespace(memory_stats=refuse)]).bytes() is None
