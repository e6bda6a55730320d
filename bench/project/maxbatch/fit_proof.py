"""The proof that a cell fits: a separate process runs some of its steps."""

import json
import sys
from typing import cast

from bench.measure.environment import worker_environment
from bench.measure.processes import host_memory
from bench.measure.processes.guarded import ask
from bench.records.cells import Cell
from bench.records.messages import Catalogue, Fit, cell_request

COMMAND = (sys.executable, "-m", "bench.worker.answer.fit")
TIMEOUT_S = 900.0


def prove(cell: Cell, catalogue: Catalogue) -> Fit:
    """Run some steps of a cell on its mesh, on this machine.

    The cell has a single process and no variant; the catalogue names its files and the platform.
    """
    before = host_memory.read_counters()
    environment = worker_environment(catalogue["platform"], cell.block.mesh.size)
    answer = ask(COMMAND, json.dumps(cell_request(cell, catalogue)), environment, TIMEOUT_S)
    if answer.code == 0:
        return cast("Fit", json.loads(answer.out))
    if answer.code is None:
        return Fit(status="timeout", reason=f"no answer in {TIMEOUT_S:.0f} s", peak_bytes=None)
    killed = answer.ending == "was killed by SIGKILL"
    if "bad_alloc" in "\n".join(answer.tail) or (
        killed and host_memory.killed_by_kernel(before, host_memory.read_counters()) is not False
    ):
        return Fit(status="oom", reason=f"its process {answer.ending}", peak_bytes=None)
    return Fit(status="crashed", reason=f"its process {answer.blame}", peak_bytes=None)
