"""Programs are asked of children, kept while their files stay, and their lack has a reason."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from bench.measure.catalogue import read_catalogue
from bench.measure.processes.guarded import Answer
from bench.project import compiled_programs
from bench.project.compiled_programs import NoProgram, Program, from_row, programs
from bench.project.program_formulae import Curve, fit
from bench.records import user_cache
from bench.records.cells import Block, Cell, StepOptions
from bench.records.mesh import MeshShape

OWN = '''
"""As jit_spmd."""

import os

import jax.numpy as jnp

from implementations.jit_spmd import build as others_build


def why_unsupported(problem, mesh):
    return "too many" if problem.batch_size > 8 else None


def build(problem, mesh):
    {first}
    return others_build(problem, mesh)
'''


def cell(implementation="jit_spmd", mesh="data=2", workload="linear", size="tiny", batch=8):
    block = Block(workload, size, MeshShape.parse(mesh), batch, StepOptions())
    return Cell(block, implementation)


ROW = {
    "flops": 10.0,
    "memory_bytes": 30,
    "state_bytes": 40,
    "communication": [],
    "model_flops": 50.0,
    "units": 60,
    "unit": "samples",
}


@pytest.fixture(autouse=True)
def _kept(tmp_path, monkeypatch):
    monkeypatch.setattr(user_cache, "user_cache_path", lambda name: tmp_path / name)


@pytest.fixture(scope="module")
def catalogue():
    """One that a child would find, without its time."""
    names = {"implementations": ("jit_spmd", "zero1"), "workloads": ("linear", "mlp")}
    folders = {"implementations": "implementations", "workloads": "bench/contract/workloads"}
    return {
        "versions": {"jax": "0"},
        "implementation_paths": [],
        "workload_paths": [],
        **{
            kind: [
                {"name": n, "path": f"{folders[kind]}/{n}.py", "error": "", "sizes": ["tiny"]}
                for n in own
            ]
            for kind, own in names.items()
        },
    }


LINE = json.dumps({"row": ROW, "reason": "", "lack": ""})


class Children:
    """Children that answer what they are told to, and are counted."""

    def __init__(self, patch):
        self.asked: list[list[str]] = []
        """Of each, the names of implementations that it was asked about."""
        self.environments: list[dict[str, str]] = []
        self.endings: list[Answer] = []
        """Of the next ones; others answer everything."""
        self.limits: set[float] = set()
        """Seconds that they were given for a cell."""
        self.open = self.most_open = 0
        children = self

        class Child:
            def __init__(self, command, question, environment, heard):
                self.questions = [json.loads(line) for line in question.splitlines()]
                self.heard = heard
                children.asked.append([one["implementation"] for one in self.questions])
                children.environments.append(environment)

            def __enter__(self):
                children.open += 1
                children.most_open = max(children.most_open, children.open)
                return self

            def __exit__(self, *_):
                children.open -= 1

            def answer(self, timeout_s):
                children.limits.add(timeout_s)
                ended = Answer(f"{LINE}\n" * len(self.questions), "", 0)
                if children.endings:
                    ended = children.endings.pop(0)
                for line in ended.out.splitlines():
                    self.heard(line)
                return ended

        patch.setattr(compiled_programs, "Child", Child)


@pytest.fixture
def children(monkeypatch):
    monkeypatch.setattr(compiled_programs, "usable_cores", lambda: 1)
    return Children(monkeypatch)


@pytest.mark.slow
def test_a_step_is_compiled_by_a_child_and_kept_until_a_file_changes(tmp_path, catalogue):
    path = tmp_path / "own_step.py"
    path.write_text(OWN.format(first="pass"), "utf-8")
    entry = catalogue["implementations"][0] | {"name": "own_step", "path": str(path)}
    listed = catalogue | {"implementations": [entry], "implementation_paths": [str(path)]}
    wanted = [cell("own_step"), cell("own_step", batch=16)]
    found, refused = programs(wanted, catalogue=listed)
    assert isinstance(found, Program)
    assert found.cell == wanted[0]
    (sums,) = found.communication
    assert (sums["kind"], sums["axes"], sums["members"]) == ("all-reduce", ["data"], 2)
    # A gradient for each parameter, and the loss; SGD keeps nothing.
    assert sums["payload_bytes"] == found.state_bytes + 4
    assert refused == NoProgram(wanted[1], "too many", "unsupported")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled_programs, "Child", lambda *_: pytest.fail("there is no need to ask"))
        assert programs(wanted, catalogue=listed) == [found, refused]
    path.write_text(OWN.format(first="os._exit(3)"), "utf-8")
    (gone,) = programs(wanted[:1], catalogue=listed)
    assert isinstance(gone, NoProgram)
    assert gone.reason.startswith("the process that compiled it ended with exit code 3")


def test_there_is_a_child_for_each_number_of_devices(catalogue, children):
    wanted = [cell(mesh="data=4"), cell("zero1"), cell(), cell(mesh="data=4")]
    told: list[tuple[int, int]] = []
    found = programs(wanted, catalogue=catalogue, progress=lambda *counts: told.append(counts))
    assert told == [(1, 3), (2, 3), (3, 3)]
    assert [program.cell for program in found] == wanted
    assert children.asked == [["zero1", "jit_spmd"], ["jit_spmd"]]
    assert [own["JAX_NUM_CPU_DEVICES"] for own in children.environments] == ["2", "4"]


def test_as_many_children_at_once_as_there_are_cores_and_room(catalogue, children, monkeypatch):
    monkeypatch.setattr(compiled_programs, "usable_cores", lambda: 3)
    wanted = [cell(batch=8 * n) for n in range(1, 6)] + [cell(mesh="data=4")]
    found = programs(wanted, catalogue=catalogue)
    assert [program.cell for program in found] == wanted
    assert [len(names) for names in children.asked] == [2, 2, 1, 1]
    assert children.most_open == 3
    memory = SimpleNamespace(available=2 * compiled_programs.ROOM + 1)
    monkeypatch.setattr(compiled_programs.psutil, "virtual_memory", lambda: memory)
    programs([replace(one, implementation="zero1") for one in wanted], catalogue=catalogue)
    assert [len(names) for names in children.asked[4:]] == [3, 2, 1]


def test_who_ends_a_child_beside_others_is_asked_about_alone(catalogue, children, monkeypatch):
    monkeypatch.setattr(compiled_programs, "usable_cores", lambda: 2)
    killed = Answer("", (), -9)
    wanted = [cell(batch=8 * n) for n in range(1, 5)]
    # Both children end at the first of their cells, of which the first one ends a third one, too.
    children.endings += [killed] * 3
    found = programs(wanted, catalogue=catalogue)
    assert [type(own) for own in found] == [NoProgram, Program, Program, Program]
    assert found[0].reason == "the process that compiled it was killed by SIGKILL"
    assert [len(names) for names in children.asked] == [2, 2, 4, 3]


def test_what_is_answered_is_kept_whatever_comes_after(catalogue, children, monkeypatch):
    def interrupted(done, of):
        if done == 2:
            raise KeyboardInterrupt

    wanted = [cell(batch=8 * n) for n in range(1, 4)]
    with pytest.raises(KeyboardInterrupt):
        programs(wanted, catalogue=catalogue, progress=interrupted)
    assert children.open == 0
    programs(wanted, catalogue=catalogue)
    assert [len(names) for names in children.asked] == [3, 1]


def test_accelerators_that_are_here_have_their_own_compiler(catalogue, children, monkeypatch):
    def ended(**options):
        before = len(children.environments)
        (found,) = programs([cell()], catalogue=here, **options)
        assert isinstance(found, Program)
        return children.environments[before:]

    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    here = catalogue | {"platform": "gpu", "device_kind": "NVIDIA H100 80GB HBM3"}
    for flags in ("--xla_gpu_autotune_level=0", "--xla_gpu_autotune_level=4"):
        monkeypatch.setenv("XLA_FLAGS", flags)
        (environment,) = ended(here=True)
        assert environment["XLA_FLAGS"] == flags
        assert "JAX_PLATFORMS" not in environment
        assert not ended(here=True), "it is kept, apart from what other flags gave"
    (virtual,) = ended()
    assert virtual["JAX_PLATFORMS"] == "cpu"
    assert "autotune" not in virtual["XLA_FLAGS"]
    # Only what stands in for another device is scheduled as there.
    assert "concurrency_optimized_scheduler=false" in virtual["XLA_FLAGS"]
    here = catalogue | {"platform": "cpu", "device_kind": "cpu"}
    (own,) = ended(here=True)
    assert "scheduler" not in own["XLA_FLAGS"]


def test_accelerators_are_for_one_child_at_a_time(catalogue, children, monkeypatch):
    monkeypatch.setattr(compiled_programs, "usable_cores", lambda: 16)
    here = catalogue | {"platform": "gpu", "device_kind": "NVIDIA H100 80GB HBM3"}
    programs([cell(), cell("zero1")], catalogue=here, here=True)
    assert children.asked == [["jit_spmd", "zero1"]]


def test_who_ends_a_child_or_takes_too_long_is_named_and_the_others_are_asked(
    catalogue, children, monkeypatch
):
    monkeypatch.setattr(compiled_programs, "TIMEOUT_S", 1)
    children.endings += [Answer(f"{LINE}\n", ["a", "killed here"], -9), Answer("", (), None)]
    wanted = [cell(batch=8), cell(batch=16), cell(batch=32), cell(batch=64)]
    found = programs(wanted, catalogue=catalogue)
    assert isinstance(found[0], Program)
    assert isinstance(found[3], Program)
    assert [own.reason for own in found[1:3]] == [
        "the process that compiled it was killed by SIGKILL; its last line: killed here",
        "the process that compiled it took too long",
    ]
    assert [len(names) for names in children.asked] == [4, 2, 1]
    assert children.limits == {1}
    # What went wrong is tried again, and what went well is not.
    programs(wanted, catalogue=catalogue)
    assert [len(names) for names in children.asked[3:]] == [2]


def test_what_cannot_be_asked_for_says_what_can(catalogue, children):
    wanted = {
        "there is no implementation jit; there are jit_spmd, zero1": cell("jit"),
        "it is of another version or revision, and only present steps are compiled": cell(
            "jit_spmd@old"
        ),
        "there is no workload gpt3; there are linear, mlp": cell(workload="gpt3"),
        "linear has no size huge; there are tiny": cell(size="huge"),
        "data=2048 has more than 1,024 devices, the most to compile for": cell(mesh="data=2048"),
    }
    assert programs(list(wanted.values()), catalogue=catalogue) == [
        NoProgram(own, reason) for reason, own in wanted.items()
    ]
    broken = catalogue["implementations"][0] | {"error": "SyntaxError: line 1"}
    (found,) = programs([cell()], catalogue=catalogue | {"implementations": [broken]})
    assert found.reason == "the implementation jit_spmd cannot be imported: SyntaxError: line 1"
    assert children.asked == []


def test_a_file_that_is_damaged_is_compiled_again(tmp_path, catalogue, children):
    programs([cell()], catalogue=catalogue)
    (kept,) = (tmp_path / "lockstep/programs").iterdir()
    kept.write_bytes(kept.read_bytes().replace(b"10.0", b"11.0"))
    (found,) = programs([cell()], catalogue=catalogue)
    assert found.flops == 10.0
    assert len(children.asked) == 2


STORED = {
    "workload": "mlp",
    "size": "tiny",
    "mesh": "data=4",
    "batch": 16,
    "options": "fp32,remat",
    "implementation": "jit_spmd",
    "status": "ok",
    "reason": "",
    "traced_flops": 400.0,
    "product_flops": 800.0,
    "memory": {"total_bytes": 70, "argument_bytes": 50, "alias_bytes": 40},
    "communication": [{"kind": "all-reduce", "axes": ["data"]}],
    "model_flops": 300.0,
    "unit": "samples",
    "units_per_step": 16,
}


def test_a_stored_cell_has_a_program():
    found = from_row(STORED)
    assert found.cell.name == "mlp-tiny/data=4/b16/fp32,remat/jit_spmd"
    assert (found.flops, found.memory_bytes) == (200.0, 70)
    assert (found.state_bytes, found.model_flops, found.units) == (40, 300.0, 16)
    assert found.communication == STORED["communication"]
    not_donated = {**STORED["memory"], "alias_bytes": 0}
    assert from_row({**STORED, "memory": not_donated}).state_bytes == 50
    assert from_row({**STORED, "traced_flops": None}).flops == 200.0


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"memory": None}, "its stored row lacks figures of the compiled step"),
        ({"traced_flops": None, "product_flops": 0.0}, "its stored row lacks figures"),
        ({"communication": []}, "its programs contain none of the communication"),
    ],
)
def test_a_stored_cell_without_figures_has_none(change, reason):
    found = from_row({**STORED, **change})
    assert isinstance(found, NoProgram)
    assert found.reason.startswith(reason)


@pytest.mark.slow
def test_a_program_of_many_devices_follows_from_those_of_few():
    base = cell("jit_spmd", "data=8", "gpt2", batch=16)
    curve = Curve.through(base, "weak")
    found = programs(curve.ladder()[:3], read_catalogue())
    assert [program.mesh.size for program in found] == [8, 64, 256]
    formula = fit(curve, found)
    assert formula.error < 1e-3
    assert formula.at(found[-1].cell).communication == found[-1].communication
