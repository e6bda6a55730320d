"""The shape of the code: the rooms of bench/, who may import whom, and how large it may grow."""

from __future__ import annotations

import ast
import statistics
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from bench.records.paths import ROOT

ROOMS = {
    "records": set(),
    "contract": set(),
    "worker": {"contract", "records"},
    "plan": {"records"},
    "analyse": {"records"},
    "present": {"analyse", "records"},
    "measure": {"plan", "analyse", "records"},
    "project": {"plan", "measure", "analyse", "present", "records"},
    "trials": {"plan", "measure", "analyse", "present", "records", "worker", "contract"},
    "commands": {"plan", "measure", "analyse", "present", "records", "project", "trials"},
}
"""Every room of bench/, and the rooms that it may import; ARCHITECTURE.md explains them."""

JAX = {"jax", "jaxlib", "flax", "optax", "orbax", "grain"}
RUNS_JAX = {"contract", "worker"}
RUNS_JAX_TOO = ("bench/trials/selftest/own_trials.py", "bench/trials/faults/planted")
"""The only parts outside of these rooms that run in a process with jax."""

MOST_LINES = 42_024
"""Lower this with every change that shrinks bench/, and raise it only with a feature; the goal is
35,000."""
MOST_LINES_OF_A_FILE = 400
MEDIAN_LINES_OF_A_FILE = 120
CODE = {".py", ".js", ".css", ".j2", ".cc"}
"""Suffixes of the files that the budget counts."""

PROTOCOL_NAMES = {"__init__.py", "__main__.py"}
"""Names that Python prescribes, which every room may have."""

BENCH = sorted(p for p in (ROOT / "bench").rglob("*.py") if "__pycache__" not in p.parts)
IMPLEMENTATIONS = sorted(
    path for path in (ROOT / "implementations").glob("*.py") if path.stem != "__init__"
)
FOREIGN = sorted((ROOT / "implementations/foreign").glob("[!_]*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def room_of(path: Path) -> str:
    return path.relative_to(ROOT / "bench").parts[0]


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imported(path: Path) -> frozenset[str]:
    """Full names of the modules that a file imports, wherever in the file."""
    found = set[str]()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)}: relative import"
            # `from bench import records` imports bench.records.
            found |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(found)


def rooms_imported(path: Path) -> set[str]:
    parts = (module.split(".") for module in imported(path))
    return {inside[1] for inside in parts if inside[0] == "bench" and len(inside) > 1}


def code_files() -> list[Path]:
    """Files of bench/ that git tracks, or would."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "bench"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    paths = [ROOT / line for line in done.stdout.splitlines()]
    return [path for path in paths if path.suffix in CODE and path.exists()]


def test_the_top_of_bench_is_its_rooms() -> None:
    entries = {p.name for p in (ROOT / "bench").iterdir() if p.name != "__pycache__"}
    assert entries == {*ROOMS, "__init__.py", "__main__.py"}


def test_a_room_imports_only_the_rooms_below_it() -> None:
    wrong = {
        name_of(path): above
        for path in BENCH
        if room_of(path) in ROOMS
        and (above := rooms_imported(path) - {room_of(path), *ROOMS[room_of(path)]})
    }
    assert not wrong


def test_no_rooms_import_one_another() -> None:
    graph = {room: set[str]() for room in ROOMS}
    for path in BENCH:
        if room_of(path) in ROOMS:
            graph[room_of(path)] |= rooms_imported(path) - {room_of(path)}
    while leaves := [room for room, below in graph.items() if not below & graph.keys()]:
        for room in leaves:
            del graph[room]
    assert not graph, f"these import one another in a circle: {sorted(graph)}"


@pytest.mark.parametrize("path", IMPLEMENTATIONS, ids=name_of)
def test_an_implementation_imports_the_contract_and_jax_alone(path: Path) -> None:
    allowed = {*JAX, "equinox", *sys.stdlib_module_names} - {"jaxlib", "orbax", "grain"}
    for module in imported(path):
        inside = module.split(".")
        if inside[0] == "bench":
            assert inside[1:2] in ([], ["contract"]), module
            assert inside[2:3] != ["workloads"], module
        else:
            assert inside[0] in allowed, module


@pytest.mark.parametrize("path", FOREIGN, ids=name_of)
def test_a_foreign_implementation_imports_neither_bench_nor_jax(path: Path) -> None:
    tops = {module.partition(".")[0] for module in imported(path)}
    assert not tops & {"bench", *JAX}


@pytest.mark.parametrize("path", [*IMPLEMENTATIONS, *FOREIGN], ids=name_of)
def test_an_implementation_has_no_clock_and_no_randomness(path: Path) -> None:
    assert not {"time", "timeit", "random", "secrets"} & set(imported(path))


@pytest.mark.parametrize("path", [*IMPLEMENTATIONS, *FOREIGN], ids=name_of)
def test_an_implementation_is_short_and_described(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    assert ast.get_docstring(ast.parse(text))


@pytest.mark.parametrize("path", [p for p in BENCH if room_of(p) == "contract"], ids=name_of)
def test_the_contract_imports_numpy_and_jax_alone(path: Path) -> None:
    allowed = {"bench", "numpy", "jax", "flax", "optax", *sys.stdlib_module_names}
    assert {module.partition(".")[0] for module in imported(path)} <= allowed


def test_only_worker_processes_import_jax() -> None:
    wrong = {}
    for path in BENCH:
        forbidden = set() if room_of(path) == "worker" else {"implementations"}
        if room_of(path) not in RUNS_JAX and not name_of(path).startswith(RUNS_JAX_TOO):
            forbidden |= JAX
        if found := {module.split(".")[0] for module in imported(path)} & forbidden:
            wrong[name_of(path)] = found
    assert not wrong


def test_bench_names_no_implementation_but_the_reference() -> None:
    others = {path.stem for path in [*IMPLEMENTATIONS, *FOREIGN]} - {"python_loop"}
    named = {
        name_of(path): node.value
        for path in BENCH
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in others
    }
    assert not named


def test_the_childs_helper_is_small_and_needs_numpy_alone() -> None:
    helper = ROOT / "bench/contract/foreign.py"
    assert len(helper.read_text(encoding="utf-8").splitlines()) <= 100
    tops = {module.partition(".")[0] for module in imported(helper)}
    assert tops - set(sys.stdlib_module_names) == {"numpy"}


def test_no_file_name_stands_in_two_rooms() -> None:
    rooms = {(path.name, room_of(path)) for path in BENCH if room_of(path) in ROOMS}
    counts = Counter(name for name, _ in rooms if name not in PROTOCOL_NAMES)
    assert not {name: count for name, count in counts.items() if count > 1}


def test_tests_mirror_the_rooms() -> None:
    folders = {path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")}
    assert folders <= {*ROOMS, "lockstep"}


def test_the_code_stays_within_its_budget() -> None:
    lengths = {
        name_of(path): len(path.read_text(encoding="utf-8").splitlines()) for path in code_files()
    }
    assert not {name: n for name, n in lengths.items() if n > MOST_LINES_OF_A_FILE}
    assert statistics.median(lengths.values()) < MEDIAN_LINES_OF_A_FILE
    assert sum(lengths.values()) <= MOST_LINES
