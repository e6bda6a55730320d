"""Parts of sequences are all of it once; memory shrinks with a device's part."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from bench.contract.divided_sequences import contiguous_part, why_not_divided, zigzag_part
from bench.contract.workloads import gpt2, mlp, moe
from bench.records.mesh import MeshShape
from bench.worker.problems import make_mesh
from implementations import context_ring, context_ulysses

CONFIG = gpt2.Config(layers=1, heads=4, width=16, context=24, vocabulary=256)


@pytest.mark.parametrize(
    ("part", "first"), [(contiguous_part, [0, 1, 2, 3]), (zigzag_part, [0, 1, 14, 15])]
)
def test_every_token_is_on_one_device(part, first):
    mesh = make_mesh(MeshShape.parse("context=4"))
    split = jax.shard_map(part, mesh=mesh, in_specs=P(), out_specs=P(None, "context"))
    tokens = np.asarray(jax.jit(split)(jnp.arange(16)[None]))[0]
    assert tokens[:4].tolist() == first
    assert sorted(tokens) == list(range(16))


@pytest.mark.parametrize(
    ("implementation", "mesh", "reason"),
    [
        (context_ulysses, "data=2,context=4", None),
        (context_ulysses, "data=1,context=8", "4 heads are not divisible by context=8"),
        (context_ring, "data=1,context=8", "24 tokens do not divide evenly into 16 parts"),
        (context_ring, "context=4", "needs the axis data"),
        (context_ring, "data=1,context=2,model=2", "this mesh also has model"),
    ],
)
def test_what_cannot_be_divided_says_why(implementation, mesh, reason):
    problem = gpt2.problem(CONFIG, 8, "fp32")
    found = implementation.why_unsupported(problem, make_mesh(MeshShape.parse(mesh)))
    assert found == reason or reason in found


@pytest.mark.parametrize("workload", [mlp, moe])
def test_a_workload_without_a_sequence_says_so(workload):
    """The models of moe have sequences, which the workload does not declare."""
    mesh = make_mesh(MeshShape.parse("data=2,context=2"))
    problem = workload.problem(workload.SIZES["tiny"](), 8, "fp32")
    reason = "the workload declares no sequence to divide (`sequence`)"
    assert why_not_divided(problem, mesh) == reason


def planned_bytes(ways: int, context: int) -> int:
    problem = gpt2.problem(replace(CONFIG, context=context), 2, "fp32")
    step = context_ring.build(problem, make_mesh(MeshShape.parse(f"data=1,context={ways}")))
    compiled = step.step.lower(step.state, step.place(problem.batch(0))).compile()
    return compiled.memory_analysis().temp_size_in_bytes


@pytest.mark.slow
def test_a_ring_of_devices_holds_a_longer_sequence():
    """Scores of 256 tokens are 1 MiB a layer; a device of four never has a quarter of a row."""
    alone, ring = planned_bytes(1, 256), planned_bytes(4, 256)
    assert ring < alone / 4
    assert planned_bytes(4, 512) < alone
