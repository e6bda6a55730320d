"""Estimates of the duration of launches, from stored runs or else from a rough model.

A launch starts a worker, proves and compiles its arms, measures them in rounds, and may have phases
after these. Earlier runs of the workload give the time of each part, on this machine if there are
any. Constants are for a workload that has never run; they come from a two-core CPU host, and are
scaled by how long other workloads took on this machine.
"""

import contextlib
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from bench.plan.matrix import Plan
from bench.records import store
from bench.records.arms import TWINS
from bench.records.cells import Block
from bench.records.messages import STAGE_OF

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


@dataclass
class PastLaunches:
    """Totals over stored launches of a workload: counts, and the seconds that they took."""

    launches: int = 0
    start_s: float = 0.0
    arms: float = 0.0
    """Arms proved, compiled and spot-checked; one with its own processes counts as several."""
    arms_s: float = 0.0
    turns: int = 0
    """Turns that were measured; `turns_s` is their time if every span had only one step."""
    turns_s: float = 0.0


Key = tuple[str, bool]
"""A workload with its size, and whether its proofs and programs were new."""


@dataclass
class History:
    """Stored launches."""

    of: dict[Key, PastLaunches] = field(default_factory=dict)
    pace: float = 1.0
    """Time that arms took on this machine, relative to what the constants say."""

    def arm_s(self, name: str, *, new: bool) -> float:
        """Return the seconds of an arm's proof and compilation."""
        for known in (new, not new):
            past = self.of.get((name, known), PastLaunches())
            if past.arms:
                return CACHED ** (known - new) * past.arms_s / past.arms
        return self.pace * _default_arm_s(name, new)


def read_history(reports: Path, platform: str, memory_bytes: int) -> History:
    """Read the newest stored runs on a platform, preferring those with this host's memory."""
    here: dict[Key, PastLaunches] = {}
    elsewhere: dict[Key, PastLaunches] = {}
    for run in store.newest(reports):
        with contextlib.suppress(KeyError):  # a run without these makes the estimate rougher
            if run.manifest["platform"] == platform:
                same = run.manifest["host"]["memory_bytes"] == memory_bytes
                known = here if same else elsewhere
                known |= _past(run) | known  # newer runs win
    took = sum(past.arms_s for past in here.values())
    default = sum(past.arms * _default_arm_s(*key) for key, past in here.items() if past.arms_s)
    return History(elsewhere | here, took / default if default else 1.0)


def _past(run: store.Run) -> dict[Key, PastLaunches]:
    arms, kept, apart = Counter[str](), Counter[str](), Counter[str]()
    for cell in run.cell_rows:
        kept[cell["attempt"]] += "compiled_in" in cell
        apart[cell["attempt"]] += "foreign" in cell
        # Arms with input and ablated ones take turns too; those with a reason do not exist.
        ways = {**(cell.get("inputs") or {}), **(cell.get("ablations") or {})}
        beside = sum(not reason for reason in ways.values())
        arms[cell["attempt"]] += (cell["status"] != "unsupported") * (1 + beside)
    turns, found = run.turns, dict[Key, PastLaunches]()
    for row in run.block_rows:
        if row["seconds"]:
            every, many = arms[row["attempt"]] + TWINS, apart[row["attempt"]]
            new = not row["launch"] and 2 * kept[row["attempt"]] < arms[row["attempt"]]
            key = f"{row['workload']}-{row['size']}", new
            past, of = found.setdefault(key, PastLaunches()), defaultdict[str, float](float)
            for phase, seconds in row["seconds"].items():
                of[STAGE_OF.get(phase, "after")] += seconds
            past.launches += 1
            past.start_s += of["start"]
            past.arms += every - many + many * _arms_apart(key[0]) / (1.0 if new else CACHED)
            past.arms_s += of["arms"]
            if row["steps"]:
                past.turns += turns[row["attempt"]]
                past.turns_s += of["measure"] / row["steps"]
    return found


def _default_arm_s(name: str, new: bool) -> float:
    of_workload = ARM_S.get(name.partition("-")[0], OTHER_ARM_S)
    return ARM_S.get(name, of_workload) * (1.0 if new else CACHED)


def _arms_apart(name: str) -> float:
    """Return how many new arms take as long as one in processes of its own, without a cache."""
    return 1 + APART_S / _default_arm_s(name, new=True)


def launch_stages(
    block: Block, arms: int, plan: Plan, history: History, launch: int = 0, kept: int = 0,
    apart: int = 0,
) -> dict[str, float]:  # fmt: skip
    """Estimate a block's launch number `launch`, from 0, with the `arms` arms that can run it.

    Returns the seconds of its parts. The proof and the programs of `kept` of them are cached;
    `apart` have processes of their own.
    """
    name = f"{block.workload}-{block.size}"
    new = 0.0 if launch or not arms else 1 - kept / arms
    arm_s = new * history.arm_s(name, new=True) + (1 - new) * history.arm_s(name, new=False)
    mostly = new > 0.5  # noqa: PLR2004
    past = history.of.get((name, mostly)) or history.of.get((name, not mostly), PastLaunches())
    # Arms with input, and ablated ones, are compiled, but not proved again.
    beside = len(plan.worker["inputs"]) + len(plan.worker["ablations"])
    proved = (arms * (1 + CACHED * beside) + TWINS - apart) * arm_s
    proved += apart * _arms_apart(name) * history.arm_s(name, new=True)
    # Rounds of a slow step take longer than planned, because a span has at least one step.
    turn = past.turns_s / past.turns if past.turns else history.pace * TURN_S.get(name, 0.0)
    least = plan.worker["rounds"] * (arms * (1 + beside) + TWINS) * turn
    traced = TRACED * history.arm_s(name, new=True) if "trace" in plan.worker["phases"] else 0.0
    more = traced + history.pace * CHECKPOINT_S * len(plan.modes)
    return {
        "start": past.start_s / past.launches if past.launches else WORKER_START_S,
        "arms": proved,
        "measure": max(plan.worker["seconds"], least),
        # Only the first launch has phases after its rounds.
        "after": 0.0 if launch else arms * more,
    }
