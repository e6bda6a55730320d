"""A kept proof is found for the same content, versions, machine and environment, and only then."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from bench.measure import proof_cache
from bench.measure.proof_cache import ACCOUNTED, entry_keys
from bench.plan.content_keys import Contents
from bench.records import user_cache
from bench.records.cells import Block, StepOptions
from bench.records.mesh import MeshShape
from bench.records.messages import GATE, Catalogue
from bench.records.paths import ROOT
from bench.records.variants import Variant

if TYPE_CHECKING:
    from pathlib import Path

    from bench.records.rows import CellRow


BLOCK = Block("model", "tiny", MeshShape.parse("data=2"), 8, StepOptions())
VERSIONS = dict.fromkeys(("python", "jax", "jaxlib", "flax", "optax", "numpy"), "1")


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that workers start in, with an implementation, a workload and a helper."""
    (tmp_path / "mine.py").write_text("import jax, own\nfrom bench import contract\n")
    (tmp_path / "own.py").write_text("import math\n")
    (tmp_path / "model.py").write_text("import optax\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return tmp_path


def found(project: Path, block: Block = BLOCK, **changed: object) -> proof_cache.Keys:
    """The keys of the arm `mine` and of the gate."""
    catalogue: dict[str, Any] = {
        "platform": "cpu",
        "device_kind": "cpu",
        "versions": VERSIONS,
        "implementations": [{"name": "mine", "path": str(project / "mine.py")}],
        "workloads": [{"name": "model", "path": str(project / "model.py")}],
    }
    variants = [Variant("fast", {"XLA_FLAGS": str(changed.pop("flags", ""))})]
    same = cast("Catalogue", catalogue | changed)
    return entry_keys(Contents(same, variants), block, ["mine"])


def test_all_that_a_proof_depends_on_is_in_its_key(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = found(project)
    assert found(project) == first
    seen = [first]

    def changes(what: str, now: proof_cache.Keys, *, gate: bool = True) -> None:
        assert now["mine"] not in [before["mine"] for before in seen], what
        assert (now[GATE] not in [before[GATE] for before in seen]) == gate, what
        seen.append(now)

    for name, own in (("mine.py", True), ("own.py", True), ("model.py", False)):
        file = project / name
        file.write_text(file.read_text() + "# changed\n")
        changes(name, found(project), gate=not own)
    for block in (
        replace(BLOCK, size="base"),
        replace(BLOCK, mesh=MeshShape.parse("data=4")),
        replace(BLOCK, batch=16),
        replace(BLOCK, options=StepOptions("bf16")),
        replace(BLOCK, options=StepOptions(microbatches=2)),
        replace(BLOCK, options=StepOptions(remat="full")),
        replace(BLOCK, options=StepOptions(clip_norm=1.0)),
        replace(BLOCK, options=StepOptions(processes=2)),
    ):
        changes(str(block), found(project, block))
    for package in VERSIONS:
        changes(package, found(project, versions=VERSIONS | {package: "2"}))
    changes("platform", found(project, platform="gpu"))
    changes("device kind", found(project, device_kind="another"))
    fast = replace(BLOCK, options=StepOptions(variant="fast"))
    for flags in ("--xla_one", "--xla_two"):
        changes(flags, found(project, fast, flags=flags))
    for variable in ("XLA_FLAGS", "JAX_DEFAULT_MATMUL_PRECISION", "OMP_NUM_THREADS"):
        monkeypatch.setenv(variable, "3")
        changes(variable, found(project))
    for part in ("_machine", "_workers"):
        monkeypatch.setattr(proof_cache, part, lambda: "another")
        changes(part, found(project))


def test_what_is_elsewhere_counts(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "some-1.0.dist-info").mkdir()
    before = proof_cache._machine()
    monkeypatch.syspath_prepend(project)
    assert set(proof_cache._machine()) - set(before) == {"some-1.0.dist-info"}
    for file in ("worker/prove/gate.py", "records/rows.py", "contract/layers.py"):
        own = project / "bench" / file
        own.parent.mkdir(parents=True, exist_ok=True)
        own.write_bytes((ROOT / "bench" / file).read_bytes())
    monkeypatch.setattr(proof_cache, "ROOT", project)
    for file in sorted((project / "bench").rglob("*.py")):
        same = proof_cache._workers()
        file.write_text(file.read_text("utf-8") + "# changed\n", "utf-8")
        assert proof_cache._workers() != same


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("from functools import partial\nimport own\nimport jax.numpy\n", True),
        ("import os\n", False),
        ("def late():\n    from installed.package import step\n", False),
    ],
)
def test_a_cell_that_may_depend_on_more_is_not_kept(project: Path, text: str, kept: bool) -> None:
    (project / "mine.py").write_text(text)
    now = found(project)
    assert ("mine" in now) == kept
    assert GATE in now
    (project / "own.py").write_text("import random\n")
    assert "mine" not in found(project), "it imports this, or does more itself"


@pytest.mark.parametrize("free", [proof_cache.ROOM, proof_cache.ROOM - 1])
def test_programs_that_a_full_folder_may_have_cut_short_are_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int
) -> None:
    monkeypatch.setattr(user_cache, "user_cache_path", lambda name: tmp_path / name)
    monkeypatch.setattr(proof_cache.shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    program = tmp_path / "programs/block/mine/jit_step-cache"
    program.parent.mkdir(parents=True)
    program.write_bytes(b"cut")
    compiled = {"trace_s": 1.0, "lower_s": 1.0, "compile_s": 1.0, "cache_hits": 0}
    row = {"implementation": "mine", "status": "ok", "proof": [], "compile": compiled}
    proof_cache.remember(
        [cast("CellRow", row)], {"mine": "k"}, {}, tmp_path / "programs/block", "r"
    )
    assert (user_cache.read("k") is not None) == (free == proof_cache.ROOM)


def test_a_step_that_was_compiled_before_its_first_call_has_a_proof_to_keep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_cache, "user_cache_path", lambda name: tmp_path / name)
    row = cast("CellRow", {"implementation": "mine", "status": "ok", "proof": [], "compile": None})
    keys, folder = {"mine": "k"}, tmp_path / "programs/block"
    folder.mkdir(parents=True)
    proof_cache.remember([row], keys, {}, folder, "r")
    known = proof_cache.recall(keys, folder)
    assert "compile" not in known["mine"]
    assert proof_cache.completed(row, known) == row


def test_every_file_of_the_repository_can_be_kept() -> None:
    paths = {
        "implementations": ROOT / "implementations",
        "workloads": ROOT / "bench/contract/workloads",
    }
    listed = {
        kind: [{"name": p.stem, "path": str(p)} for p in folder.glob("*.py") if p.stem[0] != "_"]
        for kind, folder in paths.items()
    }
    contents = Contents(cast("Catalogue", listed))
    for implementation in listed["implementations"]:
        assert contents._implementation(implementation["name"]).elsewhere <= ACCOUNTED
    for workload in listed["workloads"]:
        assert contents._workload(workload["name"]).elsewhere <= ACCOUNTED
