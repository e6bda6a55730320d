"""Placement helpers: right shards, clear errors, no aliases."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P

from bench.contract.placement import (
    create_data_parallel_sharding,
    place_batch_on_shards,
    place_model_state_on_shards,
    place_nnx_state_on_shards,
    reduce_gradients_across_devices,
    unknown_axes,
)
from bench.records.mesh import MeshShape
from bench.worker.problems import make_mesh


@pytest.fixture(scope="module")
def mesh():
    return make_mesh(MeshShape.parse("data=4"))


def test_rows_go_to_devices_in_order(mesh):
    batch = {"x": np.arange(8), "y": np.ones((8, 3))}
    placed = place_batch_on_shards(batch, create_data_parallel_sharding(mesh))
    assert [shard.data.tolist() for shard in placed["x"].addressable_shards] == [
        [0, 1],
        [2, 3],
        [4, 5],
        [6, 7],
    ]
    assert {shard.data.shape for shard in placed["y"].addressable_shards} == {(2, 3)}


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"x": np.zeros((6, 2))}, r"partitioned 4 times.* 6 \(full shape: \(6, 2\)"),
        ({"x": np.zeros(4), "scale": np.float32(1)}, "at least 1.* value of rank 0"),
        (np.zeros(3), r"partitioned 4 times.* 3 \(full shape: \(3,\)"),
    ],
)
def test_batches_that_cannot_be_split_are_refused(mesh, batch, message):
    with pytest.raises(ValueError, match=message):
        place_batch_on_shards(batch, create_data_parallel_sharding(mesh))


def test_an_unknown_data_axis_is_refused(mesh):
    with pytest.raises(ValueError, match=r"batch.* is not found in mesh.*data"):
        create_data_parallel_sharding(mesh, "batch")


def test_replicas_outlive_their_source_and_the_source_outlives_them(mesh):
    source = {"w": jnp.arange(1024.0)}
    copy = place_model_state_on_shards(source, mesh)
    donate = jax.jit(lambda tree: jax.tree.map(lambda x: x + 1, tree), donate_argnums=0)
    jax.block_until_ready(donate(copy))
    np.testing.assert_array_equal(source["w"], np.arange(1024.0))
    pointers = {
        shard.data.unsafe_buffer_pointer()
        for shard in place_model_state_on_shards(source, mesh)["w"].addressable_shards
    }
    assert len(pointers) == 4
    assert source["w"].unsafe_buffer_pointer() not in pointers


def test_state_is_divided_by_the_rules_for_its_paths(mesh):
    state = {"up": {"kernel": jnp.ones((8, 4)), "bias": jnp.ones(4)}, "step": jnp.zeros(())}
    placed = place_model_state_on_shards(state, mesh, {"kernel": P("data"), "up": P(None)})
    assert placed["up"]["kernel"].addressable_shards[0].data.shape == (2, 4)
    assert placed["up"]["bias"].sharding.is_fully_replicated
    assert placed["step"].sharding.is_fully_replicated
    with pytest.raises(ValueError, match="that matches 'down'; the paths are: step, up/bias"):
        place_model_state_on_shards(state, mesh, {"down": P("data")})
    with pytest.raises(ValueError, match="'shard'; it is 'replicate' or a PartitionSpec by path"):
        place_model_state_on_shards(state, mesh, "shard")


def test_nnx_state_is_divided_by_filters(mesh):
    model = nnx.Linear(8, 4, rngs=nnx.Rngs(0))
    state = nnx.state(nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param))
    rules = [(nnx.PathContains("kernel"), P("data")), (..., P())]
    placed = place_nnx_state_on_shards(state, mesh, rules)
    shapes = {leaf.shape: leaf.addressable_shards[0].data.shape for leaf in jax.tree.leaves(placed)}
    assert shapes == {(8, 4): (2, 4), (4,): (4,), (): ()}
    with pytest.raises(ValueError, match="nothing is left that matches PathContains"):
        place_nnx_state_on_shards(state, mesh, [(nnx.PathContains("bais"), P("data"))])


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize(("reduce_type", "expected"), [("mean", 2.5), ("sum", 10.0)])
def test_gradients_are_reduced_whether_axes_are_checked_or_not(
    mesh, check_vma, reduce_type, expected
):
    """Each device's loss is w x, with x = 1 .. 4; and one gradient is the device's own."""

    def own(w, x):
        mine = jax.lax.pcast(w, "data", to="varying") if check_vma else w
        grads = {
            "shared": jax.grad(lambda w: (w * x).sum())(w),
            "own": jax.grad(lambda w: (w * x).sum())(mine),
        }
        return reduce_gradients_across_devices(grads, reduce_type, "data")

    over = {"mesh": mesh, "in_specs": (P(), P("data")), "out_specs": P(), "check_vma": check_vma}
    found = jax.jit(jax.shard_map(own, **over))(jnp.float32(0), jnp.arange(1.0, 5))
    assert {name: float(value) for name, value in found.items()} == {
        "shared": expected, "own": expected,
    }  # fmt: skip


def test_gradients_are_reduced_in_pmap():
    found = jax.pmap(
        lambda x: reduce_gradients_across_devices({"g": x}, "mean", "i"), axis_name="i"
    )(jnp.arange(4.0))
    np.testing.assert_array_equal(found["g"], [1.5] * 4)


def test_an_unknown_reduction_is_refused():
    with pytest.raises(ValueError, match="reduce_type is 'median'; it is 'mean' or 'sum'"):
        jax.vmap(lambda x: reduce_gradients_across_devices(x, "median", "i"), axis_name="i")(
            jnp.ones(2)
        )


def test_axes_of_size_one_do_not_matter():
    assert unknown_axes(make_mesh(MeshShape.parse("data=2,model=1")), "data") is None
    reason = unknown_axes(make_mesh(MeshShape.parse("data=2,model=2")), "data")
    assert reason == "distributes only over data, but this mesh also has model"
    alone = make_mesh(MeshShape.parse("data=2"))
    assert unknown_axes(alone, "data", "pipe") == "needs the axis pipe, which this mesh lacks"
    lacks = unknown_axes(alone, "fsdp", "model")
    assert lacks == "needs the axes fsdp and model, which this mesh lacks"


def test_a_mesh_that_cannot_be_had_is_an_error():
    with pytest.raises(ValueError, match="needs 16 devices; there are 8"):
        make_mesh(MeshShape.parse("data=16"))
