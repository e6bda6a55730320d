"""The optional phases after the rounds."""

from collections.abc import Callable, Mapping
from typing import Any

from bench.worker.block_session import BlockSession
from bench.worker.phases.checkpoints import save_and_restore_cells
from bench.worker.phases.training import train_cells
from bench.worker.prove.gate import Gate
from bench.worker.trace.profiler import trace_cells

AfterRounds = Callable[[BlockSession, Gate, Mapping[str, Any]], None]
"""Runs a phase on the cells that are ok, with the phase's settings from the job.

It may add to the rows of cells and send its own events. A phase must not cost a cell its time: it
stores a failure as the reason why a cell lacks the phase's figures. If the worker dies
nevertheless, the supervisor keeps everything sent before.
"""

PHASES: dict[str, AfterRounds] = {
    "trace": trace_cells,
    "checkpoint": save_and_restore_cells,
    "train": train_cells,  # last: it frees the arms' memory
}
"""Phases by their names in the job, in the order in which they run."""
