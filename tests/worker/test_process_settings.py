"""What a file sets for the whole process does not outlast the file."""

from __future__ import annotations

import os

import jax

from bench.worker.process_settings import ProcessSettings


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
