"""What a process needs that is asked about one cell: its problem, mesh and implementation."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from jax.sharding import Mesh

from bench.cells import Block, StepOptions
from bench.contract import Implementation, Problem, Workload
from bench.mesh import MeshShape
from bench.protocol import CellRequest
from bench.worker.discover import implementation_files, load
from bench.worker.meshes import make_mesh
from bench.worker.problems import load_workload, make_problem


@dataclass(frozen=True)
class Asked:
    """The parts of a cell."""

    block: Block
    mesh: Mesh
    workload: Workload
    problem: Problem
    implementation: Implementation

    @property
    def unsupported(self) -> str:
        """Why the implementation cannot run this; empty if it can."""
        return self.implementation.why_unsupported(self.problem, self.mesh) or ""


def asked(request: CellRequest) -> Asked:
    """Import and make them, on this process's devices.

    Raises:
      Exception: whatever a file raises.
    """
    shape = MeshShape.parse(request["mesh"])
    options = StepOptions(**request["options"])
    block = Block(request["workload"], request["size"], shape, request["batch"], options)
    mesh = make_mesh(shape)
    workload = load_workload(block, request["workload_paths"])
    problem = make_problem(workload, block, options.precision)
    file = implementation_files(request["implementation_paths"])[request["implementation"]]
    return Asked(block, mesh, workload, problem, cast("Implementation", load(file)))


def answer(question: Callable[[CellRequest], Any]) -> None:
    """Read a request from stdin, and write what the question gives for it to stdout, as JSON."""
    request = cast("CellRequest", json.load(sys.stdin))
    stdout, sys.stdout = sys.stdout, sys.stderr  # whatever the files print is not the answer
    json.dump(question(request), stdout)
