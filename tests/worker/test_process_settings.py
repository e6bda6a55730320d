"""What a file sets for the whole process does not outlast the file."""

from __future__ import annotations

import gc
import os
import signal
import sys

import jax

from bench.worker.process_guard import ProcessSettings


def test_jaxs_settings_and_the_environment_are_put_back(monkeypatch):
    monkeypatch.setenv("LOCKSTEP_KEPT", "1")
    before = jax.config.values["jax_debug_nans"]
    settings = ProcessSettings()
    assert settings.put_back() == set()
    jax.config.update("jax_debug_nans", not before)
    os.environ["LOCKSTEP_KEPT"] = "2"
    os.environ["LOCKSTEP_ADDED"] = "3"
    changed = settings.put_back()
    assert changed == {"jax_debug_nans", "LOCKSTEP_KEPT", "LOCKSTEP_ADDED"}
    assert jax.config.values["jax_debug_nans"] == before
    assert os.environ["LOCKSTEP_KEPT"] == "1"
    assert "LOCKSTEP_ADDED" not in os.environ
    assert settings.put_back() == set()


def replacement(*_):
    """A callback that does nothing."""


PYTHONS = {
    "gc.callbacks": lambda: gc.callbacks.append(replacement),
    "gc.set_threshold": lambda: gc.set_threshold(1),
    "signal.setitimer": lambda: signal.setitimer(signal.ITIMER_REAL, 1000.0),
    "sys.setprofile": lambda: sys.setprofile(replacement),
    "sys.setswitchinterval": lambda: sys.setswitchinterval(1.0),
}


def test_pythons_own_settings_are_put_back():
    settings = ProcessSettings()
    for change in PYTHONS.values():
        change()
    assert settings.put_back(whole=False) == set(PYTHONS)
    assert replacement not in gc.callbacks
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert settings.put_back() == set()
