"""Placement helpers: right shards, clear errors, no aliases."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bench.mesh import MeshShape
from bench.placement import (
    create_data_parallel_sharding,
    place_batch_on_shards,
    replicate,
    unknown_axes,
)
from bench.worker.block import make_mesh


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
        ({"x": np.zeros((6, 2))}, r"\['x'\] has 6 rows, which do not divide into 4 shards"),
        ({"x": np.zeros(4), "scale": np.float32(1)}, r"\['scale'\] is a scalar"),
        (np.zeros(3), "the batch has 3 rows"),
    ],
)
def test_bad_batches_are_named(mesh, batch, message):
    with pytest.raises(ValueError, match=message):
        place_batch_on_shards(batch, create_data_parallel_sharding(mesh))


def test_unknown_data_axis_lists_the_axes(mesh):
    with pytest.raises(ValueError, match="no axis 'batch'; it has: data"):
        create_data_parallel_sharding(mesh, "batch")


def test_replicas_outlive_their_source_and_the_source_outlives_them(mesh):
    source = {"w": jnp.arange(1024.0)}
    copy = replicate(source, mesh)
    donate = jax.jit(lambda tree: jax.tree.map(lambda x: x + 1, tree), donate_argnums=0)
    jax.block_until_ready(donate(copy))
    np.testing.assert_array_equal(source["w"], np.arange(1024.0))
    pointers = {
        shard.data.unsafe_buffer_pointer()
        for shard in replicate(source, mesh)["w"].addressable_shards
    }
    assert len(pointers) == 4
    assert source["w"].unsafe_buffer_pointer() not in pointers


def test_axes_of_size_one_do_not_matter():
    assert unknown_axes(make_mesh(MeshShape.parse("data=2,model=1")), "data") is None
    reason = unknown_axes(make_mesh(MeshShape.parse("data=2,model=2")), "data")
    assert reason == "distributes over data only, and this mesh has model"


def test_a_mesh_that_cannot_be_had_is_an_error():
    with pytest.raises(ValueError, match="needs 16 devices; there are 8"):
        make_mesh(MeshShape.parse("data=16"))
