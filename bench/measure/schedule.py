"""The schedule of launches: passes over all blocks, then the block with the widest interval."""

from __future__ import annotations

import itertools
import math
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from bench.analyse.verdicts import AlphaSpending, Claim, claims, compare
from bench.plan.base_revisions import Bases
from bench.plan.matrix import Plan
from bench.records.arms import TWIN, implementation_of, input_opponents
from bench.records.cells import Block, Cell
from bench.records.rows import Look, SampleRow

if TYPE_CHECKING:
    import pandas as pd

    from bench.records.store import Run

MAX_LAUNCHES = 64
"""Limit on the launches of a block: its intervals are not expected to become narrow enough."""


@dataclass
class BlockState:
    """The stored results of a block."""

    launches: set[int] = field(default_factory=set)
    """Numbers of the stored launches."""
    samples: list[SampleRow] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    cells: list[Mapping[str, Any]] = field(default_factory=list)
    """Cell rows of all launches."""
    seconds: float = 0.0
    """Wall time of the last launch."""

    @property
    def next_launch(self) -> int:
        """Number of the next launch: the first that is missing or damaged."""
        return next(number for number in itertools.count() if number not in self.launches)

    @property
    def failed(self) -> set[str]:
        """Implementations that failed in some launch; they are not tried again."""
        return {row["implementation"] for row in self.cells if row["status"] != "ok"}

    def is_open(self, implementation: str, launches: int) -> bool:
        """Tell whether an implementation has fewer launches than this, and none that failed."""
        done = sum(row["implementation"] == implementation for row in self.cells)
        return done < launches and implementation not in self.failed

    def proved(self, launch: int) -> tuple[str, ...]:
        """List the implementations whose proof an earlier launch has stored."""
        return tuple(
            row["implementation"]
            for row in self.cells
            if row["status"] == "ok" and row["launch"] < launch
        )


class Schedule:
    """The order of a run's launches, and the rule that ends them.

    Args:
      plan: the plan of the run.
      bases: in a gate, the earlier revisions that implementations are compared with.
    """

    def __init__(self, plan: Plan, bases: Bases | None = None) -> None:
        self.plan = plan
        self.bases = bases
        self.blocks: defaultdict[str, BlockState] = defaultdict(BlockState)
        self.compared_cells: list[str] = []
        """Names of the cells that a gate compares with their base."""
        self._stored_s = 0.0
        """Wall time of the stored launches of a resumed run."""

    def resume(self, run: Run) -> None:
        """Continue after the stored launches of a run."""
        for row in rows_of(run.samples):
            self.blocks[row["block"]].samples.append(cast("SampleRow", row))
        for row in rows_of(run.cells):
            self.blocks[row["block"]].cells.append(row)
        for row in rows_of(run.blocks):
            state = self.blocks[row["block"]]
            state.looks += row["looks"]
            state.launches.add(row["launch"])
            state.seconds = sum(row["seconds"].values())
            self._stored_s += state.seconds

    @property
    def passes(self) -> int:
        """Launches that every block gets; a budget's others go where the interval is widest."""
        return 1 if self.plan.budget_s is not None else self.plan.launches

    @property
    def budget_left_s(self) -> float | None:
        """Seconds of the budget that stored launches have left; None without a budget."""
        return None if self.plan.budget_s is None else self.plan.budget_s - self._stored_s

    def missing_launches(self, block: Block, arms: Sequence[str]) -> int:
        """Count the passes that are not stored for all of these arms."""
        return sum(bool(self._open(block, arms, n + 1)) for n in range(self.passes))

    def compare_with_bases(self, selected: Mapping[Block, Sequence[str]]) -> None:
        """Set the cells that a gate compares; they share its error rate."""
        if self.bases is not None:
            self.compared_cells = [
                Cell(block, name).name
                for block, arms in selected.items()
                for name in self.bases.opponents(arms)
            ]

    def launches(
        self, selected: Mapping[Block, Sequence[str]]
    ) -> Iterator[tuple[Block, Sequence[str]]]:
        """Yield the launches to measure: all passes, then the blocks with the widest intervals.

        Every pass measures all blocks once in a random order, so that a slow period of the host
        affects different blocks in different passes.
        """
        started = time.monotonic()
        for number in range(self.passes):
            for block in random.Random(number).sample(list(selected), len(selected)):
                arms = self._open(block, selected[block], number + 1)
                if arms:
                    yield block, arms
        while self.plan.budget_s is not None or self.plan.target_ci is not None:
            left = self.budget_left_s
            spent = time.monotonic() - started
            widest = self._widest(selected, math.inf if left is None else left - spent)
            if widest is None:
                return
            failed = self.blocks[widest.name].failed
            yield widest, [name for name in selected[widest] if name not in failed]

    def claims(self, block: Block, samples: Sequence[SampleRow], alpha: float) -> dict[str, Claim]:
        """Compare the arms of a block whose implementations have not failed.

        Implementations are compared with the baseline, and arms with input with the same
        implementation without it; all pairs share the error rate. In a gate, each implementation is
        compared with its base, and all comparisons of the run share the error rate.
        """
        failed = self.blocks[block.name].failed
        arms = {row["arm"] for row in samples if implementation_of(row["arm"]) not in failed}
        arms -= {TWIN}
        named = [name for name in self.plan.implementations if name in arms]
        if not named and self.bases is None:
            return {}
        # These take long to load, and planning a run does not need them.
        import pandas as pd  # noqa: PLC0415

        from bench.analyse.sample_rounds import Rounds  # noqa: PLC0415

        rounds, margin = Rounds.of(pd.DataFrame(samples)), self.plan.margin
        if self.bases is not None:
            each = alpha / len(self.compared_cells)
            return compare(rounds, self.bases.opponents(arms), each, margin)
        baseline = self.plan.baseline if self.plan.baseline in named else named[0]
        return claims(rounds, named, baseline, alpha, margin, input_opponents(arms))

    def is_enough(self, claim: Claim) -> bool:
        """Tell whether a comparison needs no more samples."""
        if self.plan.target_ci is None:
            return claim.verdict.decided
        return claim.ratio.half_width() <= math.log1p(self.plan.target_ci)

    def _open(self, block: Block, arms: Sequence[str], launches: int) -> list[str]:
        """List the arms with fewer launches than this; in a gate, only complete pairs."""
        state = self.blocks[block.name]
        names = [name for name in arms if state.is_open(name, launches)]
        return names if self.bases is None else self.bases.paired(names)

    def _widest(self, selected: Iterable[Block], left_s: float) -> Block | None:
        """Return the block with the widest insufficient interval among those in the budget."""
        widths: dict[Block, float] = {}
        for block in selected:
            state = self.blocks[block.name]
            if state.looks and state.seconds <= left_s and len(state.launches) < MAX_LAUNCHES:
                for claim in self.claims(block, state.samples, state.looks[-1]["alpha"]).values():
                    if claim.ratio.error and not self.is_enough(claim):
                        widths[block] = max(widths.get(block, 0.0), claim.ratio.error)
        return max(widths, key=lambda block: widths[block], default=None)


class LaunchLooks:
    """The interim analyses (looks) of a block's samples during one launch."""

    def __init__(self, schedule: Schedule, block: Block) -> None:
        plan, state = schedule.plan, schedule.blocks[block.name]
        self._schedule, self._block = schedule, block
        self._earlier, self._earlier_looks = list(state.samples), len(state.looks)
        self._is_last = len(state.launches) == plan.launches - 1
        self._spending = AlphaSpending(plan.launches * plan.worker["rounds"], state.looks)
        self._attempts: set[str] = set()

    def needs_more(self, rows: Sequence[SampleRow]) -> bool:
        """Decide from the launch's samples so far whether it needs more rounds."""
        self._attempts.add(rows[0]["attempt"])
        if len(self._attempts) > 1:  # a worker died after a look: the alpha it spent is lost
            return True
        claims = self._look(rows, last=False)
        return not claims or not all(map(self._schedule.is_enough, claims.values()))

    def finish(self, rows: Sequence[SampleRow], launch: int) -> tuple[list[Look], dict[str, Claim]]:
        """Add the finished launch's samples to the block, and return its looks and the claims."""
        claims = self._look(rows, last=self._is_last) if rows else {}
        state = self._schedule.blocks[self._block.name]
        state.launches.add(launch)
        state.samples += rows
        state.looks = self._spending.looks
        return state.looks[self._earlier_looks :], claims

    def _look(self, rows: Sequence[SampleRow], *, last: bool) -> dict[str, Claim]:
        samples = [*self._earlier, *rows]
        turns = Counter((row["attempt"], row["round"]) for row in samples)
        rounds = sum(count > 1 for count in turns.values())  # a lone arm makes no comparison
        alpha = self._spending.look(rounds, last_planned=last)
        return self._schedule.claims(self._block, samples, alpha)


def rows_of(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Convert the rows of a frame to dicts."""
    return cast("list[dict[str, Any]]", frame.to_dict("records"))
