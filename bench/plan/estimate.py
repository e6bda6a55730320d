"""How long a block will take: a rough model, and better figures where runs are stored.

The model is one worker's start, a constant for each arm (its gate and compilation), and the
measuring time asked for. Its constants were read off a two-core CPU host; they are there to
tell minutes from hours before anything was measured. While a run measures, `Remaining` corrects its
estimates by what its launches really took.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from pathlib import Path

from bench.plan.matrix import Plan
from bench.records import store
from bench.records.cells import Block
from bench.records.numbers import clock

WORKER_START_S = 5.0
"""Interpreter, imports, devices, the workload, the machine's ceilings and the gate's truth."""

CACHED = 0.5
"""Share of a first launch's proving and compiling that later ones need: programs are cached."""

ARM_S = {"linear-base": 0.5, "mlp-base": 2.0, "gpt2-nano": 5.0}
"""Gate and compilation of one arm, by workload and size."""

OTHER_ARM_S = 5.0
TRACE_S = 2.0
"""Tracing of one arm."""

_APART = ("measure", "train")
"""Phases that take as long as they are asked to."""

CHECKPOINT_S = 3.0
"""Saving the state of one arm in one mode, again and again, and restoring it."""

_NEWEST_RUNS = 5

History = dict[tuple[str, int, bool], float]
"""Seconds of a launch beside its measuring, by workload-size, number of implementations, and
whether it was the first."""


def read_history(reports: Path, platform: str) -> History:
    """What blocks took in the newest stored runs on the same platform."""
    history: History = {}
    manifests = sorted(reports.glob(f"*/{store.MANIFEST}"), key=lambda path: path.stat().st_mtime)
    for manifest in manifests[-_NEWEST_RUNS:]:
        # A run that cannot be read only makes the estimate rougher.
        with contextlib.suppress(store.StoreError, KeyError, OSError):
            run = store.read(manifest.parent)
            if run.manifest["platform"] == platform:
                history |= _overheads(run)
    return history


def _overheads(run: store.Stored) -> History:
    attempts = {(row["cell"], row["launch"]): row["attempt"] for row in run.rows(store.CELLS)}
    counts = Counter(attempts.values())
    return {
        (
            f"{row['workload']}-{row['size']}",
            counts[row["attempt"]],
            row["launch"] == 0,
        ): sum(seconds for phase, seconds in row["seconds"].items() if phase not in _APART)
        for row in run.blocks
        if row["seconds"]
    }


def block_seconds(block: Block, arms: int, plan: Plan, history: History, launch: int = 0) -> float:
    """Estimate the seconds of one launch of a block with `arms` implementations, at most."""
    name = f"{block.workload}-{block.size}"
    known = history.get((name, arms, launch == 0))
    if known is not None:
        return known + plan.worker["seconds"]
    arm = ARM_S.get(name, OTHER_ARM_S) + (TRACE_S if "trace" in plan.worker["phases"] else 0.0)
    arm += CHECKPOINT_S * len(plan.modes)
    # One arm more is the baseline's twin. Arms that take input are not proved again.
    proving = (arms * (1 + CACHED * len(plan.worker["inputs"])) + 1) * arm
    return WORKER_START_S + proving * (CACHED if launch else 1.0) + plan.worker["seconds"]


class Remaining:
    """How long a run will still take: estimates, scaled by what its launches took so far.

    Args:
      seconds: estimated, of the planned launches.
      budget_s: what all measuring may take, if it is limited; then it may take less.
      more: whether launches may follow the planned ones until intervals are narrow enough.
    """

    def __init__(
        self, seconds: float, budget_s: float | None = None, *, more: bool = False
    ) -> None:
        self._left = seconds
        """Estimated seconds of the launches that have not begun."""
        self._budget_s = budget_s
        self._more = more
        self._started = self._began = time.monotonic()
        self._current = 0.0
        """Estimated seconds of the launch that runs; 0 between launches."""
        self._estimated = self._took = 0.0
        """Seconds of the launches that have ended."""

    def begin(self, seconds: float) -> None:
        """A launch begins that was estimated to take this long."""
        self._began = time.monotonic()
        self._current = seconds
        self._left = max(self._left - seconds, 0.0)

    def end(self, took: float) -> None:
        """It has ended after so many seconds."""
        self._estimated += self._current
        self._took += took
        self._current = 0.0

    def seconds(self, now: float) -> float:
        """What is left at a moment of time.monotonic; 0 if all took longer than was expected."""
        pace = self._took / self._estimated if self._estimated else 1.0
        current = pace * self._current - (now - self._began if self._current else 0.0)
        return pace * self._left + max(current, 0.0)

    def words(self, now: float) -> str:
        """`about 7 min left`; or at most, or at least, so much."""
        if self._budget_s is not None:
            return f"at most {clock(max(self._budget_s - (now - self._started), 0.0))} left"
        left = self.seconds(now)
        if round(left) == 0:
            return "over the estimate" if self._current else "ending"
        return f"{'at least' if self._more else 'about'} {clock(left)} left"
