"""Environments with another jax, made by a uv that behaves as told."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from bench.measure import version_environments
from bench.measure.schedule import Schedule
from bench.measure.version_environments import (
    Environment,
    VersionBases,
    make_environment,
    releases_between,
    with_versions,
)
from bench.plan.matrix import make_plan
from bench.plan.option_values import BadInput
from bench.plan.options import Options
from bench.records.messages import JAX_CHILD
from bench.records.paths import ROOT, module_command
from bench.worker.foreign.foreign_module import traits_of
from tests.fakes.catalogue import catalogue

FAKE = ROOT / "tests" / "fakes" / "uv.py"


@pytest.fixture
def calls(tmp_path, monkeypatch):
    """A uv on the path, and what it was asked."""
    uv, log = tmp_path / "path" / "uv", tmp_path / "log"
    uv.parent.mkdir()
    uv.write_text(f'#!/bin/sh\nexec {sys.executable} {FAKE} "$@"\n')
    uv.chmod(0o755)
    monkeypatch.setenv("PATH", f"{uv.parent}:/usr/bin:/bin")
    monkeypatch.setenv("FAKE_UV_LOG", str(log))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return lambda: log.read_text().splitlines()


def test_an_environment_is_made_once(calls, tmp_path):
    planned = make_environment("jax==0.11.0", install=False)
    assert not any(call.startswith("venv") for call in calls())
    made = make_environment("jax==0.11.0")
    assert made.versions == {
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "jax": "0.11.0",
        "flax": "0.12.8",
    }
    assert made == planned, "a plan resolves the same versions"
    assert made.python.is_relative_to(tmp_path / "cache")
    assert sum(call.startswith("venv") for call in calls()) == 1
    assert make_environment("jax==0.11.0") == made
    assert sum(call.startswith("venv") for call in calls()) == 1


def test_an_installed_lockstep_is_found_from_its_environments(calls, monkeypatch):
    from_checkout = make_environment("jax==0.11.0")
    assert not list(from_checkout.python.parents[1].rglob("*.pth"))
    monkeypatch.setattr(version_environments, "CHECKOUT", False)
    monkeypatch.setattr(version_environments, "_dependencies", list)
    made = make_environment("jax==0.11.0")
    assert made.python != from_checkout.python, "another installation has another folder"
    (found,) = made.python.parents[1].rglob("site-packages/*.pth")
    assert found.read_text() == f"{ROOT}\n"


@pytest.mark.skipif(sys.version_info[:2] == (3, 11), reason="it has what the older one has")
def test_another_installed_python_is_found_where_this_one_has_no_solution(calls):
    made = make_environment("jax==0.10.2")
    assert made.versions["python"] == "3.11"
    assert any(call.startswith("venv") and "/old/python" in call for call in calls())


def test_a_version_that_cannot_be_had_is_a_reason(calls, monkeypatch):
    said = (
        r"uv cannot install jax==0\.4\.1 with .*\. Python [\d. and]+: Because there is no version"
    )
    with pytest.raises(BadInput, match=said):
        make_environment("jax==0.4.1")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(BadInput, match="which uv makes: `pip install uv`"):
        make_environment("jax==0.11.0")


def test_an_interrupted_environment_is_made_again(calls, monkeypatch):
    monkeypatch.setenv("FAKE_UV_BREAKS", "1")
    with pytest.raises(BadInput, match="the disk is full"):
        make_environment("jax==0.11.0")
    monkeypatch.delenv("FAKE_UV_BREAKS")
    assert make_environment("jax==0.11.0").python.parent.is_dir()


def test_an_environment_that_another_process_is_making_is_waited_for(calls):
    """Two threads, because a lock is that of an open file."""
    with ThreadPoolExecutor() as threads:
        made = [*threads.map(make_environment, 3 * ["jax==0.11.0"])]
    assert made == 3 * made[:1]
    assert sum(call.startswith("venv") for call in calls()) == 1


def test_a_plan_leaves_the_environment_to_the_run(calls):
    """Files of arms are kept in its folder, which then exists before it."""
    options = {"workloads": ("mlp",), "meshes": ("data=1",), "variant": ("old=jax==0.11.0",)}
    asked = catalogue()
    for entry in asked["implementations"]:
        entry["path"] = str(ROOT / "implementations" / "pmap.py")
    for install in (False, True):
        with_versions(make_plan(Options(**options), asked), asked, install=install)
    assert sum(call.startswith("venv") for call in calls()) == 1


def test_an_installation_that_takes_too_long_is_a_reason(calls, monkeypatch):
    monkeypatch.setattr(version_environments, "TIMEOUT_S", 0.0)
    with pytest.raises(BadInput, match=r"`uv [a-z]+` did not end within 0 min"):
        make_environment("jax==0.11.0")


def test_releases_between_two_are_listed(calls):
    assert releases_between("jax", "0.10.2", "0.12.0") == ["0.11.0", "0.11.1"]


def test_a_list_of_releases_is_whole_or_refused(calls, monkeypatch):
    monkeypatch.setenv("FAKE_UV_UNREACHABLE", "jax>0.10.2,<0.11.1")
    said = r"uv cannot list the releases jax>0\.10\.2,<0\.11\.1: cause: Connection refused"
    with pytest.raises(BadInput, match=said):
        releases_between("jax", "0.10.2", "0.12.0")


def test_a_requirement_may_be_a_file(calls, tmp_path):
    wheel, listed = tmp_path / "jax-0.11.1-py3-none-any.whl", tmp_path / "old.txt"
    for file in (wheel, listed):
        with pytest.raises(BadInput, match=f"there is no file {file}"):
            make_environment(str(file))
    listed.write_text("\n  # jax==0.10.2\n")
    with pytest.raises(BadInput, match=f"{listed} names no package"):
        make_environment(str(listed))
    listed.write_text("jax==0.11.0\n")
    assert make_environment(str(listed)).versions["jax"] == "0.11.0"
    wheel.write_bytes(b"one build")
    first = make_environment(str(wheel))
    assert first.versions["jax"] == "0.11.1"
    wheel.write_bytes(b"another build of the same version")
    assert make_environment(str(wheel)).python != first.python


def test_a_variant_with_another_version_adds_an_arm_for_each_implementation(calls):
    typed = {"workloads": ("mlp",), "meshes": ("data=1",), "variant": ("old=jax==0.11.0",)}
    found = catalogue()
    for entry in found["implementations"]:
        entry["path"] = str(ROOT / "implementations" / "pmap.py")
    plan = make_plan(Options(**typed, implementations=("jit_spmd", "pmap")), found)
    plan, known = with_versions(plan, found)
    assert plan.implementations == ("jit_spmd", "pmap", "jit_spmd@old", "pmap@old")
    assert {block.options.variant for block in plan.blocks} == {""}, "all in the same rounds"
    assert known["implementations"][-1]["foreign"]["jax"] == "0.11.0"
    path = Path(known["implementations"][-1]["path"])
    assert (path.stem, plan.worker["implementation_paths"][-1]) == ("pmap@old", str(path))
    assert traits_of(path)["command"][0].endswith("bin/python")
    arms = Schedule(plan).opponents(plan.blocks[0], [{"arm": a} for a in plan.implementations])
    assert arms == {"pmap": "jit_spmd", "jit_spmd@old": "jit_spmd", "pmap@old": "pmap"}


def test_a_variant_that_races_adds_arms_of_this_python(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    variants = ("@one=XLA_FLAGS=--one", "@two=XLA_FLAGS=--two", "apart=XLA_FLAGS=--three")
    found = catalogue()
    found["versions"] |= {"python": "3.12.1", "jaxlib": "0.12.0"}
    for entry in found["implementations"]:
        entry["path"] = str(ROOT / "implementations" / "pmap.py")
    typed = Options(workloads=("mlp",), meshes=("data=1",), variant=variants)
    plan, known = with_versions(make_plan(replace(typed, implementations=("pmap",)), found), found)
    assert plan.implementations == ("pmap", "pmap@one", "pmap@two")
    assert [block.options.variant for block in plan.blocks] == ["", "apart"]
    paths = [Path(entry["path"]) for entry in known["implementations"][-2:]]
    assert all(path.is_relative_to(tmp_path) for path in paths)
    assert [traits_of(path)["variables"]["XLA_FLAGS"] for path in paths] == ["--one", "--two"]
    assert traits_of(paths[0])["command"][0] == sys.executable
    assert known["implementations"][-1]["foreign"]["jaxlib"] == "0.12.0"


@pytest.mark.parametrize("variant", ["old=jax==0.11.0", "@one=XLA_FLAGS=--one"])
def test_a_gate_has_one_other_version(variant):
    typed = Options(variant=(variant,), base_revision="jax==0.10.2")
    with pytest.raises(BadInput, match="--variant: a gate already has a second version: its base"):
        make_plan(typed, catalogue())


def test_a_base_is_a_foreign_file_for_the_other_python():
    path = ROOT / "implementations" / "pmap.py"
    environment = Environment(Path("/env/bin/python"), {"jax": "0.10.2"})
    bases = VersionBases("jax==0.10.2", {"pmap": path}, {}, (), (), environment=environment)
    with bases.checked_out() as files:
        traits = traits_of(Path(files["pmap@base"]["path"]))
        words = [*module_command(JAX_CHILD, "/env/bin/python"), str(path)]
        assert traits == {"packages": ["jax"], "command": words, "variables": {}}
    assert not Path(files["pmap@base"]["path"]).exists()
    assert bases.record()["versions"] == {"jax": "0.10.2"}
