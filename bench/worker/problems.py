"""A block's mesh, its problem from workload and step options, and the cell of a request."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, Mesh, NamedSharding

from bench.contract import PRECISIONS, Implementation, Problem, Workload
from bench.contract.clipping import clip_by_global_norm
from bench.contract.placement import fsdp_specs
from bench.records.cells import Block, StepOptions
from bench.records.mesh import MeshShape
from bench.records.messages import CellRequest
from bench.records.printable import readable
from bench.worker.file_loader import implementation_files, load, workload_files
from bench.worker.prove.failures import WrongStepError, why_unsupported


def load_workload(block: Block, paths: list[str]) -> Workload:
    """Import a block's workload, from bench/contract/workloads/ or from outside."""
    return cast("Workload", load(workload_files(paths)[block.workload]))


def make_problem(workload: Workload, block: Block, precision: str) -> Problem:
    """Make a block's problem at any precision; WrongStepError if the workload makes no Problem."""
    config = workload.SIZES[block.size]()
    more: dict[str, Any] = {"scan_layers": True} if block.options.scan_layers else {}
    problem = workload.problem(config, block.batch, precision, block.options.remat, **more)
    if not isinstance(problem, Problem):
        raise WrongStepError(f"problem returns an object of type {type(problem).__name__}")
    for name in ("units_per_step", "model_flops"):
        value = getattr(problem, name)
        if not (isinstance(value, int | float | np.number) and 0 < value < np.inf):
            raise WrongStepError(f"{name} is {value!r}; it must be a positive number")
    problem = with_options(problem, block.options)
    cell = {**block.fields, "workload_file": cast("Any", workload).__file__}
    compute = jnp.dtype(PRECISIONS[precision].compute).name
    outline = {"compute": compute, **problem.outline, "cell": cell}
    return replace(problem, outline=outline, unit=readable(problem.unit))


def drawn(problem: Problem, devices: Sequence[Any], memory: float) -> Problem:
    """Draw a problem's initial parameters and model state, and copy them to the host.

    Parameters that take more than half of one device's `memory`, in bytes, are drawn in shards over
    this process's `devices`.
    """
    mesh, draw = Mesh(np.array(devices), ("shards",)), problem.draw
    if 2 * sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(jax.eval_shape(draw))) > memory:
        specs = fsdp_specs(problem, mesh, "shards")
        draw = jax.jit(draw, out_shardings=jax.tree.map(partial(NamedSharding, mesh), specs))
    start, start_state = jax.device_get((draw(), problem.draw_state()))
    return replace(problem, start=start, start_state=start_state)


def with_options(problem: Problem, options: StepOptions) -> Problem:
    """Apply the step options that work the same way for every workload."""
    norm, outline = options.clip_norm, dict(problem.outline)
    if norm is not None:
        if rule := outline.get("optimizer"):  # of two norms, the smaller one takes effect
            outline["optimizer"] = {**rule, "clip_norm": min(norm, rule.get("clip_norm", norm))}
        clipped = optax.chain(clip_by_global_norm(norm), problem.optimizer)
        problem = replace(problem, optimizer=clipped, outline=outline)
    return replace(problem, microbatches=options.microbatches)


def make_mesh(shape: MeshShape) -> Mesh:
    """Make a mesh of the first devices; ValueError if there are fewer than it needs."""
    devices = jax.devices()
    if shape.size > len(devices):
        raise ValueError(f"mesh {shape} needs {shape.size} devices; there are {len(devices)}")
    names, sizes = zip(*shape.axes, strict=True)
    kinds = (AxisType.Auto,) * len(names)
    return jax.make_mesh(sizes, names, axis_types=kinds, devices=devices[: shape.size])


@dataclass(frozen=True)
class RequestedCell:
    """A cell, loaded on this process's devices."""

    block: Block
    mesh: Mesh
    workload: Workload
    problem: Problem
    implementation: Implementation

    def why_unsupported(self) -> str:
        """Return why the implementation cannot run this cell; empty if it can."""
        if hasattr(self.implementation, "FOREIGN"):
            return "its arrays and programs are in processes of another framework"
        return why_unsupported(self.implementation, self.problem, self.mesh)


def load_cell(request: CellRequest) -> RequestedCell:
    """Import a cell's files, and make its problem and mesh."""
    block = Block.of(request)
    mesh = make_mesh(block.mesh)
    workload = load_workload(block, request["workload_paths"])
    problem = make_problem(workload, block, block.options.precision)
    file = implementation_files(request["implementation_paths"])[request["implementation"]]
    return RequestedCell(block, mesh, workload, problem, cast("Implementation", load(file)))
