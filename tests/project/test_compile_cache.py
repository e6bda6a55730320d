"""What is kept of a compiled step is found until something changes that it comes from."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any, cast

import pytest

from bench.plan import content_keys
from bench.plan.content_keys import read_files
from bench.project import compiled_programs
from bench.project.compiled_programs import entry_names
from bench.records import user_cache
from bench.records.cells import Block, Cell, StepOptions
from bench.records.mesh import MeshShape
from bench.records.paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from bench.records.messages import Catalogue

CELL = Cell(Block("model", "tiny", MeshShape.parse("data=2"), 8, StepOptions()), "mine")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that workers start in, with a user's files."""
    monkeypatch.setattr(user_cache, "user_cache_path", lambda name: tmp_path / "cache" / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    for file in ("mine.py", "model.py"):
        (tmp_path / file).touch()
    return tmp_path


def name(folder: Path, platform: str = "cpu") -> str:
    """The name of the cell's answer in the cache."""
    found: dict[str, Any] = {
        "platform": platform,
        "device_kind": "x",
        "versions": {"jax": "1"},
        "implementations": [{"name": "mine", "path": str(folder / "mine.py")}],
        "workloads": [{"name": "model", "path": str(folder / "model.py")}],
    }
    return entry_names(cast("Catalogue", found), here=False)(CELL)


def test_an_answer_is_of_its_cell_platform_and_files_alone(folder: Path) -> None:
    before = name(folder)
    assert name(folder) == before
    assert name(folder, "gpu") != before
    (folder / "mine.py").write_text("# another\n")
    assert name(folder) != before


def test_files_are_those_that_compile_and_read() -> None:
    found = set(read_files(compiled_programs.COMPILER).hashes)
    workers = {"answer/abstract_step", "file_loader", "prove/failures",
               "read/hlo", "read/programs", "problems"}  # fmt: skip
    assert found >= {f"bench/worker/{name}.py" for name in workers}
    assert found >= {
        "compile_only.py",
        "bench/contract/__init__.py",
        "bench/records/collective_kinds.py",
    }
    # Those that prove and measure as well: a cache that they emptied would be of little use.
    others = {"block", "phases/checkpoints", "phases/input_feed", "phases/training",
              "time/energy_counters", "trace/profiler"}  # fmt: skip
    assert not found & {f"bench/worker/{name}.py" for name in others}


@pytest.mark.parametrize(
    ("file", "counts"),
    [
        ("bench/worker/problems.py", True),
        ("bench/worker/answer/abstract_step.py", True),
        ("bench/records/collective_kinds.py", True),
        ("bench/records/messages.py", True),
        ("bench/worker/trace/profiler.py", False),
        ("bench/project/compiled_programs.py", False),
    ],
)
def test_a_file_counts_if_it_is_one_of_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch, file: str, counts: bool
) -> None:
    before, copy = name(folder), folder / "copy"
    for package in ("bench", "implementations"):
        shutil.copytree(ROOT / package, copy / package)
    monkeypatch.setattr(content_keys, "ROOT", copy)
    assert name(folder) == before, "the same content"
    own = copy / file
    own.write_text(own.read_text("utf-8") + "# another\n", "utf-8")
    assert (name(folder) != before) == counts


@pytest.mark.parametrize(
    ("variable", "platforms"),
    [
        ("JAX_ENABLE_X64", {"cpu", "gpu"}),
        ("JAX_USE_SHARDY_PARTITIONER", {"cpu", "gpu"}),
        ("XLA_FLAGS", {"gpu"}),  # virtual devices have flags of their own
        ("LIBTPU_INIT_ARGS", {"cpu", "gpu"}),
        ("CUDA_VISIBLE_DEVICES", {"cpu", "gpu"}),
        ("JAX_NUM_CPU_DEVICES", {"gpu"}),  # the cell gives the number of virtual devices
        ("LOCKSTEP_OTHER", set()),
    ],
)
def test_a_variable_counts_if_it_may_change_what_is_compiled(
    folder: Path, monkeypatch: pytest.MonkeyPatch, variable: str, platforms: set[str]
) -> None:
    for platform in ("cpu", "gpu"):
        paths = []
        for value in ("1", "3"):
            monkeypatch.setenv(variable, value)
            paths.append(name(folder, platform))
        monkeypatch.delenv(variable)
        paths.append(name(folder, platform))
        assert len(set(paths)) == (3 if platform in platforms else 1)
