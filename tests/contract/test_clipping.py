"""The norm that gradients are clipped by is that of all their shards."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

from bench.contract.clipping import clip_by_global_norm
from bench.records.mesh import MeshShape
from bench.worker.problems import make_mesh

GRADIENTS = {"a": np.arange(8.0), "b": np.ones((4, 2)), "c": np.array(3.0)}
MAX_NORM = 2.0


def clipped(gradients, transformation):
    return transformation.update(gradients, transformation.init(gradients))[0]


def expected(max_norm=MAX_NORM):
    return clipped(jax.tree.map(jnp.array, GRADIENTS), optax.clip_by_global_norm(max_norm))


@pytest.mark.parametrize("max_norm", [MAX_NORM, 1000.0])
def test_whole_gradients_are_clipped_as_by_optax(max_norm):
    found = clipped(jax.tree.map(jnp.array, GRADIENTS), clip_by_global_norm(max_norm))
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6), found, expected(max_norm))


def test_shards_and_replicas_are_each_counted_once():
    mesh = make_mesh(MeshShape.parse("data=2,model=4"))
    specs = {"a": P("model"), "b": P("data"), "c": P()}
    clip = partial(clipped, transformation=clip_by_global_norm(MAX_NORM))
    found = jax.jit(jax.shard_map(clip, mesh=mesh, in_specs=(specs,), out_specs=specs))(GRADIENTS)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6), found, expected())


def test_optax_alone_would_clip_every_shard_by_its_own_norm():
    """What this is for: the planted fault shows."""
    mesh = make_mesh(MeshShape.parse("data=2"))
    clip = partial(clipped, transformation=optax.clip_by_global_norm(MAX_NORM))
    gradients = {"a": GRADIENTS["a"]}
    over = jax.shard_map(clip, mesh=mesh, in_specs=P("data"), out_specs=P("data"))
    assert not np.allclose(jax.jit(over)(gradients)["a"], clip({"a": jnp.arange(8.0)})["a"])
