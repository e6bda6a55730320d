"""What a file replaces for the whole process is found, whoever calls it, and put back."""

from __future__ import annotations

import builtins
import json
import os
import random
import statistics
import sys
import threading
import time
import types
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import implementations
from bench.worker import file_loader
from bench.worker.process_guard import HeldFunctions
from bench.worker.prove import gate, spot_checks
from bench.worker.prove.gate import Gate
from bench.worker.time import clock


def replacement(*_, **__):
    return None


ARRAY = type(jnp.zeros(()))

CASES = {
    "time.perf_counter": (time, "perf_counter", replacement),
    "time.sleep": (time, "sleep", time.monotonic),
    "builtins.max": (builtins, "max", replacement),
    "json.dumps": (json, "dumps", replacement),
    "json.encoder.JSONEncoder.iterencode": (json.JSONEncoder, "iterencode", replacement),
    "os.pread": (os, "pread", replacement),
    "threading.enumerate": (threading, "enumerate", replacement),
    f"{Path.__module__}.Path.read_text": (Path, "read_text", replacement),
    "random.Random.sample": (random.Random, "sample", replacement),
    "statistics.median": (statistics, "median", replacement),
    "numpy.linalg.norm": (np.linalg, "norm", replacement),
    "jax.device_put": (jax, "device_put", replacement),
    "jax.block_until_ready": (jax, "block_until_ready", replacement),
    f"{ARRAY.__module__}.{ARRAY.__qualname__}.is_ready": (ARRAY, "is_ready", replacement),
    "jax.numpy.mean": (jnp, "mean", replacement),
    "jax.lax.psum": (jax.lax, "psum", replacement),
    "flax.nnx.jit": (nnx, "jit", replacement),
    "optax.apply_updates": (optax, "apply_updates", np.array([1.0, 2.0])),
    "numpy.max": (np, "max", replacement),
    "bench.worker.time.clock.measure": (clock, "measure", replacement),
    "bench.worker.time.clock.Arm.run": (clock.Arm, "run", replacement),
    "bench.worker.prove.spot_checks.MOST": (spot_checks, "MOST", 0),
}


@pytest.fixture(scope="module")
def functions():
    return HeldFunctions()


@pytest.mark.parametrize("name", CASES)
def test_a_replaced_function_is_named_and_put_back(functions, name, monkeypatch):
    owner, attribute, other = CASES[name]
    right = vars(owner)[attribute]
    monkeypatch.setattr(owner, attribute, other)
    found = functions.put_back(codes=False)
    assert list(found) == [name]
    assert found[name] == (__file__ if other is replacement else "")
    assert vars(owner)[attribute] is right
    assert functions.put_back() == {}


def test_code_that_is_replaced_in_place_is_put_back(functions, monkeypatch):
    monkeypatch.setattr(clock.latency_steps, "__code__", replacement.__code__)
    assert functions.put_back() == {"bench.worker.time.clock.latency_steps": __file__}
    assert clock.latency_steps(8) == 2


def test_the_defaults_of_keywords_are_put_back(functions, monkeypatch):
    defaults = Gate.check.__kwdefaults__
    right = dict(defaults)
    monkeypatch.setitem(defaults, "wide", True)
    assert functions.put_back() == {"bench.worker.prove.gate.Gate.check": gate.__file__}
    assert Gate.check.__kwdefaults__ == right
    assert functions.put_back() == {}


def test_what_a_problem_holds_is_put_back(problem):
    def scaled(grads):
        return grads

    optimizer = optax.GradientTransformation(tuple, lambda grads, state, _: (scaled(grads), state))
    functions = HeldFunctions(replace(problem, optimizer=optax.chain(optimizer)))
    right = scaled.__code__
    scaled.__code__ = replacement.__code__
    (place,) = functions.put_back().values()
    assert (place, scaled.__code__) == (__file__, right)


def test_what_a_file_has_loaded_for_the_contract_is_held(monkeypatch):
    module = types.ModuleType("rival")
    module.build = right = lambda *_: None
    functions = HeldFunctions()
    for _ in range(2):
        functions.hold_contract(module)
        module.build = replacement
    assert functions.put_back() == {"rival.build": __file__}
    assert module.build is right


def test_an_implementation_that_a_file_has_changed_is_imported_anew(monkeypatch):
    path = Path(implementations.__path__[0], "jit_spmd.py")
    monkeypatch.setattr(file_loader, "_loaded", {})
    changed = types.ModuleType("changed")
    monkeypatch.setitem(sys.modules, "implementations.jit_spmd", changed)
    assert file_loader.load(path).__file__ == str(path)
    assert file_loader.load(path) is file_loader.load(path)


def test_deleted_functions_are_put_back(functions, monkeypatch):
    monkeypatch.delattr(time, "monotonic")
    assert functions.put_back() == {"time.monotonic": ""}
    assert time.monotonic() > 0


def test_what_right_programs_replace_is_no_fault(functions, monkeypatch):
    monkeypatch.setattr("builtins.print", replacement)
    monkeypatch.setattr("sys.excepthook", replacement)
    assert functions.put_back() == {}
