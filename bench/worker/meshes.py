"""Meshes of this process's devices."""

import jax
from jax.sharding import AxisType, Mesh

from bench.records.mesh import MeshShape


def make_mesh(shape: MeshShape) -> Mesh:
    """Make a mesh of the first devices.

    Raises:
      ValueError: there are fewer devices than the mesh needs.
    """
    devices = jax.devices()
    if shape.size > len(devices):
        raise ValueError(f"mesh {shape} needs {shape.size} devices; there are {len(devices)}")
    return jax.make_mesh(
        tuple(size for _, size in shape.axes),
        tuple(name for name, _ in shape.axes),
        axis_types=(AxisType.Auto,) * len(shape.axes),
        devices=devices[: shape.size],
    )
