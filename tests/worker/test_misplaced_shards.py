"""Mistakes with the shards of parameters and gradients are refused, and some are named."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from bench.contract import ModelAxis
from bench.contract.placement import shard_mapped_step
from bench.contract.workloads import mlp
from bench.records.mesh import MeshShape
from bench.worker.problems import make_mesh
from bench.worker.prove.failures import WrongStepError
from bench.worker.prove.gate import Gate
from implementations import fsdp_shard_map, tensor_parallel_shard_map, zero1
from tests.slow import slow
from tests.worker.conftest import on_the_host


@pytest.fixture(scope="module")
def gates(programs):
    """Gates by mesh, made once."""
    made = {}

    def gate(mesh):
        if mesh not in made:
            problem = on_the_host(mlp.problem(mlp.SIZES["tiny"](), 8, "fp32"))
            with jax.enable_x64(True):
                exact = mlp.problem(mlp.SIZES["tiny"](), 8, "fp64")
            shape = MeshShape.parse(mesh)
            made[mesh] = Gate(
                problem, exact, make_mesh(shape), shape.batch_shards, "fp32", programs
            )
        return made[mesh]

    return gate


def handed_on(axis, shard, spec):
    """Give each device the shard of the one before; what is replicated stays."""
    size = jax.lax.axis_size(axis)
    ring = [(index, (index + 1) % size) for index in range(size)]
    return jax.lax.ppermute(shard, axis, ring) if spec != P() else shard


def from_the_neighbour(function):
    """Let a function of (axis, array, spec) return what the device before gets."""
    return lambda axis, leaf, spec: handed_on(axis, function(axis, leaf, spec), spec)


def used_by_the_neighbour(gather):
    """Let each device pass on its shard before all are gathered."""
    return lambda axis, leaf, spec: gather(axis, handed_on(axis, leaf, spec), spec)


def with_gradients(changed):
    """Let each device change its gradients, given with their specs, before they are summed."""

    def replacing(_):
        def wrong(problem, mesh, state, axes, loss_and_gradients, sum_over):
            specs = jax.tree.map(lambda leaf: leaf.sharding.spec, state[0])

            def of_device(params, batch):
                loss, grads = loss_and_gradients(params, batch)
                return loss, changed(grads, specs)

            return shard_mapped_step(problem, mesh, state, axes, of_device, sum_over)

        return wrong

    return replacing


def mean_over_model(grads, specs):
    def mean(leaf, spec):
        if "model" not in spec:
            return leaf
        return jax.lax.pcast(jax.lax.pmean(leaf, "model"), "model", to="varying")

    return jax.tree.map(mean, grads, specs)


def clipped_apart(grads, specs):
    own = [*zip(jax.tree.leaves(grads), jax.tree.leaves(specs), strict=True)]
    norm = sum(jnp.square(leaf).sum() for leaf, spec in own if spec != P()) ** 0.5
    scale = jnp.minimum(1, 0.02 / norm)
    return jax.tree.map(lambda leaf, spec: leaf if spec == P() else scale * leaf, grads, specs)


def of_the_first(partial, axis):
    """Return the partial sum of the first device of an axis."""
    return jax.lax.psum(jnp.where(jax.lax.axis_index(axis) == 0, partial, 0), axis)


def with_axis(total):
    """Let the model's code reduce partial sums over an axis in another way."""

    def replacing(_):
        return type("WrongAxis", (ModelAxis,), {"total": lambda self, x: total(x, self.name)})

    return replacing


CASES = {
    "a mean over the wrong axis": (
        *(tensor_parallel_shard_map, "shard_mapped_step", with_gradients(mean_over_model)),
        *("data=1,model=2", "the gradients are averaged over `model`, where each device has other"),
    ),
    "a mean of partial sums": (
        *(tensor_parallel_shard_map, "ModelAxis", with_axis(jax.lax.pmean), "data=2,model=2"),
        "partial sums over `model` are averaged instead of summed",
    ),
    "a single partial sum": (
        *(tensor_parallel_shard_map, "ModelAxis", with_axis(of_the_first), "data=2,model=2"),
        "partial sums over `model` are not summed",
    ),
    "clipped apart": (
        *(fsdp_shard_map, "shard_mapped_step", with_gradients(clipped_apart), "data=4"),
        "the shards of the gradients along `data` are multiplied by different factors, as when ",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_mistake_is_named(gates, monkeypatch, name):
    module, function, wrong, mesh, diagnosis = CASES[name]
    monkeypatch.setattr(module, function, wrong(getattr(module, function)))
    with pytest.raises(WrongStepError) as caught:
        gates(mesh).prove_exact(module)
    assert re.search(diagnosis, str(caught.value)), caught.value
    assert "no known mistake" not in str(caught.value)


def squared(grads, specs):
    return jax.tree.map(lambda leaf, _: leaf * abs(leaf), grads, specs)


@pytest.mark.parametrize(
    ("module", "function", "wrong"),
    [
        (fsdp_shard_map, "shard_mapped_step", with_gradients(squared)),
        (zero1, "scatter_gradient", from_the_neighbour),
        *slow(
            (zero1, "own_shard", from_the_neighbour),
            (fsdp_shard_map, "gather_for_use", used_by_the_neighbour),
        ),
    ],
)
def test_a_mistake_without_a_name_is_refused(gates, monkeypatch, module, function, wrong):
    monkeypatch.setattr(module, function, wrong(getattr(module, function)))
    with pytest.raises(WrongStepError, match="no known mistake explains them"):
        gates("data=4").prove_exact(module)
