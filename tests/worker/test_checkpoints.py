"""Saving and restoring states: what is measured, what is proved of it, and what is told."""

from __future__ import annotations

import importlib.util
import math
import os
import shutil
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import synthetic
from fakes.catalogue import catalogue
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from pages import column

from bench.analyse import cell_table
from bench.analyse.phase_costs import checkpoint_costs
from bench.measure import engine
from bench.plan.matrix import make_plan
from bench.plan.option_values import BadInput
from bench.plan.options import Options
from bench.present import caveats, page_data, phase_tables
from bench.records import store
from bench.worker.block_session import BlockSession
from bench.worker.foreign.foreign_arm import ForeignArm
from bench.worker.phases import checkpoints
from bench.worker.prove.failures import UnsupportedError, WrongStepError
from bench.worker.time.clock import Arm

needs_orbax = pytest.mark.skipif(
    importlib.util.find_spec("orbax") is None,
    reason="orbax-checkpoint is not installed: extra `checkpoint`",
)
ROWS = 8


def mesh_of(**axes: int) -> Mesh:
    size = int(np.prod(list(axes.values())))
    kinds = (AxisType.Auto,) * len(axes)
    shape, names = tuple(axes.values()), tuple(axes)
    return jax.make_mesh(shape, names, axis_types=kinds, devices=jax.devices()[:size])


def state_on(mesh: Mesh, spec: P) -> dict[str, Any]:
    rows = np.arange(ROWS * 4, dtype=np.float32).reshape(ROWS, 4)
    return {
        "kernel": jax.device_put(rows, NamedSharding(mesh, spec)),
        "count": jax.device_put(np.int32(0), NamedSharding(mesh, P())),
    }


def training(mesh: Mesh, spec: P) -> Arm:
    """An arm that changes its state in every step, and donates it."""

    @partial(jax.jit, donate_argnums=0)
    def step(state: Any, _: Any) -> tuple[Any, jax.Array]:
        state = jax.tree.map(lambda x: x + jnp.ones_like(x), state)
        return state, state["kernel"].mean()

    return Arm("A", step, state_on(mesh, spec), None)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "REPEATS", 2)
    monkeypatch.setattr(checkpoints, "STEPS", 3)


def test_figures_are_sent_before_the_next_file_can_end_the_worker(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cells: dict[str, Any] = {"first": {}, "deadly": {}}
    sent: list[list[str]] = []

    def measure(arm: Any, *_: Any) -> str:
        if arm.name == "deadly":
            assert sent == [["first"]]
        return "figures"

    monkeypatch.setattr(checkpoints, "measure_checkpoints", measure)
    session: Any = SimpleNamespace(
        cells=cells,
        mesh=None,
        announce=lambda *_: None,
        ok_arms=lambda: [SimpleNamespace(name=name) for name in cells],
        send_rows=lambda: sent.append([name for name in cells if "checkpoint" in cells[name]]),
    )
    settings = {"folder": str(tmp_path), "modes": ["sync"]}
    checkpoints.save_and_restore_cells(session, session, settings)
    assert sent == [["first"], ["first", "deadly"]]


def test_a_state_in_other_processes_is_not_saved_and_its_cell_says_so(tmp_path: Path) -> None:
    session: Any = BlockSession.__new__(BlockSession)
    session.mesh, session.announce, session.send_rows = None, lambda *_: None, lambda: None
    session.arms = [arm := ForeignArm.__new__(ForeignArm)]
    arm.name = "mine"
    session.cells = {arm.name: {"status": "ok", "foreign": {}}}
    settings = {"folder": str(tmp_path), "modes": ["sync"]}
    checkpoints.save_and_restore_cells(session, session, settings)
    reason = session.cells[arm.name]["checkpoint"]["reason"]
    assert reason == "its steps run in other processes"


@needs_orbax
def test_a_divided_state_comes_back_as_it_was_on_two_meshes(quick: None, tmp_path: Path) -> None:
    mesh = mesh_of(data=4)
    arm = training(mesh, P("data"))
    found = checkpoints.measure_checkpoints(arm, mesh, ["sync", "async"], tmp_path / "files")
    assert found["reason"] == ""
    assert found["state_bytes"] == 4 * ROWS * 4 + 4
    assert found["stored_bytes"] > 0
    assert {mode: len(save["total_s"]) for mode, save in found["saves"].items()} == {
        "sync": 2, "async": 2,
    }  # fmt: skip
    save = found["saves"]["async"]
    assert len(save["steps_before_ns"]) == 3
    assert all(b <= t for b, t in zip(save["blocking_s"], save["total_s"], strict=True))
    assert [one["mesh"] for one in found["restores"]] == ["data=4", "data=2"]
    assert not list((tmp_path / "files").iterdir())


def saved_of(tree: checkpoints.Tree, path: Path) -> checkpoints.SavedState:
    return checkpoints.SavedState(path, checkpoints.shapes_of(tree), checkpoints.checksums(tree))


def test_an_asynchronous_save_takes_until_it_is_complete_and_blocks_until_it_returns(
    quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that only the save moves: 2 s until it returns, 3 s more once a step has run."""
    now, stepped = 0.0, threading.Event()

    def save(path: Path, _tree: Any) -> None:
        nonlocal now
        now += 2
        stepped.clear()
        path.mkdir()

    def wait_until_finished() -> None:
        nonlocal now
        assert stepped.wait(timeout=60), "steps run while it goes on"
        now += 3

    def step(state: Any, _: Any) -> tuple[Any, jax.Array]:
        stepped.set()
        return state, state["count"]

    monkeypatch.setattr(checkpoints, "time", SimpleNamespace(monotonic=lambda: now))
    arm = Arm("A", step, state_on(mesh_of(data=2), P("data")), None)
    orbax: Any = SimpleNamespace(save=save, wait_until_finished=wait_until_finished)
    found, saved = checkpoints.measure_saves(arm, orbax, tmp_path, "async")
    assert (found["blocking_s"], found["total_s"]) == ([2, 2], [5, 5])
    assert len(found["steps_during_ns"]) >= 2
    assert [*tmp_path.iterdir()] == [saved.path], "of all, the last is kept"


def test_files_are_read_from_where_they_lie(
    quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before each restore the system writes its copy of every file, and drops it."""
    (tmp_path / "folder").mkdir()
    paths = [tmp_path / "one", tmp_path / "folder" / "two"]
    for path in paths:
        path.write_bytes(b"of a checkpoint")
    names = {path.stat().st_ino: path.name for path in paths}
    events: list[tuple[str, str]] = []

    def note(what: str) -> Any:
        return lambda file, *_: events.append((what, names[os.fstat(file).st_ino]))

    # As a system does that can drop files: not all can.
    monkeypatch.setattr(os, "POSIX_FADV_DONTNEED", 4, raising=False)
    monkeypatch.setattr(os, "posix_fadvise", note("drop"), raising=False)
    monkeypatch.setattr(os, "fsync", note("write"))
    tree = checkpoints.arrays(state_on(mesh_of(data=2), P("data")))
    saved = saved_of(tree, tmp_path)
    reads: list[list[tuple[str, str]]] = []

    def restore(path: Path, _: checkpoints.Shapes) -> checkpoints.Tree:
        assert path == tmp_path
        reads.append([*events])
        events.clear()
        return {name: jax.device_put(np.asarray(x), x.sharding) for name, x in tree.items()}

    orbax: Any = SimpleNamespace(restore=restore)
    checkpoints.measure_restores(orbax, saved, "data=2", saved.shapes)
    expected = [(what, name) for name in ("one", "two") for what in ("write", "drop")]
    assert [sorted(before, key=lambda event: event[1]) for before in reads] == [expected] * 2


def test_a_layout_does_not_matter_and_one_bit_does(tmp_path: Path) -> None:
    tree = checkpoints.arrays(state_on(mesh_of(data=4), P("data")))
    saved = saved_of(tree, tmp_path)
    for spec, axes in ((P("data"), {"data": 2}), (P(), {"data": 2}), (P("data"), {"data": 1})):
        other = checkpoints.arrays(state_on(mesh_of(**axes), spec))
        checkpoints.check_equal(other, saved)
    name = next(name for name, array in tree.items() if array.ndim)
    changed = np.asarray(tree[name]).copy()
    changed[-1, -1] = np.nextafter(changed[-1, -1], np.inf)
    wrong = {**tree, name: jax.device_put(changed, tree[name].sharding)}
    with pytest.raises(
        WrongStepError, match="1 of 2 arrays came back different from what was saved"
    ):
        checkpoints.check_equal(wrong, saved)


@pytest.mark.parametrize("dtype", ["bool", "int8", "bfloat16", "float32", "complex64"])
def test_each_bit_of_each_element_counts_and_where_it_is(dtype: str) -> None:
    values = np.asarray(jnp.arange(8).reshape(2, 4).astype(dtype))
    (right,) = checkpoints.checksums({"": jnp.asarray(values)}).values()
    for number in range(8 * values.nbytes):
        raw = values.copy()
        raw.reshape(-1).view(np.uint8)[number // 8] ^= np.uint8(1 << number % 8)
        if dtype != "bool":  # of which one bit counts
            (wrong,) = checkpoints.checksums({"": jnp.asarray(raw)}).values()
            assert wrong != right
    (swapped,) = checkpoints.checksums({"": jnp.asarray(values[:, ::-1])}).values()
    assert swapped != right


def test_copies_that_differ_are_not_saved_as_one() -> None:
    mesh = mesh_of(data=2)
    copies = [jax.device_put(np.float32(n), device) for n, device in enumerate(mesh.devices)]
    array = jax.make_array_from_single_device_arrays((), NamedSharding(mesh, P()), copies)
    with pytest.raises(WrongStepError, match="different copies"):
        checkpoints.checksums({"": array})


@pytest.mark.parametrize(
    ("axes", "spec", "expected"),
    [
        ({"data": 1}, P("data"), None),
        ({"data": 2}, P("data"), "data=2, devices reversed"),
        ({"data": 4}, P("data"), "data=2"),
        ({"data": 2, "model": 2}, P(None, "model"), "data=2,model=1"),
        ({"data": 2, "model": 4}, P(), "data=1,model=4"),
        ({"data": 3}, P(), "data=3, devices reversed"),
    ],
)
def test_another_mesh_divides_the_state_in_another_way(
    axes: dict[str, int], spec: P, expected: str | None
) -> None:
    mesh = mesh_of(**axes)
    shapes = checkpoints.shapes_of(checkpoints.arrays(state_on(mesh, spec)))
    (_, same), *others = checkpoints.layouts(mesh, shapes).items()
    assert same == shapes
    assert [name for name, _ in others] == ([expected] if expected else [])
    for _, found in others:
        for name, shape in found.items():
            assert shape.sharding.device_set <= set(mesh.devices.flat)
            assert shape.sharding != shapes[name].sharding


def test_objects_of_nnx_are_saved_and_other_things_are_not() -> None:
    model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    assert sorted(array.shape for array in checkpoints.arrays(model).values()) == [(2, 3), (3,)]
    with pytest.raises(UnsupportedError, match=r"its state holds int values, not only jax.Arrays"):
        checkpoints.arrays({"step": 1})


def test_a_disk_without_room_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10))
    mesh = mesh_of(data=2)
    with pytest.raises(UnsupportedError, match=r"may need 396\sB, but only 10\sB is free"):
        checkpoints.measure_checkpoints(training(mesh, P()), mesh, ["sync"], tmp_path)


def test_checkpoints_are_refused_without_their_package_or_folder(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="--checkpoint: needs the package orbax-checkpoint"):
        make_plan(Options(checkpoint=("sync",)), catalogue())
    there = {**catalogue(), "optional": {"orbax-checkpoint": "1"}}
    asked = Options(checkpoint=("async", "sync"), checkpoint_dir=str(tmp_path))
    plan = make_plan(asked, there)
    assert plan.modes == ["async", "sync"]
    assert engine._as_planned(there, plan)["versions"]["orbax-checkpoint"] == "1"
    with pytest.raises(BadInput, match="there is no folder"):
        make_plan(replace(asked, checkpoint_dir=str(tmp_path / "none")), there)
    with pytest.raises(BadInput, match="has no effect without --checkpoint"):
        make_plan(Options(checkpoint_dir=str(tmp_path)), there)


def test_a_report_tells_seconds_bytes_and_bandwidth(tmp_path: Path) -> None:
    plan = synthetic.Plan(
        devices=(2,), ratios={"jit_spmd": 1.0, "pmap": 1.1}, launches=2, checkpoints=True
    )
    directory = synthetic.write(tmp_path, plan)
    synthetic.rewrite(directory, "cells", without_room)
    content = cell_table.build(store.load(directory))
    found = checkpoint_costs(content.comparisons, content.checkpoints)
    assert [(row["implementation"], row["what"]) for row in found] == [
        *(("jit_spmd", what) for what in (
            "save, sync", "save, async", "restore on data=2",
            "restore on data=2, devices reversed",
        )),
        ("pmap", None),
    ]  # fmt: skip
    assert found[0]["bytes_a_second"] == pytest.approx(1e8)
    assert (found[1]["blocking_s"], found[1]["blocking_most_s"]) == (0.05, 0.06)
    assert (found[1]["step_before_s"], found[1]["step_during_s"]) == (0.002, 0.003)
    assert math.isnan(found[0]["step_before_s"])
    caveat = caveats.caveats(content, store.read_manifest(directory))["Phases that failed"]
    assert caveat.startswith("There is no checkpoint of 1 cell, for instance ")
    assert caveat.endswith("/pmap: no room.")
    table = phase_tables.checkpoints(found)
    assert table is not None
    assert "The last state restored on each mesh was compared" in table.facts[0]
    assert {len(row) for row in table.body} == {len(table.shown("text"))}
    without = [f"{figure.main} {figure.note}".strip() for figure in table.body[-1][1:]]
    assert without == ["\N{EN DASH} no room", *["\N{EN DASH}"] * 5]
    assert len(found) == 5
    drawn = page_data.build(content, store.read_manifest(directory))
    assert column(drawn, "checkpoints", "what", "details") == [*[""] * 4, "no room"]
    assert column(drawn, "checkpoints", "bytes_a_second")[0] == 1e8


def without_room(row: dict[str, Any]) -> None:
    if row["implementation"] == "pmap" and "checkpoint" in row:
        nothing = {"state_bytes": 0, "stored_bytes": 0, "saves": {}, "restores": []}
        row["checkpoint"] = {"reason": "no room", **nothing}
