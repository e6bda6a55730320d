"""Estimates of the duration of launches, from stored runs or else from a rough model.

A launch starts a worker, proves and compiles its arms, measures them in rounds, and may have phases
after these. The newest run of the workload on this machine gives the time of each part. Constants
are for a workload that has never run here; they come from a two-core CPU host.
"""

import contextlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from bench.plan.margins import runs_here
from bench.plan.matrix import Plan
from bench.records import store
from bench.records.arms import TWINS
from bench.records.cells import Block
from bench.records.grouping import grouped
from bench.records.messages import STAGE_OF, Catalogue

WORKER_START_S = 3.0
"""Start of interpreter and devices, imports, the workload, ceilings and the gate's reference."""

AROUND_S = 6.0
"""Planning, before the launches, and building the report, after them."""

CACHED = 0.5
"""Time of repeating an arm's proof and compilation with a cache, relative to the first time."""

ARM_S = {
    "linear": 0.65, "mlp": 2.2, "gpt2": 4.5, "gpt2-nano-512": 13.0, "gpt2-deep": 12.0, "moe": 7.0,
    "gpt2-124m": 35.0,
}  # fmt: skip
"""Seconds to prove and compile one arm, by workload, or by workload and size where that matters;
`gpt2-124m` is a guess for an H100."""

OTHER_ARM_S = 5.0
APART_S = 10.0
"""Extra seconds per launch for an arm with its own processes, to start them and warm them up."""

TURN_S = {"mlp-base": 0.02, "gpt2-nano": 0.03, "gpt2-nano-512": 0.25, "gpt2-deep": 0.1,
          "moe-nano": 0.03}  # fmt: skip
"""Seconds of an arm's shortest turn, of one step per span, where they are enough to matter."""

TRACED = 0.65
"""Time of tracing one arm, relative to its proof and compilation."""

CHECKPOINT_S = 3.0
"""Seconds to save and restore the state of one arm repeatedly in one mode."""


class LaunchTimes(NamedTuple):
    """Seconds of the parts of a launch."""

    start: float
    arm: float
    """To prove and compile an arm, on average."""
    turn: float
    """An arm's shortest turn, of one step per span."""


Kind = tuple[str, bool, bool]
"""A workload with its size; whether the launch is a block's first one, which proves and compiles
everything; and whether some arms have processes of their own."""

History = Mapping[Kind, LaunchTimes]
"""Times of stored launches."""


def read_history(catalogue: Catalogue, reports: Path) -> History:
    """Average the launches of each kind in the newest stored runs of this machine."""
    found: dict[Kind, LaunchTimes] = {}
    for run in runs_here(catalogue, reports):
        with contextlib.suppress(KeyError):  # a run without these makes the estimate rougher
            for kind, each in grouped(_launches(run)).items():  # newer runs win
                found.setdefault(kind, LaunchTimes(*map(fmean, zip(*each, strict=True))))
    return found


def _launches(run: store.Run) -> Iterator[tuple[Kind, LaunchTimes]]:
    for launch in run.launches:
        row, *others = launch.head["blocks"]
        ran = [cell for cell in launch.head["cells"] if cell["status"] != "unsupported"]
        took = defaultdict[str, float](float)
        for worker in (row, *others):
            for phase, seconds in worker["seconds"].items():
                took[STAGE_OF.get(phase, "after")] += seconds
        if took:
            apart = any("foreign" in cell for cell in ran)
            spans = max(row["steps"] * launch.samples.count(b"\n"), 1)
            arm, turn = took["arms"] / (len(ran) + TWINS), took["measure"] / spans
            kind = f"{row['workload']}-{row['size']}", not row["launch"], apart
            yield kind, LaunchTimes(took["start"], arm, turn)


def launch_seconds(
    block: Block, arms: int, plan: Plan, history: History, launch: int = 0, apart: int = 0
) -> float:
    """Estimate a block's launch number `launch`, from 0, with the `arms` arms that can run it.

    `apart` of them have processes of their own.
    """
    name, first = f"{block.workload}-{block.size}", not launch
    of_workload = ARM_S.get(block.workload, OTHER_ARM_S)
    arm_s = ARM_S.get(name, of_workload) * (1.0 if first else CACHED)
    arm_s += APART_S * apart / (arms + TWINS)
    times = LaunchTimes(WORKER_START_S, arm_s, TURN_S.get(name, 0.0))
    for known in (not first, first):
        if past := history.get((name, known, apart > 0)):
            times = past._replace(arm=past.arm * CACHED ** (known - first))
    # Arms with input, and ablated ones, are compiled, but not proved again.
    beside = len(plan.worker["inputs"]) + len(plan.worker["ablations"])
    proved = (arms * (1 + CACHED * beside) + TWINS) * times.arm
    # Rounds of a slow step take longer than planned, because a span has at least one step.
    least = plan.worker["rounds"] * (arms * (1 + beside) + TWINS) * times.turn
    seconds = times.start + proved + max(plan.worker["seconds"], least)
    if first:  # only the first launch has phases after its rounds
        traced = TRACED * times.arm if "trace" in plan.worker["phases"] else 0.0
        seconds += arms * (traced + CHECKPOINT_S * len(plan.modes))
    return seconds
