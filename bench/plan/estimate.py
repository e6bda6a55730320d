"""Estimates of the duration of blocks, from stored runs or else from a rough model.

The model adds the start of a worker, a time per arm for proof and compilation, and the requested
measuring time. An earlier run of the workload gives the time per arm. Other constants come from a
two-core CPU host; they only distinguish minutes from hours. During a run, `Remaining` scales the
estimates by the actual durations of its launches.
"""

import contextlib
import time
from collections import Counter
from pathlib import Path

from bench.plan.matrix import Plan
from bench.records import store
from bench.records.cells import Block
from bench.records.numbers import clock

WORKER_START_S = 5.0
"""Start of interpreter and devices, imports, the workload, ceilings and the gate's reference."""

CACHED = 0.5
"""Share of a first launch's proof and compilation that later launches need, with a cache."""

ARM_S = {"linear-base": 0.5, "mlp-base": 2.0, "gpt2-nano": 5.0, "gpt2-124m": 35.0}
"""Proof and compilation of one arm, by workload and size; `gpt2-124m` is a guess for an H100."""

OTHER_ARM_S = 5.0
TRACE_S = 2.0
"""Tracing one arm."""

TWINS = 1
"""Arms of a launch besides the implementations: the baseline's twin."""

_PER_ARM = ("gate", "compile")
"""Phases whose time grows with the number of arms and does not depend on options."""

CHECKPOINT_S = 3.0
"""Saving and restoring the state of one arm repeatedly in one mode."""

History = dict[tuple[str, bool], tuple[float, int]]
"""By workload-size and whether it was the first launch, seconds of launches outside of measuring
and worker start, and the number of arms that they cover."""


def read_history(reports: Path, platform: str) -> History:
    """Read the overheads of blocks in the newest stored runs on the same platform."""
    history: History = {}
    for run in store.newest(reports):
        with contextlib.suppress(KeyError):  # a run without these makes the estimate rougher
            if run.manifest["platform"] == platform:
                history = _overheads(run) | history
    return history


def _overheads(run: store.Run) -> History:
    arms = Counter(row["attempt"] for row in run.cell_rows if row["status"] != "unsupported")
    history: History = {}
    for row in run.block_rows:
        if row["seconds"]:
            key = f"{row['workload']}-{row['size']}", row["launch"] == 0
            apart = sum(row["seconds"].get(phase, 0.0) for phase in _PER_ARM)
            seconds, count = history.get(key, (0.0, 0))
            history[key] = seconds + apart, count + arms[row["attempt"]] + TWINS
    return history


def block_seconds(block: Block, arms: int, plan: Plan, history: History, launch: int = 0) -> float:
    """Estimate an upper limit of the seconds of one launch of a block.

    Args:
      block: the block to measure.
      arms: number of implementations that can run it.
      plan: the plan of the run.
      history: overheads of earlier runs.
      launch: number of the launch, from 0.
    """
    name = f"{block.workload}-{block.size}"
    if (name, launch == 0) in history:
        seconds, count = history[name, launch == 0]
        arm = seconds / count
    else:
        arm = ARM_S.get(name, OTHER_ARM_S) * (CACHED if launch else 1.0)
    # Arms with input are compiled, but not proved again.
    proving = (arms * (1 + CACHED * len(plan.worker["inputs"])) + TWINS) * arm
    more = (TRACE_S if "trace" in plan.worker["phases"] else 0.0) + CHECKPOINT_S * len(plan.modes)
    later = 0.0 if launch else arms * more  # only the first launch has phases after its rounds
    return WORKER_START_S + proving + later + plan.worker["seconds"]


class Remaining:
    """The remaining time of a run: estimates, scaled by the pace of its launches so far.

    Args:
      seconds: estimate for all planned launches.
      budget_s: limit for all measuring, if there is one.
      more: whether launches beyond the planned ones may follow until intervals are narrow enough.
    """

    def __init__(
        self, seconds: float, budget_s: float | None = None, *, more: bool = False
    ) -> None:
        self._left = seconds
        """Estimate for the launches that have not begun."""
        self._budget_s = budget_s
        self._more = more
        self._started = self._began = time.monotonic()
        self._current = 0.0
        """Estimate for the current launch; 0 between launches."""
        self._estimated = self._took = 0.0
        """Seconds of completed launches."""

    def begin(self, seconds: float) -> None:
        """Record the start of a launch with this estimate."""
        self._began = time.monotonic()
        self._current = seconds
        self._left = max(self._left - seconds, 0.0)

    def end(self, took: float) -> None:
        """Record the end of the launch and its duration in seconds."""
        self._estimated += self._current
        self._took += took
        self._current = 0.0

    def seconds(self, now: float) -> float:
        """Return the seconds left at a time.monotonic time; 0 if the estimate is exceeded."""
        pace = self._took / self._estimated if self._estimated else 1.0
        current = pace * self._current - (now - self._began if self._current else 0.0)
        return pace * self._left + max(current, 0.0)

    def words(self, now: float) -> str:
        """Return the time left in words, such as `about 7 min left`."""
        if self._budget_s is not None:
            return f"at most {clock(max(self._budget_s - (now - self._started), 0.0))} left"
        left = self.seconds(now)
        if round(left) == 0:
            return "over the estimate" if self._current else "ending"
        return f"{'at least' if self._more else 'about'} {clock(left)} left"
