"""What a problem promises to strategies: microbatches, parts, and state that is made sharded."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from bench.contract import ModelAxis
from bench.contract.logical_axes import TENSOR_PARALLEL, partition_specs, shapes_of_params
from bench.contract.model_state import state_of
from bench.contract.placement import create_sharded_state, fsdp_specs
from bench.contract.workloads import gpt2, mlp, resnet, vae
from bench.records.mesh import MeshShape
from bench.worker.problems import make_mesh
from bench.worker.prove.carried_state import words
from bench.worker.read.device_memory import largest_program
from bench.worker.read.programs import live_programs, new_programs
from tests.slow import slow

close = partial(np.testing.assert_allclose, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("count", [4, *slow(1, 2)])
def test_microbatches_add_up_to_the_batch(count):
    with jax.enable_x64(True):
        problem = replace(mlp.problem(mlp.SIZES["tiny"](), 8, "fp64"), microbatches=count)
        params, loss_fn = problem.functional()
        value_and_grad = jax.jit(jax.value_and_grad(loss_fn))
        found = jax.jit(problem.over_microbatches(value_and_grad))(params, problem.batch(0))
        jax.tree.map(close, found, value_and_grad(params, problem.batch(0)))


@pytest.mark.parametrize("count", [2, *slow(1)])
def test_a_model_has_the_gradients_of_its_parameters_and_keeps_its_state(count):
    config = resnet.Config(side=4, widths=(4,), blocks=1)
    problem = replace(resnet.problem(config, 8, "fp32"), microbatches=count)
    params, model_state, loss_fn = problem.functional_with_state()
    gradients = problem.over_microbatches(jax.value_and_grad(loss_fn, has_aux=True))
    (loss, after), grads = jax.jit(gradients)(params, model_state, problem.batch(0))
    model = problem.model()
    found = nnx.jit(problem.model_gradients)(model, problem.batch(0))
    near = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6)
    jax.tree.map(near, (found[0], nnx.to_pure_dict(found[1])), (loss, grads))
    jax.tree.map(near, *(jax.tree.map(words, each) for each in (state_of(model), after)))


def test_only_one_microbatch_is_alive_at_a_time():
    whole = mlp.problem(mlp.Config((64, 256, 256, 64)), 4096, "fp32")
    parts = replace(whole, microbatches=16)
    temporary = []
    for problem in (whole, parts):
        step = jax.jit(problem.over_microbatches(jax.value_and_grad(problem.loss_function())))
        compiled = step.lower(shapes_of_params(problem), problem.batch(0)).compile()
        temporary.append(compiled.memory_analysis().temp_size_in_bytes)
    assert temporary[1] < temporary[0] / 2


@pytest.mark.parametrize("workload", [mlp, *slow(gpt2, vae)])
def test_parts_of_a_model_are_its_shards(workload):
    """A device's part has the shapes that the rules leave of the whole, and the same loss."""
    mesh = make_mesh(MeshShape.parse("model=2"))
    with jax.enable_x64(True):
        problem = workload.problem(workload.SIZES["tiny"](), 4, "fp64")
        params, whole = problem.functional()
        specs = partition_specs(problem, TENSOR_PARALLEL, mesh)
        part = problem.loss_function(ModelAxis("model", 2))
        run = jax.jit(
            jax.shard_map(
                jax.value_and_grad(part), mesh=mesh, in_specs=(specs, P()), out_specs=(P(), specs)
            )
        )
        jax.tree.map(
            close,
            run(params, problem.batch(0)),
            jax.jit(jax.value_and_grad(whole))(params, problem.batch(0)),
        )


@pytest.mark.parametrize("start", [False, True])
def test_state_is_made_sharded(start):
    """No device holds more than its part, while it is made or after."""
    mesh = make_mesh(MeshShape.parse("data=2,fsdp=4"))
    problem = mlp.problem(mlp.SIZES["tiny"](), 8, "fp32")
    drawn = jax.device_get(problem.draw())
    if start:
        problem = replace(problem, start=drawn)
    params, opt_state = create_sharded_state(problem, mesh, fsdp_specs(problem, mesh, "fsdp"))
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6), jax.device_get(params), drawn)
    shards = [leaf.addressable_shards[0].data.size for leaf in jax.tree.leaves((params, opt_state))]
    whole = sum(leaf.size for leaf in jax.tree.leaves(drawn))
    # AdamW keeps two numbers a parameter, and counts.
    assert sum(shards) == pytest.approx(3 * whole / 4, abs=2)


@pytest.mark.parametrize(
    "rule", [optax.novograd, partial(optax.adafactor, min_dim_size_to_factor=8)]
)
def test_state_of_other_shapes_than_the_parameters_is_replicated(rule):
    """Adafactor keeps two vectors for a matrix, and NovoGrad one number for a parameter."""
    mesh = make_mesh(MeshShape.parse("fsdp=4"))
    problem = replace(mlp.problem(mlp.SIZES["tiny"](), 8, "fp32"), optimizer=rule(1e-3))
    params, opt_state = create_sharded_state(problem, mesh, fsdp_specs(problem, mesh, "fsdp"))
    shapes = {leaf.shape for leaf in jax.tree.leaves(params)}
    other = [leaf for leaf in jax.tree.leaves(opt_state) if leaf.shape not in shapes]
    assert {True} == {leaf.sharding.is_fully_replicated for leaf in other if leaf.size}
    matrices = [leaf for leaf in jax.tree.leaves(opt_state) if leaf.ndim > 1]
    assert not any(leaf.sharding.is_fully_replicated for leaf in matrices)


def test_a_device_never_holds_the_whole_model_while_its_state_is_made(monkeypatch):
    """One program draws parameters and makes AdamW's numbers, and plans memory for no whole."""
    mesh = make_mesh(MeshShape.parse("fsdp=8"))
    problem = mlp.problem(mlp.SIZES["base"](), 8, "fp32")
    whole = sum(4 * leaf.size for leaf in jax.tree.leaves(shapes_of_params(problem)))
    compiled = []  # keeps the program alive
    jit = jax.jit
    monkeypatch.setattr(jax, "jit", lambda *a, **k: compiled.append(jit(*a, **k)) or compiled[-1])
    before = live_programs()
    state = create_sharded_state(problem, mesh, fsdp_specs(problem, mesh, "fsdp"))
    memory = largest_program(new_programs(live_programs(), before))
    assert memory["output_bytes"] == pytest.approx(3 * whole / 8, rel=0.01)
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(state)) == pytest.approx(3 * whole, rel=0.01)
    assert memory["total_bytes"] < whole


def test_noise_belongs_to_the_image_wherever_it_is_computed():
    mesh = make_mesh(MeshShape.parse("data=4"))
    numbers = jnp.arange(1000)
    noise_of = jax.jit(partial(vae.noise_of, latent=4))
    whole = noise_of(numbers)
    sharded = noise_of(jax.device_put(numbers, NamedSharding(mesh, P("data"))))
    own = jax.shard_map(noise_of, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(numbers)
    np.testing.assert_array_equal(whole, sharded)
    np.testing.assert_array_equal(whole, own)
    np.testing.assert_array_equal(whole[3:5], noise_of(numbers[3:5]))
    assert np.std(whole) == pytest.approx(1, abs=0.05)


def test_a_model_with_state_beside_its_parameters_is_refused_by_name():
    problem = replace(
        mlp.problem(mlp.SIZES["tiny"](), 8, "fp32"),
        make_model=lambda: nnx.BatchNorm(3, rngs=nnx.Rngs(0)),
    )
    with pytest.raises(
        ValueError, match=r"beside its parameters \(mean, var\), which this step would not"
    ):
        problem.functional()
