"""Eight virtual CPU devices for every test, made before anything starts jax."""

from __future__ import annotations

import gc
import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from bench.trials.selftest.first_paint import chromium

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_NUM_CPU_DEVICES"] = "8"
# Collectives need spare threads: see bench/measure/environment.py.
os.environ["NPROC"] = "16"
# Tests compile many programs and run each a few times. This replaces what was set, also because
# jax refuses the older way to make devices beside the above.
FAST_TO_COMPILE = ["--xla_backend_optimization_level=0", "--xla_llvm_disable_expensive_passes=true"]
# Only jaxlib 0.10 has this switch, with which it compiles three times faster, and faster still if
# it does not divide each program into modules that it compiles in parallel. Without fusion emitters
# its log1p has 8 digits in float64. The gate refuses that, so tests of `vae` need them.
WITHOUT_EMITTERS = version("jaxlib").startswith("0.10.") and "LOCKSTEP_EMITTERS" not in os.environ
if WITHOUT_EMITTERS:
    FAST_TO_COMPILE.append("--xla_cpu_use_fusion_emitters=false")
    FAST_TO_COMPILE.append("--xla_cpu_parallel_codegen_split_count=1")
os.environ["XLA_FLAGS"] = " ".join(FAST_TO_COMPILE)
# What runs leave for later runs, they leave for other tests at most; workers of xdist inherit this.
OWN_CACHE = None
if "PYTEST_XDIST_WORKER" not in os.environ:
    OWN_CACHE = tempfile.mkdtemp(prefix="lockstep-tests-")
    home = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
    os.environ.setdefault("PLAYWRIGHT_BROWSERS_PATH", f"{home}/ms-playwright")
    os.environ["XDG_CACHE_HOME"] = OWN_CACHE
# Runs that tests start are not themselves part of a distributed session of pytest, or of nox.
for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "NOX_CURRENT_SESSION"):
    os.environ.pop(name, None)


# jax's caches are millions of objects, which Python would search for cycles again and again.
gc.set_threshold(100_000, 20, 20)

LONG_FILES = (
    *("test_browser.py", "test_implementations.py", "test_gate.py", "test_subtle_mistakes.py"),
    *("test_collectives.py", "test_spot_checks.py", "test_run.py", "test_supervisor.py"),
    *("test_model_state.py", "test_worker.py", "test_due_updates.py", "test_later_mistakes.py"),
    *("test_statistical_proof.py", "test_workloads.py", "test_foreign.py", "test_layer_stacks.py"),
    *("test_ablated_arms.py", "test_divided_gradients.py", "test_compile_only.py"),
    *("test_regress.py", "test_projection.py", "test_layers.py", "test_function_race.py"),
    *("test_change_points.py",),
)
"""Files that take longest. They run first: a process of pytest-xdist that began one of them last
would work on while the others have nothing left to do."""

SESSIONS = {"slow": "conformance", "cluster": "cluster", "browser": "browser"}
"""Marks of tests that are skipped by default, and the nox sessions that run them."""


def pytest_addoption(parser: pytest.Parser) -> None:
    for mark in SESSIONS:
        parser.addoption(f"--{mark}", action="store_true", help=f"also run what is marked {mark}")


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where this process finds compiled programs again.

    Processes of pytest-xdist have one each, because jax writes to it without a lock.
    """
    return tmp_path_factory.getbasetemp() / "programs"


@pytest.fixture(scope="session", autouse=True)
def _remember_programs(programs: Path) -> Iterator[None]:
    """Compile a program that several tests use only once."""
    if "jax" not in sys.modules:
        yield
        return
    from bench.worker.read.compilation import remembered_programs  # noqa: PLC0415 (starts jax)

    with remembered_programs(programs):
        yield


@pytest.fixture(autouse=True)
def _little_to_search() -> None:
    """Keep what was there before a test from Python's collector.

    `measure` has it search everything before the rounds, which takes a third of a second each time.
    """
    gc.freeze()


def pytest_configure(config: pytest.Config) -> None:
    # Processes begin files in the order of the tests below, not by how many tests a file has.
    config.option.loadscopereorder = False


def pytest_unconfigure() -> None:
    if OWN_CACHE is not None:
        shutil.rmtree(OWN_CACHE, ignore_errors=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    ranks = {name: rank for rank, name in enumerate(LONG_FILES)}
    items.sort(key=lambda item: ranks.get(item.path.name, len(ranks)))
    reasons = {mark: f"{mark}: nox -s {session} runs it" for mark, session in SESSIONS.items()}
    reasons["browser"] = why_no_browser()  # these tests run wherever there is one
    for item in items:
        if WITHOUT_EMITTERS and "[vae" in item.name:
            item.add_marker(pytest.mark.skip(reason="needs emitters: nox -s conformance runs it"))
    for mark, reason in reasons.items():
        if reason and not config.getoption(f"--{mark}"):
            skip = pytest.mark.skip(reason=reason)
            for item in items:
                if item.get_closest_marker(mark):
                    item.add_marker(skip)


def why_no_browser() -> str:
    """Why tests of pages cannot run here; empty if they can."""
    for package in ("playwright", "axe_playwright_python"):
        if importlib.util.find_spec(package) is None:
            return f"browser: {package} is not installed"
    browsers = Path(os.environ["PLAYWRIGHT_BROWSERS_PATH"])
    if chromium() is None and not list(browsers.glob("chromium*")):
        return "browser: there is no Chromium; install it, or run `playwright install chromium`"
    return ""
