"""A key is of content: it changes with what a cell is made of, and with nothing else."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pytest

from bench.plan import content_keys
from bench.plan.content_keys import Contents, changed
from bench.plan.option_values import BadInput
from bench.records.cells import Block, Cell, StepOptions
from bench.records.mesh import MeshShape
from bench.records.paths import ROOT
from bench.records.variants import Variant

if TYPE_CHECKING:
    from pathlib import Path

    from bench.records.messages import Catalogue

CELL = Cell(Block("model", "tiny", MeshShape.parse("data=2"), 8, StepOptions()), "mine")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that workers start in, with an implementation, a workload and helpers of both."""
    for name, text in {
        "mine.py": "import numpy\nfrom own import first\nfrom bench.contract import Problem\n",
        "model.py": "import json\n",
        "own/__init__.py": "",
        "own/first.py": "def late():\n    from .second import two\n",
        "own/second.py": "two = 2\n",
        "own/unused.py": "",
        "bench.py": "its name is that of Lockstep's package, which is imported instead",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return tmp_path


def catalogue(project: Path, **rest: object) -> Catalogue:
    found: dict[str, Any] = {
        "platform": "cpu",
        "device_kind": "cpu",
        "versions": {"jax": "1"},
        "implementations": [{"name": "mine", "path": str(project / "mine.py")}],
        "workloads": [{"name": "model", "path": str(project / "model.py")}],
    }
    return cast("Catalogue", found | rest)


def key(project: Path, cell: Cell = CELL, **rest: object) -> str:
    return Contents(catalogue(project, **rest)).key(cell)


def test_files_are_those_that_are_imported(project: Path) -> None:
    found = Contents(catalogue(project)).sources(CELL)
    assert list(found["implementation"]) == [
        *("bench/__init__.py", "bench/contract/__init__.py", "bench/contract/model_state.py"),
        *("bench/contract/varying.py", "mine.py"),
        *("own/__init__.py", "own/first.py", "own/second.py"),
    ]
    # Clipping may be wrapped around any workload's optimizer.
    assert set(found["workload"]) >= {"model.py", "bench/contract/clipping.py"}
    assert all(len(digest) == 16 for digest in found["implementation"].values())


def test_relative_imports_are_followed_from_packages_and_modules(project: Path) -> None:
    for name, text in {
        "mine.py": "import outer.inner.deep\n",
        "outer/__init__.py": "from .beside_package import one\n",
        "outer/beside_package.py": "from . import sibling\n",
        "outer/sibling.py": "",
        "outer/above.py": "",
        "outer/inner/__init__.py": "from . import local\nfrom .. import above\n",
        "outer/inner/local.py": "",
        "outer/inner/deep.py": "from ..other.far import two\n",
        "outer/other/__init__.py": "",
        "outer/other/far.py": "",
        "above.py": "",
        "local.py": "",
        "sibling.py": "",
    }.items():
        path = project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    inside = {file.relative_to(project).as_posix() for file in project.glob("outer/**/*.py")}
    assert {*Contents(catalogue(project)).sources(CELL)["implementation"]} == {"mine.py", *inside}


@pytest.mark.parametrize(
    ("file", "named"),
    [
        ("mine.py", "implementation mine"),
        ("model.py", "workload model"),
        ("own/second.py", "own/second.py"),
    ],
)
def test_every_file_counts_and_is_named(project: Path, file: str, named: str) -> None:
    before, key_before = Contents(catalogue(project)).sources(CELL), key(project)
    (project / file).write_text((project / file).read_text() + "# another\n")
    assert key(project) != key_before
    now = Contents(catalogue(project)).sources(CELL)
    assert list(changed(CELL, before, now)) == [named]


def test_what_is_not_content_does_not_count(project: Path, tmp_path_factory) -> None:
    before = key(project)
    (project / "own/unused.py").write_text("unused = True\n")
    (project / "mine.py").rename(project / "yours.py")
    yours = [{"name": "yours", "path": str(project / "yours.py")}]
    assert key(project, replace(CELL, implementation="yours"), implementations=yours) == before


def test_imported_files_that_change_places_count(project: Path) -> None:
    (project / "own/__init__.py").write_text("from . import first, second\n")
    one, other = project / "own/first.py", project / "own/second.py"
    before, texts = key(project), (one.read_text(), other.read_text())
    one.write_text(texts[1])
    other.write_text(texts[0])
    assert key(project) != before


def test_everything_else_about_a_cell_counts(project: Path) -> None:
    block = CELL.block
    others = [
        replace(block, size="base"),
        replace(block, mesh=MeshShape.parse("data=4")),
        replace(block, batch=16),
        replace(block, options=StepOptions(remat="full")),
        replace(block, options=StepOptions(remat="dots")),
        replace(block, options=StepOptions(scan_layers=True)),
    ]
    found = [key(project, Cell(other, "mine")) for other in others]
    found += [key(project, **{name: "x"}) for name in ("platform", "device_kind", "versions")]
    fast = Cell(replace(block, options=StepOptions(variant="fast")), "mine")
    found += [
        Contents(catalogue(project), [Variant("fast", {"XLA_FLAGS": flags})]).key(fast)
        for flags in ("--one", "--two")
    ]
    assert len({*found, key(project)}) == len(found) + 1


def test_another_revision_has_its_own_file_and_its_own_helpers(project: Path) -> None:
    worktree = project / "base"
    for name in ("mine.py", "own/__init__.py", "own/first.py", "own/second.py"):
        path = worktree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text((project / name).read_text())
    base = {
        "path": str(worktree / "mine.py"),
        "worktree": str(worktree),
        "repository": str(project),
    }
    cell = replace(CELL, implementation="mine@base")

    def of_base() -> str:
        return Contents(catalogue(project), bases={"mine@base": base}).key(cell)

    assert of_base() == key(project), "the same content"
    (project / "own/second.py").write_text("two = 3\n")
    assert of_base() != key(project)
    before = of_base()
    (worktree / "own/second.py").write_text("two = 4\n")
    assert of_base() != before


def test_the_packages_of_a_step_in_another_framework_count(project: Path) -> None:
    (entry,) = catalogue(project)["implementations"]
    keys = {
        key(project, implementations=[{**entry, "foreign": foreign}])
        for foreign in ({}, {"torch": ""}, {"torch": "2.13"}, {"torch": "2.15"})
    }
    assert len(keys) == 4


def test_a_file_that_cannot_be_read_is_named(project: Path) -> None:
    (project / "mine.py").unlink()
    with pytest.raises(BadInput, match=r"mine\.py cannot be read: No such file"):
        key(project)
    (project / "mine.py").write_text("def (")
    assert list(Contents(catalogue(project)).sources(CELL)["implementation"]) == ["mine.py"]


def test_what_is_installed_is_not_followed(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site, target, own = project / "lib" / "site-packages", project / "target", project / "mine"
    for folder in (site, target / "numpy-2.dist-info", own):
        folder.mkdir(parents=True)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (site, target, own))))
    assert not {site, target} & {*content_keys._roots()}
    assert own in content_keys._roots()
    assert ROOT in content_keys._roots()
