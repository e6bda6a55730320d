"""Who may import whom, as ARCHITECTURE.md says."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.records.paths import ROOT

JAX = {"jax", "jaxlib", "flax", "optax"}
BENCH = sorted((ROOT / "bench").rglob("*.py"))
IMPLEMENTATIONS = sorted(
    path for path in (ROOT / "implementations").glob("*.py") if path.stem != "__init__"
)
SHARED = {"contract", "placement", "clipping", "layers", "logical_axes", "pipelines"}
"""What implementations and workloads may use."""
JAX_SIDE = {*SHARED, "worker", "workloads"}
"""The parts of bench that run in a worker process, where jax is."""
JAX_SIDE_FILES = {
    "bench/trials/selftest/jax_step.py",
    "bench/trials/selftest/trials.py",
    *(str(path.relative_to(ROOT)) for path in (ROOT / "bench/trials/faults/planted").glob("*.py")),
}
"""As above, in parts that also have another side."""


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imported(path: Path) -> Iterator[str]:
    """Full names of the modules that a file imports, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)}: relative import"
            yield node.module or ""
            # `from bench import store` imports bench.records.store.
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def part(path: Path) -> str:
    """The first name under bench: `store`, `report`, `worker` ..."""
    return path.relative_to(ROOT / "bench").with_suffix("").parts[0]


def test_there_is_something_to_check() -> None:
    assert len(IMPLEMENTATIONS) > 3
    assert {"store", "report", "worker", "plugin"} <= {part(path) for path in BENCH}


@pytest.mark.parametrize("path", IMPLEMENTATIONS, ids=name_of)
def test_implementations_import_the_contract_and_jax_only(path: Path) -> None:
    allowed = {*JAX, *sys.stdlib_module_names} - {"jaxlib"}
    for module in imported(path):
        inside = module.split(".")
        if inside[0] == "bench":
            assert not inside[1:] or inside[1] in SHARED, module
        else:
            assert inside[0] in allowed, module


@pytest.mark.parametrize("path", IMPLEMENTATIONS, ids=name_of)
def test_implementations_have_no_clock_and_no_chance(path: Path) -> None:
    assert not {"time", "timeit", "random", "secrets"} & set(imported(path))


@pytest.mark.parametrize("path", IMPLEMENTATIONS, ids=name_of)
def test_implementations_are_short_and_described(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    assert ast.get_docstring(ast.parse(text))


@pytest.mark.parametrize(
    "path",
    [p for p in BENCH if part(p) not in JAX_SIDE and name_of(p) not in JAX_SIDE_FILES],
    ids=name_of,
)
def test_the_parent_side_imports_no_jax(path: Path) -> None:
    for module in imported(path):
        inside = module.split(".")
        assert inside[0] not in {*JAX, "implementations"}, module
        assert inside[0] != "bench" or inside[1:2] not in [[name] for name in JAX_SIDE], module


@pytest.mark.parametrize("path", BENCH, ids=name_of)
def test_bench_names_no_implementation_but_the_reference(path: Path) -> None:
    words = {
        word
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for word in [node.value]
    }
    others = {other.stem for other in IMPLEMENTATIONS} - {"python_loop"}
    assert not words & others
    assert not any(module.startswith("implementations.") for module in imported(path))


@pytest.mark.parametrize(
    "path", [path for path in BENCH if part(path) in {"report", "explain"}], ids=name_of
)
def test_reports_and_explanations_read_stored_rows_only(path: Path) -> None:
    measuring = {"engine", "supervisor", "catalogue", "plugin", "matrix", "protocol"}
    for module in imported(path):
        inside = module.split(".")
        assert inside[0] != "bench" or not measuring & set(inside[1:2]), module
