"""The sharding of a cell's arrays, read by a child process that builds the cell."""

import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import cast

from bench.measure.catalogue import file_faults, read_catalogue
from bench.measure.environment import worker_environment
from bench.measure.processes.guarded import ChildError, ask
from bench.plan.matrix import make_plan
from bench.plan.option_values import BadInput
from bench.plan.options import Options
from bench.records.cells import StepOptions
from bench.records.mesh import MeshShape
from bench.records.messages import Inspection, cell_request

COMMAND = (sys.executable, "-m", "bench.worker.answer.asked_cells", "inspect")
TIMEOUT_S = 600.0

_PARTS = {"workloads": "workload", "meshes": "mesh", "devices": "mesh", "batch_sizes": "batch",
          "clip_norm": "clip", "implementations": "implementation"}  # fmt: skip
"""Parts of a cell's name whose option has another name."""


def read_layout(
    name: str, implementation_paths: Sequence[str] = (), workload_paths: Sequence[str] = ()
) -> Inspection:
    """Build a cell in a child process and read the sharding of its arrays.

    The cell is named as `gpt2-nano/data=2,model=2/b16/fp32/NAME`; the paths are those of files
    outside implementations/ and bench/contract/workloads/.

    Raises:
      BadInput: no cell with this name can be measured here; the message says why.
      ChildError: the child process failed, or could not build the cell.
    """
    if faults := file_faults(implementation_paths, workload_paths):
        raise BadInput(faults)
    options = _options(name, implementation_paths, workload_paths)
    catalogue = read_catalogue(implementation_paths, workload_paths)
    plan = make_plan(options, catalogue, called=lambda name: f"the cell's {_PARTS.get(name, name)}")
    cell = next(c for c in plan.cells if c.implementation == options.implementations[0])
    environment = worker_environment(catalogue["platform"], cell.block.mesh.size)
    answer = ask(COMMAND, json.dumps(cell_request(cell, catalogue)), environment, TIMEOUT_S)
    if answer.code is None:
        raise ChildError(f"{cell.name} was not built within {TIMEOUT_S:.0f} s")
    if answer.code:
        raise ChildError(f"{cell.name} cannot be built. Its last lines:\n{answer.quoted_lines()}")
    return cast("Inspection", json.loads(answer.out))


def _options(name: str, implementations: Sequence[str], workloads: Sequence[str]) -> Options:
    """Make the options of a run that would measure only this cell."""
    try:
        workload, mesh, batch, text, implementation = name.split("/")
    except ValueError:
        example = "gpt2-nano/data=2/b16/fp32/python_loop"
        raise BadInput([f"{name!r} is not a cell; cells are named like {example}"]) from None
    devices = None
    with suppress(ValueError):  # a mesh that cannot be read is a fault of the plan
        devices = str(MeshShape.parse(mesh).size)
    try:
        step = StepOptions.parse(text)
    except ValueError as error:
        raise BadInput([str(error)]) from error
    if step.variant:
        raise BadInput([f"{name!r}: a variant does not change the sharding; leave it out"])
    return Options(
        workloads=(workload,),
        implementations=(implementation,),
        meshes=(mesh,),
        devices=devices,
        batch_sizes=(batch.removeprefix("b"),),
        precision=(step.precision,),
        microbatches=(str(step.microbatches),),
        scan_layers=("yes",) if step.scan_layers else (),
        remat=(step.remat,) if step.remat else (),
        clip_norm=None if step.clip_norm is None else str(step.clip_norm),
        scaling="strong",
        implementation_path=tuple(implementations),
        workload_path=tuple(workloads),
    )
