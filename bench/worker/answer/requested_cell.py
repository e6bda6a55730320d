"""The cell of a request: its problem, mesh and implementation."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn, TextIO, cast

import jax
from jax.sharding import Mesh

from bench.contract import Implementation, Problem, Workload
from bench.records.cells import Block
from bench.records.messages import CellRequest
from bench.worker import event_stream
from bench.worker.file_loader import implementation_files, load
from bench.worker.problems import load_workload, make_mesh, make_problem
from bench.worker.prove.failures import why_unsupported


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
    """Import a cell's files, and make its problem and mesh.

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
    """Answer each line of stdin with a line on stdout, both JSON, and end the process.

    All lines are read before a file is imported, because the file could read them.

    Args:
      question: returns the answer to a request, which is None if stdin is empty. If it raises, the
        process ends with exit code 1.
    """
    requests = sys.stdin.read().splitlines() or ["null"]

    def main(answers: TextIO) -> None:
        for request in requests:
            print(json.dumps(question(json.loads(request))), file=answers)
            jax.clear_caches()  # programs of 1,024 devices take memory

    event_stream.run(main)
