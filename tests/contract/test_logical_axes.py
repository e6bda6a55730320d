"""Names of dimensions become shardings by a table of rules; faults are named."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from bench.contract.logical_axes import (
    TENSOR_PARALLEL,
    constrain,
    constrained_activations,
    partition_specs,
    path_of,
    undivided,
)
from bench.contract.workloads import gpt2, linear, mlp
from bench.records.mesh import MeshShape
from bench.worker.problems import make_mesh


def specs_of(problem, mesh):
    specs = partition_specs(problem, TENSOR_PARALLEL, make_mesh(MeshShape.parse(mesh)))
    return {path_of(path): spec for path, spec in jax.tree_util.tree_leaves_with_path(specs)}


def test_columns_and_rows_of_gpt2_are_megatrons():
    specs = specs_of(gpt2.problem(gpt2.SIZES["tiny"](), 8, "fp32"), "data=2,model=2")
    assert specs["tokens/table/embedding"] == P("model", None)
    assert specs["blocks/0/attention/qkv/kernel"] == P(None, None, "model", None)
    assert specs["blocks/0/attention/out/product/kernel"] == P("model", None, None)
    assert specs["blocks/0/up/kernel"] == P(None, "model")
    assert specs["blocks/0/down/product/kernel"] == P("model", None)
    assert specs["blocks/0/down/bias"] == P(None)
    assert specs["norm/scale"] == P(None)


def test_what_does_not_divide_or_has_no_axis_stays_whole():
    config = replace(gpt2.SIZES["tiny"](), vocabulary=257)
    specs = specs_of(gpt2.problem(config, 8, "fp32"), "model=8")
    assert specs["blocks/0/attention/qkv/kernel"] == P(None, None, None, None), "two heads"
    assert specs["tokens/table/embedding"] == P("model", None), "384 rows"
    specs = specs_of(gpt2.problem(gpt2.SIZES["tiny"](), 8, "fp32"), "data=4")
    assert set(map(len, specs.values())) == {1, 2, 3, 4}
    assert all(axis is None for spec in specs.values() for axis in spec)


def test_names_must_fit_the_parameters():
    problem = mlp.problem(mlp.SIZES["tiny"](), 8, "fp32")
    for names, message in (
        ({"layers/9/kernel": ("embed",)}, "no parameter's path ends in layers/9/kernel"),
        (
            {"layers/0/kernel": ("embed",)},
            r"layers/0/kernel is \('embed',\), but .* shape \(8, 16\)",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            specs_of(replace(problem, axis_names=names), "model=2")


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (
            gpt2.problem(gpt2.SIZES["tiny"](), 8, "fp32"),
            "size 2, which is not divisible by model=8",
        ),
        (linear.problem(linear.SIZES["tiny"](), 8, "fp32"), "no dimension named mlp or heads"),
        (mlp.problem(mlp.SIZES["tiny"](), 8, "fp32"), None),
    ],
)
def test_what_must_be_divided_and_cannot_be_has_a_reason(problem, reason):
    mesh = make_mesh(MeshShape.parse("model=8"))
    found = undivided(problem, TENSOR_PARALLEL, mesh, "mlp", "heads")
    assert found == reason or (reason is not None and reason in (found or ""))


def test_activations_are_constrained_where_that_is_asked_for():
    mesh = make_mesh(MeshShape.parse("data=2,model=2"))

    def square(x):
        return constrain(x * x, ("batch", None, "embed"))

    x = jnp.ones((4, 2, 2))
    assert "sharding_constraint" not in str(jax.make_jaxpr(square)(x))
    with constrained_activations(TENSOR_PARALLEL, mesh):
        # Another function: jax remembers what it has traced.
        assert "sharding_constraint" in str(jax.make_jaxpr(partial(square))(x))
