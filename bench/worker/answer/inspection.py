"""Prints the placement of a cell's arrays as JSON, in its own process, on the cell's mesh."""

from bench.records.messages import CellRequest, Inspection
from bench.worker.answer.requested_cell import answer_requests, load_cell
from bench.worker.read.array_layouts import inspection


def inspect(request: CellRequest) -> Inspection:
    """Build the cell's step, and describe its state and a batch; no step runs."""
    cell = load_cell(request)
    if why := cell.why_unsupported():
        return inspection(cell.mesh, None, why=why)
    step = cell.implementation.build(cell.problem, cell.mesh)
    return inspection(cell.mesh, step, step.place(cell.problem.batch(0)))


if __name__ == "__main__":
    answer_requests(inspect)
