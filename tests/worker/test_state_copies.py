"""Copies of states on the host make states with the same arrays, placed as they were."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from bench.records.mesh import MeshShape
from bench.worker.problems import make_mesh
from bench.worker.prove.state_reader import StateCopy


def test_a_state_outlives_its_donation_with_its_replicas_and_numbers():
    mesh = make_mesh(MeshShape.parse("data=2"))
    whole, divided = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
    each = [jax.device_put(np.float32(i), d) for i, d in enumerate(mesh.devices.flat)]
    state = {
        "replicas": jax.make_array_from_single_device_arrays((), whole, each),
        "shards": jax.device_put(jnp.arange(4.0), divided),
        "key": jax.device_put(jax.random.key(3), whole),
        "anywhere": jnp.ones(2),
        "host": np.zeros(2),
        "calls": 3,
    }
    copied = StateCopy(state)
    first = StateCopy(state, replicas=False).restored()
    jax.tree.map(lambda x: x.delete() if isinstance(x, jax.Array) else None, state)
    made = copied.restored()
    assert [float(shard.data) for shard in made["replicas"].addressable_shards] == [0.0, 1.0]
    assert [float(shard.data) for shard in first["replicas"].addressable_shards] == [0.0, 0.0]
    assert made["shards"].sharding == divided
    np.testing.assert_array_equal(made["shards"], np.arange(4.0))
    assert jax.random.key_data(made["key"]).tolist() == [0, 3]
    assert made["anywhere"].committed is False
    assert made["host"].tolist() == [0.0, 0.0]
    assert made["calls"] == 3
