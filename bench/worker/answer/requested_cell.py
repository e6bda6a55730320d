"""What a process needs that is asked about cells: their problem, mesh and implementation."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn, TextIO, cast

from jax.sharding import Mesh

from bench.contract import Implementation, Problem, Workload
from bench.records.cells import Block
from bench.records.messages import CellRequest
from bench.worker import event_stream
from bench.worker.file_loader import implementation_files, load
from bench.worker.meshes import make_mesh
from bench.worker.problems import load_workload, make_problem


@dataclass(frozen=True)
class RequestedCell:
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


def load_cell(request: CellRequest) -> RequestedCell:
    """Import and make them, on this process's devices.

    Raises:
      Exception: whatever a file raises.
    """
    block = Block.of(request)
    mesh = make_mesh(block.mesh)
    workload = load_workload(block, request["workload_paths"])
    problem = make_problem(workload, block, block.options.precision)
    file = implementation_files(request["implementation_paths"])[request["implementation"]]
    return RequestedCell(block, mesh, workload, problem, cast("Implementation", load(file)))


def answer_requests(question: Callable[[Any], Any]) -> NoReturn:
    """Answer each line of stdin by a line of stdout, both JSON, and end the process.

    All lines are read before a file is imported, which could read them. Each is answered at once.

    Args:
      question: a request's answer. What it raises ends the process with exit code 1.
    """
    requests = sys.stdin.read().splitlines()

    def main(said: TextIO) -> None:
        for request in requests:
            print(json.dumps(question(json.loads(request))), file=said)

    event_stream.run(main)
