"""Mistakes with the mean of a language model's loss are refused, and named."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace

import jax
import pytest

from bench.contract.workloads import gpt2
from bench.records.mesh import MeshShape
from bench.worker.problems import make_mesh
from bench.worker.prove.failures import WrongStepError
from bench.worker.prove.gate import Gate
from implementations import shard_map_psum
from tests.worker.conftest import on_the_host

SIZE = gpt2.SIZES["tiny"]()


@pytest.fixture(scope="module")
def gate(programs):
    with jax.enable_x64(True):
        exact = gpt2.problem(SIZE, 8, "fp64")
    problem, mesh = on_the_host(gpt2.problem(SIZE, 8, "fp32")), make_mesh(MeshShape.parse("data=2"))
    return Gate(problem, exact, mesh, 2, "fp32", programs)


def multiplied(factor):
    """A step whose loss is multiplied by a factor."""

    def build(problem, mesh):
        def loss(model, batch):
            return factor * problem.loss(model, batch)

        return shard_map_psum.build(replace(problem, loss=loss), mesh)

    return SimpleNamespace(build=build)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "diagnosis"),
    [
        (
            multiplied(SIZE.context),
            "they were summed over the tokens of a sequence and not divided",
        ),
        (multiplied(8 * SIZE.context), "summed over all tokens and not divided"),
    ],
)
def test_a_mistake_is_named(gate, wrong, diagnosis):
    with pytest.raises(WrongStepError) as caught:
        gate.prove_exact(wrong)
    assert re.search(diagnosis, str(caught.value)), caught.value
    assert "no known mistake" not in str(caught.value)
