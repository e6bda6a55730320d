"""Mistakes with the shards of parameters and gradients are refused, and some are named."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import optax
import pytest
from jax.sharding import PartitionSpec as P

from bench.contract.placement import shard_mapped_step
from bench.contract.workloads import mlp
from bench.records.mesh import MeshShape
from bench.worker.problems import make_mesh
from bench.worker.prove.failures import WrongStepError
from bench.worker.prove.gate import Gate
from implementations import fsdp_shard_map, tensor_parallel_shard_map, zero1
from tests.slow import slow
from tests.worker.conftest import on_the_host


def gate_of(mesh, programs, **changes):
    """The gate of a problem, in which these fields are replaced."""
    problem = on_the_host(mlp.problem(mlp.SIZES["tiny"](), 8, "fp32"))
    with jax.enable_x64(True):
        exact = mlp.problem(mlp.SIZES["tiny"](), 8, "fp64")
    problem, exact = (replace(each, **changes) for each in (problem, exact))
    shape = MeshShape.parse(mesh)
    return Gate(problem, exact, make_mesh(shape), shape.batch_shards, "fp32", programs)


@pytest.fixture(scope="module")
def gates(programs):
    """Gates by mesh, made once."""
    made = {}

    def gate(mesh):
        if mesh not in made:
            made[mesh] = gate_of(mesh, programs)
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


def test_a_mean_over_the_wrong_axis_is_named(gates, monkeypatch):
    wrong = with_gradients(mean_over_model)(None)
    monkeypatch.setattr(tensor_parallel_shard_map, "shard_mapped_step", wrong)
    why = "the gradients are averaged over `model`, where each device has other shards of them"
    with pytest.raises(WrongStepError, match=why):
        gates("data=1,model=2").prove_exact(tensor_parallel_shard_map)


@pytest.mark.parametrize(
    ("mesh", "axes", "optimizer"),
    [
        ("data=2", "`data`", optax.chain(optax.clip_by_global_norm(0.02), optax.adamw(1e-3))),
        *slow(("data=2,fsdp=2", "`data` or `fsdp`", optax.lamb(1e-3))),
    ],
)
def test_an_optimizer_that_needs_more_than_a_shard_is_named(programs, mesh, axes, optimizer):
    gate = gate_of(mesh, programs, optimizer=optimizer)
    with pytest.raises(WrongStepError, match=f"updates its shards over {axes} alone: see "):
        gate.prove_exact(fsdp_shard_map)


def with_means(axis):
    """Average partial sums of the model's layers, which should be summed."""

    class Wrong(axis):
        def total(self, partial):
            return jax.lax.pmean(partial, self.name)

    return Wrong


def squared(grads, specs):
    return jax.tree.map(lambda leaf, _: leaf * abs(leaf), grads, specs)


@pytest.mark.parametrize(
    ("module", "function", "wrong", "mesh"),
    [
        (fsdp_shard_map, "shard_mapped_step", with_gradients(squared), "data=4"),
        (zero1, "scatter_gradient", from_the_neighbour, "data=4"),
        (tensor_parallel_shard_map, "ModelAxis", with_means, "data=2,model=2"),
        *slow(
            (fsdp_shard_map, "shard_mapped_step", with_gradients(clipped_apart), "data=4"),
            (zero1, "own_shard", from_the_neighbour, "data=4"),
            (fsdp_shard_map, "gather_for_use", used_by_the_neighbour, "data=4"),
        ),
    ],
)
def test_a_mistake_without_a_name_is_refused(gates, monkeypatch, module, function, wrong, mesh):
    monkeypatch.setattr(module, function, wrong(getattr(module, function)))
    with pytest.raises(WrongStepError, match="no known mistake explains them"):
        gates(mesh).prove_exact(module)
