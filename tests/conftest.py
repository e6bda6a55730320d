"""Eight virtual CPU devices for every test, made before anything starts jax."""

from __future__ import annotations

import os

import pytest

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_NUM_CPU_DEVICES"] = "8"
os.environ["NPROC"] = (
    "16"  # spare threads, which collectives need: see bench/measure/environment.py
)
# Tests compile many programs and run each a few times. This replaces what was set, also because
# jax refuses the older way to make devices beside the above.
os.environ["XLA_FLAGS"] = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)
# Runs that tests start are not themselves part of a distributed session of pytest.
for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT"):
    os.environ.pop(name, None)


SESSIONS = {"slow": "conformance", "cluster": "cluster", "browser": "browser"}
"""Marks of tests that are left out unless asked for, and the nox session that asks for them."""


def pytest_addoption(parser: pytest.Parser) -> None:
    for mark in SESSIONS:
        parser.addoption(f"--{mark}", action="store_true", help=f"also run what is marked {mark}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for mark, session in SESSIONS.items():
        if not config.getoption(f"--{mark}"):
            skip = pytest.mark.skip(reason=f"{mark}: nox -s {session} runs it")
            for item in items:
                if item.get_closest_marker(mark):
                    item.add_marker(skip)
