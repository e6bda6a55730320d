"""Ablated arms: what their compiled programs lack, and how the shares of parts follow from them."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import synthetic
from fakes.catalogue import catalogue
from pages import column

from bench.analyse import cell_table, phase_costs
from bench.contract import TrainStep
from bench.contract.workloads import gpt2, mlp
from bench.plan.matrix import make_plan
from bench.plan.option_values import BadInput
from bench.plan.options import Options
from bench.present import page_data, phase_tables
from bench.records import store
from bench.records.arms import ABLATIONS
from bench.records.mesh import MeshShape
from bench.worker import ablated_arms as worker
from bench.worker.problems import make_mesh
from bench.worker.prove.failures import UnsupportedError
from bench.worker.read.programs import FirstCall, communication, compilers_cost, product_flops
from tests.slow import slow

MESH = make_mesh(MeshShape.parse("data=2"))
PROBLEM = mlp.problem(mlp.Config((64, 128, 128, 64)), 16, "fp32")


def module(name: str) -> Any:
    return importlib.import_module(f"implementations.{name}")


def row_of(name: str, problem: Any, mesh: Any = MESH) -> dict[str, Any]:
    """Figures of a whole step's programs, as the row of its cell has them."""
    built: TrainStep = module(name).build(problem, mesh)
    first = FirstCall(built.step)
    first(built.state, built.place(problem.batch(0)))
    return {
        "communication": communication(first.programs, mesh),
        "product_flops": product_flops(first.programs),
        "cost": compilers_cost(first.programs),
    }


def ablated(name: str, way: str, problem: Any, whole: Mapping[str, Any], mesh: Any = MESH) -> Any:
    arm = worker.ablated_arm(name, way, module(name), whole, problem, mesh)  # type: ignore[arg-type]
    arm.run(2)
    return arm


@pytest.mark.parametrize("name", ["shard_map_pmean", "fsdp_shard_map", "hierarchical_shard_map"])
def test_local_operations_leave_the_products_and_no_collectives(name: str) -> None:
    whole = row_of(name, PROBLEM)
    built = module(name).build(PROBLEM, MESH)
    _, programs = worker.localized(built, built.place(PROBLEM.batch(0)))
    assert whole["communication"]
    assert communication(programs, MESH) == []
    assert product_flops(programs) == pytest.approx(whole["product_flops"], rel=0.01)
    arm = ablated(name, "local", PROBLEM, whole)
    assert arm.name == f"{name}+local"
    assert math.isfinite(float(arm.losses[-1][1]))


@pytest.mark.parametrize("name", ["jit_spmd", "zero1", *slow("shard_map_pmean", "fsdp_shard_map")])
def test_without_its_update_a_step_still_computes_and_reduces_gradients(name: str) -> None:
    whole = row_of(name, PROBLEM)
    rest = row_of(name, worker.without_update(PROBLEM))
    assert rest["product_flops"] == whole["product_flops"]
    assert worker._payload(rest["communication"]) >= worker._payload(whole["communication"])
    assert rest["cost"]["accessed_bytes"] < 0.9 * whole["cost"]["accessed_bytes"]
    built = module(name).build(worker.without_update(PROBLEM), MESH)
    start = jax.tree.map(np.array, built.params(built.state))
    arm = ablated(name, "no-update", PROBLEM, whole)
    jax.tree.map(np.testing.assert_array_equal, start, built.params(arm.state))


@pytest.mark.parametrize("name", slow("jit_spmd", "shard_map_pmean"))
def test_the_forward_pass_has_a_third_of_the_flops_and_no_gradients(name: str) -> None:
    problem = gpt2.problem(gpt2.SIZES["tiny"](), 8, "fp32")
    whole = row_of(name, problem)
    rest = row_of(name, worker.forward_only(problem))
    assert rest["cost"]["flops"] == pytest.approx(whole["cost"]["flops"] / 3, rel=0.2)
    assert worker._payload(rest["communication"]) == 4, "the loss"
    ablated(name, "forward", problem, whole)


def test_a_forward_pass_that_ends_with_gathered_parameters_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="it still gathers the parameters that it returns"):
        ablated("zero1", "forward", PROBLEM, row_of("zero1", PROBLEM))


@pytest.mark.slow
def test_activations_of_stages_and_of_divided_sequences_have_no_gradients_either() -> None:
    for name, axes, changes in (
        ("pipeline_1f1b", "data=1,pipe=2", {"microbatches": 2}),
        ("context_gathered", "data=1,context=2", {}),
    ):
        config = gpt2.Config(layers=2, heads=2, width=16, context=16, vocabulary=256)
        problem = worker.replace(gpt2.problem(config, 8, "fp32"), **changes)
        mesh = make_mesh(MeshShape.parse(axes))
        whole = row_of(name, problem, mesh)
        rest = row_of(name, worker.forward_only(problem), mesh)
        assert rest["cost"]["flops"] < worker.MOST_FORWARD * whole["cost"]["flops"], name


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("jit_spmd", "the compiler inserts its collectives"),
        ("zero1", r"the compiler inserts some of its collectives \(all-gather\)"),
        ("nnx_jit", "its step cannot be traced as one program"),
        ("python_loop", "its compiled programs have no collectives"),
    ],
)
def test_where_the_compiler_inserts_collectives_no_others_replace_them(
    name: str, reason: str
) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        ablated(name, "local", PROBLEM, row_of(name, PROBLEM))


def reduced(payload: int, **more: Any) -> list[Any]:
    return [{"kind": "all-reduce", "payload_bytes": payload, **more}]


@pytest.mark.parametrize(
    ("way", "flops", "rest", "reason"),
    [
        ("local", 900.0, [], "products change with the part, from 900 to"),
        ("no-update", 600.0, reduced(1000), "products change with the part"),
        ("no-update", 900.0, reduced(4), "gradients are not reduced"),
        ("no-update", 900.0, reduced(1000, returned=True), "gradients are not reduced"),
        ("forward", 900.0, [], "without the problem's loss: 100% of the FLOPs stay"),
        ("forward", 300.0, reduced(4, returned=True), "still gathers the parameters"),
    ],
)
def test_what_lacks_another_part_is_refused(
    way: str, flops: float, rest: list[Any], reason: str
) -> None:
    if way == "local":
        flops = 450.0
    with pytest.raises(UnsupportedError, match=reason):
        worker.check_parts(way, 900.0, reduced(1000), flops, rest)


@pytest.mark.parametrize(
    ("own", "to", "expected"),
    [
        ((2, 3), (2, 3), [[0, 1, 2], [3, 4, 5]]),
        ((2, 3), (4, 3), [[0, 1, 2], [3, 4, 5]] * 2),
        ((3,), (2, 3), [[0, 1, 2]] * 2),
        ((4,), (2,), [2, 4]),
        ((2, 2), (2,), [2, 4]),
        ((6,), (3, 2), [[0, 1], [2, 3], [4, 5]]),
    ],
)
def test_a_stand_in_repeats_or_sums_what_it_is_given(own: Any, to: Any, expected: Any) -> None:
    array = jnp.arange(math.prod(own), dtype=jnp.float32).reshape(own)
    found = worker.in_shape(array, to)
    np.testing.assert_array_equal(found, np.array(expected, np.float32))
    assert found.dtype == array.dtype


def test_ablation_is_an_option_of_a_run_but_not_of_a_gate() -> None:
    assert make_plan(Options(), catalogue()).worker["ablations"] == []
    assert make_plan(Options(ablate=True), catalogue()).worker["ablations"] == [*ABLATIONS]
    with pytest.raises(BadInput, match="--ablate: a gate compares only whole steps"):
        make_plan(Options(ablate=True, base_revision="main"), catalogue())


PARTS = {"local": 0.69, "no-update": 0.88, "forward": 0.3}


def test_a_report_tells_the_shares_of_parts_and_ranks_nobody_by_them(tmp_path: Path) -> None:
    plan = synthetic.Plan(
        devices=(2,),
        ratios={"jit_spmd": 1.0, "pmap": 1.1},
        rounds=64,
        noise=0.001,
        ablations=PARTS,
    )
    directory = synthetic.write(tmp_path, plan)
    content = cell_table.build(store.load(directory))
    (block,) = content.comparisons
    assert set(block.claims) == {"pmap"}
    assert not block.input_claims
    assert block.arms == ("jit_spmd", "pmap")
    rows = phase_costs.find([block])
    assert [row["implementation"] for row in rows] == ["jit_spmd", "pmap"]
    for row in rows:
        for way, part in phase_costs.PARTS.items():
            assert row[part] == pytest.approx(1 - PARTS[way], abs=0.01)
            assert row[f"{part}_low"] < 1 - PARTS[way] < row[f"{part}_high"]
            assert row[f"{part}_high"] - row[f"{part}_low"] < 0.04
    said = phase_tables.ablation_sentence(rows[0])
    assert said.startswith(f"Of a step of {rows[0]['cell']}, by ablation: communication 31")
    table = phase_tables.ablations(rows)
    assert len(table.shown("text")) == 4
    drawn = page_data.build(content, store.read_manifest(directory))
    assert column(drawn, "ablations", "update") == pytest.approx([0.12, 0.12], abs=0.01)
    assert set(drawn["blocks"]["samples"][0]) == {"0", "1", "twin"}


def test_a_part_without_a_share_has_a_reason(tmp_path: Path) -> None:
    plan = synthetic.Plan(devices=(2,), ratios={"pmap": 1.0}, ablations=PARTS)
    directory = synthetic.write(tmp_path, plan)

    def refuse(row: Any) -> None:
        row["ablations"]["local"] = "the compiler inserts its collectives"

    synthetic.rewrite(directory, "cells", refuse)
    content = cell_table.build(store.load(directory))
    table = phase_tables.ablations(phase_costs.find(content.comparisons))
    assert table.remarks == [
        "pmap has no share of communication: the compiler inserts its collectives."
    ]
    assert len(table.shown("text")) == 4
