"""Mistakes with the labels and the mean of a language model are refused, and named."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
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


def with_labels(changed, factor=1):
    """A step whose tokens and labels are changed, and whose loss is multiplied by a factor."""

    def build(problem, mesh):
        sequence = problem.sequence

        def loss(model, batch):
            return factor * sequence.loss(model, changed(*sequence.split(batch)))

        return shard_map_psum.build(replace(problem, loss=loss), mesh)

    return SimpleNamespace(build=build)


def unchanged(tokens, labels):
    return tokens, labels


def smoothed(problem, mesh):
    sequence = problem.sequence

    def loss(model, batch):
        tokens, labels = sequence.split(batch)

        def of_all(label):
            return sequence.loss(model, (tokens, 0 * labels + label))

        mean = jax.lax.map(of_all, jnp.arange(SIZE.vocabulary, dtype=labels.dtype)).mean()
        return 0.9 * sequence.loss(model, (tokens, labels)) + 0.1 * mean

    return shard_map_psum.build(replace(problem, loss=loss), mesh)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "diagnosis"),
    [
        (
            with_labels(lambda tokens, labels: (tokens, jnp.roll(labels, -1, 1))),
            r"array 1 of `sequence.split\(batch\)` is shifted by -1 along axis 1",
        ),
        (
            with_labels(lambda tokens, _: (tokens, tokens)),
            r"array 1 of `sequence.split\(batch\)` is replaced by array 0",
        ),
        (
            with_labels(unchanged, SIZE.context),
            "they were summed over the tokens of a sequence and not divided",
        ),
        (with_labels(unchanged, 8 * SIZE.context), "summed over all tokens and not divided"),
        (
            SimpleNamespace(build=smoothed),
            f"the labels are smoothed: 0.1 of them are spread over all {SIZE.vocabulary}",
        ),
    ],
)
def test_a_mistake_is_named(gate, wrong, diagnosis):
    with pytest.raises(WrongStepError) as caught:
        gate.prove_exact(wrong)
    assert re.search(diagnosis, str(caught.value)), caught.value
    assert "no known mistake" not in str(caught.value)
