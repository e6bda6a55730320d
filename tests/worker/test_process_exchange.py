"""A mesh over several processes: real workers, as the supervisor starts them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.measure import worker_report
from bench.measure.supervisor import Launch
from bench.records.cells import Block, StepOptions
from bench.records.mesh import MeshShape
from bench.records.paths import ROOT
from bench.worker import process_exchange
from bench.worker.prove.failures import WrongStepError, in_all_processes
from tests.fakes.settings import worker_settings

ALIKE = {
    *("shard_map_pmean", "shard_map_in_backward", "shard_map_bucketed", "nnx_jit_cached"),
    "compressed_bf16",
}
"""Those that place their state and reduce their gradients as another file does."""
BUILT_IN = sorted(
    path.stem for path in (ROOT / "implementations").glob("[a-z]*.py") if path.stem not in ALIKE
)

PLANTED = {
    # Rank 1 computes with other numbers, and no device of its own can see it.
    "drifting": """
def build(problem, mesh):
    right = jit_spmd.build(problem, mesh)
    def params(state):
        def spoil(leaf):
            shards = [s.data * (1 + 1e-12 * jax.process_index()) for s in leaf.addressable_shards]
            return jax.make_array_from_single_device_arrays(leaf.shape, leaf.sharding, shards)
        return jax.tree.map(spoil, right.params(state))
    return dataclasses.replace(right, params=params)
""",
    "alone": """
def why_unsupported(problem, mesh):
    return "not on rank 1" if jax.process_index() else None
""",
    "raising": """
def build(problem, mesh):
    if jax.process_index():
        raise RuntimeError("no such luck")
    return jit_spmd.build(problem, mesh)
""",
}
HEAD = """
import dataclasses, jax
from implementations import jit_spmd
from implementations.jit_spmd import build, why_unsupported
"""


def measured(mesh: str, names: list[str], paths: list[Path], workload: str) -> dict:
    """Cells by implementation, and the one block's samples."""
    shape = MeshShape.parse(mesh)
    options = StepOptions(processes=2, microbatches=2 if "pipe" in mesh else 1)
    name, _, size = workload.partition("-")
    # Approximate steps train as well only where each device has more than a few samples.
    block = Block(name, size, shape, 64 if name == "mlp" else 8, options)
    worker = worker_settings(rounds=2, implementation_paths=[str(path) for path in paths])
    attempts = Launch(block, "cpu", "jit_spmd", worker, silence_s=200).run(names)
    cells = {row["implementation"]: row for one in attempts for row in one.cells}
    return {"cells": cells, "samples": [row for one in attempts for row in one.samples]}


@pytest.mark.slow
def test_processes_agree_on_what_one_of_them_finds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(worker_report, "PEER_S", 8.0)
    paths = []
    for name, text in PLANTED.items():
        paths.append(tmp_path / f"{name}.py")
        paths[-1].write_text(HEAD + text)
    found = measured("data=2", ["jit_spmd", *PLANTED], paths, "linear-tiny")
    cells = found["cells"]
    apart = "process 1 of 2 failed where others did not: "
    assert {name: row["status"] for name, row in cells.items()} == {
        "jit_spmd": "ok",
        "drifting": "wrong",
        "alone": "unsupported",
        "raising": "crashed",
    }, json.dumps(cells, indent=1)
    assert "in process 0 and 1" in cells["drifting"]["reason"]
    assert cells["alone"]["reason"] == apart + "not on rank 1"
    assert cells["raising"]["reason"].startswith(apart + "RuntimeError: no such luck")
    for row in found["samples"]:
        assert len(row["process_throughput_ns"]) == 2
        assert row["throughput_ns"] == max(row["process_throughput_ns"])
    assert cells["jit_spmd"]["processes"] == 2
    (reduction,) = cells["jit_spmd"]["communication"]
    assert (reduction["kind"], reduction["axes"], reduction["members"]) == (
        "all-reduce",
        ["data"],
        2,
    )


CEILINGS = """
import jax, os
from bench.worker.time import ceilings
from bench.contract.workloads.linear import *
if jax.process_index():
    real = ceilings.filled
    def filled(mesh, *array):
        if mesh.size == 2:  # for the all-reduce, which is for both processes
            {end}
        return real(mesh, *array)
    ceilings.filled = filled
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "measured"),
    [("pass", True), ("raise MemoryError('no such luck')", False), ("os._exit(1)", False)],
)
def test_ceilings_are_measured_in_all_processes_or_in_none(
    end: str, measured: bool, tmp_path: Path
) -> None:
    path = tmp_path / "planted.py"
    path.write_text(CEILINGS.format(end=end))
    worker = worker_settings(rounds=2, workload_paths=[str(path)])
    options = StepOptions(processes=2)
    block = Block("planted", "tiny", MeshShape.parse("data=2"), 8, options)
    (attempt,) = Launch(block, "cpu", "jit_spmd", worker, silence_s=200).run(["jit_spmd"])
    assert [(row["status"], row["reason"]) for row in attempt.cells] == [("ok", "")]
    found = attempt.block["ceilings"]
    assert (found is not None) == measured
    if found is not None:
        assert all(figure is not None and figure > 0 for figure in found.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mesh", "workload", "right"),
    [
        ("data=2", "mlp-tiny", 11),
        ("data=1,fsdp=2", "mlp-tiny", 2),
        ("data=2,model=2", "mlp-tiny", 3),
        ("data=2,pipe=2", "gpt2-nano", 1),
    ],
)
def test_implementations_are_right_over_two_processes(mesh: str, workload: str, right: int) -> None:
    cells = measured(mesh, BUILT_IN, [], workload)["cells"]
    ended = {name: (row["status"], row["reason"]) for name, row in cells.items()}
    assert {status for status, _ in ended.values()} == {"ok", "unsupported"}, ended
    assert sum(status == "ok" for status, _ in ended.values()) >= right, ended
    assert ended["python_loop"][0] == "unsupported"


def test_a_failure_before_an_exchange_ends_it_in_all_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The others, which are within the same action, must not take it for a value."""
    sent = []

    def exchange(value: Any) -> list[Any]:
        sent.append(value)
        return [value, {process_exchange.ENDED: ["oom", "no room on rank 1"]}]

    monkeypatch.setattr(process_exchange, "_exchange", exchange)
    with pytest.raises(process_exchange.EndedError, match="no room on rank 1") as ended:
        in_all_processes(lambda: process_exchange.gather("an arrival"))
    assert ended.value.status == "oom"
    assert sent == ["an arrival"], "and no further exchange, which the others do not take part in"


def test_what_is_raised_while_an_exchange_ends_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended = {process_exchange.ENDED: ["oom", "no room on rank 1"]}
    sent = []
    monkeypatch.setattr(process_exchange, "_exchange", lambda own: sent.append(own) or [own, ended])

    def action() -> None:
        try:
            process_exchange.gather("an arrival")
        finally:
            raise WrongStepError("the file replaces the clock")

    with pytest.raises(process_exchange.EndedError, match="no room on rank 1"):
        in_all_processes(action)
    assert sent == ["an arrival"]


def test_the_process_that_fails_says_so_in_place_of_its_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process_exchange, "_exchange", lambda value: ["an arrival", value])
    failed = []

    def action() -> None:
        raise WrongStepError("why")

    with pytest.raises(process_exchange.EndedError, match="why"):
        in_all_processes(action, lambda *why: failed.append(why))
    assert failed == [("wrong", "why")]
