"""Construction of a block's mesh, and of its problem from its workload and step options."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import jax
import jax.numpy as jnp
import optax
from jax.sharding import AxisType, Mesh

from bench.contract import PRECISIONS, Problem, Workload
from bench.contract.clipping import clip_by_global_norm
from bench.records.cells import Block, StepOptions
from bench.records.mesh import MeshShape
from bench.worker.file_loader import load, workload_files


def load_workload(block: Block, paths: list[str]) -> Workload:
    """Import a block's workload, from bench/contract/workloads/ or from outside."""
    return cast("Workload", load(workload_files(paths)[block.workload]))


def make_problem(workload: Workload, block: Block, precision: str) -> Problem:
    """Make the block's problem at a precision, which need not be the block's own."""
    config = workload.SIZES[block.size]()
    more: dict[str, Any] = {"scan_layers": True} if block.options.scan_layers else {}
    problem = workload.problem(config, block.batch, precision, block.options.remat, **more)
    problem = with_options(problem, block.options)
    cell = {**block.fields, "workload_file": cast("Any", workload).__file__}
    compute = jnp.dtype(PRECISIONS[precision].compute).name
    return replace(problem, outline={"compute": compute, **problem.outline, "cell": cell})


def with_options(problem: Problem, options: StepOptions) -> Problem:
    """Apply the step options that work the same way for every workload."""
    if options.clip_norm is not None:
        clipped = optax.chain(clip_by_global_norm(options.clip_norm), problem.optimizer)
        problem = replace(problem, optimizer=clipped, outline=_clipped(problem, options.clip_norm))
    return replace(problem, microbatches=options.microbatches)


def _clipped(problem: Problem, norm: float) -> Mapping[str, Any]:
    """Add clipping to an outline; of two norms, the smaller one takes effect."""
    if not problem.outline:
        return {}
    rule = problem.outline["optimizer"]
    norm = min(norm, rule.get("clip_norm", norm))
    return {**problem.outline, "optimizer": {**rule, "clip_norm": norm}}


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
