"""What a file sets for the whole process does not outlast the file."""

from __future__ import annotations

import gc
import io
import os
import resource
import signal
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import numpy as np
import pytest

from bench.records.host import cores
from bench.worker import process_guard
from bench.worker.process_guard import ProcessSettings


def test_jaxs_settings_and_the_environment_are_put_back(monkeypatch):
    monkeypatch.setenv("LOCKSTEP_KEPT", "1")
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=false")
    before = jax.config.values["jax_debug_nans"]
    settings = ProcessSettings()
    assert settings.put_back() == set()
    jax.config.update("jax_debug_nans", not before)
    os.environ["LOCKSTEP_KEPT"] = "2"
    os.environ["LOCKSTEP_ADDED"] = "3"
    os.environ["XLA_FLAGS"] += " --xla_cpu_enable_fast_math=true"
    changed = settings.put_back()
    assert changed == {"jax_debug_nans", "LOCKSTEP_KEPT", "LOCKSTEP_ADDED", "XLA_FLAGS"}
    assert jax.config.values["jax_debug_nans"] == before
    assert os.environ["LOCKSTEP_KEPT"] == "1"
    assert os.environ["XLA_FLAGS"] == "--xla_cpu_enable_fast_math=false"
    assert "LOCKSTEP_ADDED" not in os.environ
    assert settings.put_back() == set()


FLAGS = {
    "jax_debug_nans": True,
    "jax_default_matmul_precision": "bfloat16",
    "jax_disable_jit": True,
    "jax_enable_x64": True,
}
CONTEXTS = {
    "jax_debug_nans": jax.debug_nans,
    "jax_default_matmul_precision": jax.default_matmul_precision,
    "jax_disable_jit": jax.disable_jit,
    "jax_enable_x64": jax.enable_x64,
}

LEFT_OPEN = []
"""Contexts, of which some would end in another thread if they were collected."""


@pytest.mark.parametrize("name", FLAGS)
def test_a_flag_for_all_arms_is_put_back(name):
    settings, before = ProcessSettings(), jax.config.values[name]
    jax.config.update(name, FLAGS[name])
    assert settings.put_back() == {name}
    assert jax.config.values[name] == before


@pytest.mark.parametrize("name", FLAGS)
def test_a_context_that_is_left_open_is_put_back(name):
    """In a thread, since nothing closes such a context any more."""
    settings, before = ProcessSettings(), jax.config.values[name]
    context = CONTEXTS[name](FLAGS[name])
    LEFT_OPEN.append((settings, context))

    def leave_open():
        context.__enter__()
        inside = jax.config.values[name]
        changed = settings.put_back()
        return inside, changed, jax.config.values[name], settings.put_back()

    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(leave_open).result()
    assert found == (FLAGS[name], {name}, before, set())


def test_a_mesh_for_all_arms_is_put_back():
    settings = ProcessSettings()
    jax.set_mesh(jax.make_mesh((2,), ("data",), devices=jax.devices()[:2]))
    assert settings.put_back() == {"jax.set_mesh"}
    assert jax.sharding.get_mesh().empty
    assert jax.sharding.get_abstract_mesh().empty
    assert settings.put_back() == set()


def replacement(*_):
    """A callback that does nothing."""


def listen() -> None:
    """Let a tool hear of every line of Python that any arm runs."""
    sys.monitoring.use_tool_id(3, "listener")
    sys.monitoring.set_events(3, sys.monitoring.events.LINE)


def limit_files() -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, most))


PYTHONS = {
    "gc.callbacks": lambda: gc.callbacks.append(replacement),
    "gc.set_threshold": lambda: gc.set_threshold(1),
    "np.seterr": lambda: np.seterr(all="raise"),
    "os.chdir": lambda: os.chdir("/"),
    "resource.setrlimit": limit_files,
    "signal.setitimer": lambda: signal.setitimer(signal.ITIMER_REAL, 1000.0),
    "sys.setprofile": lambda: sys.setprofile(replacement),
    "sys.setrecursionlimit": lambda: sys.setrecursionlimit(500),
    "sys.setswitchinterval": lambda: sys.setswitchinterval(1.0),
}
if sys.version_info >= (3, 12):
    PYTHONS["sys.monitoring"] = listen


def test_pythons_own_settings_are_put_back():
    settings, folder = ProcessSettings(), Path.cwd()
    for change in PYTHONS.values():
        change()
    assert settings.put_back() == set(PYTHONS)
    assert replacement not in gc.callbacks
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert Path.cwd() == folder
    assert settings.put_back() == set()


def test_filters_of_warnings_are_put_back_without_a_word():
    settings, before = ProcessSettings(), list(warnings.filters)
    warnings.simplefilter("error")
    assert settings.put_back() == set()
    assert warnings.filters == before


def test_a_folder_that_is_gone_ends_no_worker(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = ProcessSettings()
    tmp_path.rmdir()
    assert settings.put_back() == {"os.chdir"}
    assert settings.put_back() == set()


@pytest.mark.skipif(len(cores()) < 2, reason="there is one core")
def test_the_cores_of_all_threads_are_put_back():
    settings, own, end = ProcessSettings(), cores(), threading.Event()
    other = threading.Thread(target=end.wait)
    other.start()
    for task in (0, other.native_id):
        os.sched_setaffinity(task, {min(own)})
    assert settings.put_back() == {"os.sched_setaffinity"}
    assert cores() == os.sched_getaffinity(other.native_id) == own
    end.set()
    other.join()


@pytest.mark.parametrize("error", [PermissionError, ValueError])
def test_a_lower_priority_is_blamed_once_where_it_cannot_be_put_back(monkeypatch, error):
    """Only root may raise a priority, and no limit exceeds its hard limit (a ValueError)."""
    now = [0]

    def raising(*_):
        raise error

    monkeypatch.setitem(process_guard._SETTINGS, "os.setpriority", (lambda: now[0], raising))
    settings = ProcessSettings()
    now[0] = 15
    assert settings.put_back() == {"os.setpriority"}
    assert settings.put_back() == set()


def test_closed_streams_are_opened_again(monkeypatch):
    settings, stream = ProcessSettings(), io.StringIO()
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, stream)  # the same, as in a worker
    stream.close()
    assert settings.put_back() == set()
    assert sys.stdout.write("") == sys.stderr.write("") == 0
    sys.stderr = None
    del sys.stdout
    kept = [os.dup(number) for number in (1, 2)]
    try:
        os.closerange(1, 3)
        assert settings.put_back() == set()
        assert os.fstat(1).st_ino == os.fstat(2).st_ino == os.fstat(kept[1]).st_ino
    finally:
        for number, copy in enumerate(kept, 1):
            os.dup2(copy, number)
            os.close(copy)
    assert sys.stdout.write("") == sys.stderr.write("") == 0
