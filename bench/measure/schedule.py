"""The schedule of launches: passes over all blocks, then the block with the widest interval."""

from __future__ import annotations

import math
import random
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bench.analyse.verdicts import Claim
from bench.plan.base_revisions import Bases
from bench.plan.matrix import Plan
from bench.records.arms import INPUT_WAYS, TWIN, implementation_of, own_arms, versions_of
from bench.records.cells import Block
from bench.records.messages import HOST_LOST, repeated_s
from bench.records.rows import Ceilings, CellRow, Look, SampleRow
from bench.records.step_programs import ProgramFigures, figures_of, identity

if TYPE_CHECKING:
    from bench.analyse.process_spread import Series, Spreads
    from bench.analyse.sample_rounds import Rounds
    from bench.records.store import Run

FEWEST_LAUNCHES = 2
"""Launches in which every arm takes part, if as many are planned, even if it is settled before:
they show the spread between processes."""

MAX_LAUNCHES = 64
"""Limit on a block's launches; after so many, its intervals will hardly become narrow enough."""


@dataclass
class BlockState:
    """The stored results of a block."""

    launches: set[int] = field(default_factory=set)
    samples: list[SampleRow] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    cells: list[CellRow] = field(default_factory=list)
    seconds: float = 0.0
    """Wall time of the last launch, without phases that only a first one has."""
    ceilings: Ceilings | None = None
    programs: dict[str, str] = field(default_factory=dict)
    """Identities of the implementations' programs, as far as they are known."""
    series: tuple[Sequence[Series], Sequence[Series]] = ((), ())
    """Log ratios of the compared arms over at least two launches: see
    bench.analyse.process_spread.log_ratios."""

    @property
    def failed(self) -> set[str]:
        """Implementations that failed in some launch; they are not tried again."""
        return {row["implementation"] for row in self.cells if row["status"] != "ok"}

    @property
    def isolated(self) -> frozenset[str]:
        """Suspicious winners that a launch has measured again in isolation."""
        return frozenset(row["implementation"] for row in self.cells if "isolation" in row)

    @property
    def settled(self) -> set[str]:
        """Implementations that the last look has settled."""
        return self._settled_arms - self.waiting

    @property
    def waiting(self) -> set[str]:
        """Implementations with an unsettled arm beside their own, which is compared with them."""
        sampled, settled = {row["arm"] for row in self.samples}, self._settled_arms
        beside = own_arms(sampled, INPUT_WAYS) | versions_of(sampled)
        return {name for arm, name in beside.items() if arm not in settled}

    @property
    def _settled_arms(self) -> set[str]:
        return set(self.looks[-1].get("settled", ())) if self.looks else set()

    def proved(self, launch: int) -> dict[str, ProgramFigures]:
        """Return the programs' figures of the implementations that an earlier launch has proved."""
        rows = (row for row in self.cells if row["status"] == "ok" and row["launch"] < launch)
        return {row["implementation"]: figures_of(row, launch) for row in rows}


class Schedule:
    """The order of a run's launches, and the rule that ends them.

    `bases` are those of a gate. `apart` are the arms with processes of their own.
    """

    def __init__(self, plan: Plan, bases: Bases | None = None, apart: Collection[str] = ()) -> None:
        self.plan = plan
        self.bases = bases
        self.apart = apart
        self.blocks: defaultdict[str, BlockState] = defaultdict(BlockState)
        self.compared_cells: list[str] = []
        """Names of the cells that a gate compares with their base; they share its error rate."""
        self.sharing: float | None = None
        """Number of comparisons that share a block's error, not necessarily whole; None for the
        block's own number. If set, only these comparisons matter: see bench.commands.referee."""
        self._stored_s = 0.0
        """Wall time of the stored launches of a resumed run."""

    def resume(self, run: Run) -> None:
        """Continue after the stored launches of a run, except those that were lost with a host."""
        lost = {cell["attempt"] for cell in run.cell_rows if HOST_LOST in cell["reason"]}
        cells = (row for row in run.cell_rows if row["attempt"] not in lost)
        blocks = (row for row in run.block_rows if row["attempt"] not in lost)
        for sample in run.sample_rows():
            self.blocks[sample["block"]].samples.append(sample)
        for cell in cells:
            state = self.blocks[cell["block"]]
            state.cells.append(cell)
            if "program" in cell:
                state.programs[cell["implementation"]] = identity(cell["program"])
        for row in blocks:
            state = self.blocks[row["block"]]
            state.looks += row["looks"]
            state.ceilings = row["ceilings"] or state.ceilings
            before = state.seconds if row["launch"] in state.launches else 0.0
            state.seconds = before + repeated_s(row["seconds"])
            state.launches.add(row["launch"])
            self._stored_s += sum(row["seconds"].values())

    @property
    def passes(self) -> int:
        """Launches of every block; the rest of a budget goes to blocks with the widest interval."""
        return 1 if self.plan.budget_s is not None else max(self.plan.launches, self.plan.passes)

    @property
    def budget_left_s(self) -> float | None:
        """Seconds of the budget that stored launches have left; None without a budget."""
        return None if self.plan.budget_s is None else self.plan.budget_s - self._stored_s

    def missing_launches(self, block: Block, arms: Sequence[str]) -> list[int]:
        """List the numbers, from 0, of the launches that complete the passes for these arms."""
        count = sum(bool(self._open(block, arms, n + 1)) for n in range(self.passes))
        stored = self.blocks[block.name].launches
        return [n for n in range(count + len(stored)) if n not in stored][:count]

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

    def opponents(self, block: Block, samples: Sequence[SampleRow]) -> dict[str, str]:
        """Map each arm whose implementation has not failed to the arm it is compared with.

        Implementations are compared with the baseline; arms with input and arms under another
        version, with the same implementation. In a gate, each is compared with its base.
        """
        failed = {*self.blocks[block.name].failed, TWIN}
        arms = {row["arm"] for row in samples if implementation_of(row["arm"]) not in failed}
        named = [name for name in self.plan.implementations if name in arms]
        if self.bases is not None:
            return self.bases.opponents(arms)
        if not named:
            return {}
        baseline = self.plan.baseline_of(named)
        others = {arm: baseline for arm in named if arm != baseline}
        return others | own_arms(arms, INPUT_WAYS) | versions_of(arms)

    def compared(
        self,
        block: Block,
        samples: Sequence[SampleRow],
        opponents: Mapping[str, str],
        looks: Sequence[Look],
    ) -> tuple[dict[str, Claim], set[str]]:
        """Compare arms of a block with their opponents; arms with equal programs are the same.

        All comparisons of a block share the errors of its looks (see alpha_of); in a gate, those of
        the run do. Returns the claims, and the arms that are settled.
        """
        # Imported here because they load slowly, and planning a run does not need them.
        import pandas as pd  # noqa: PLC0415

        from bench.analyse.comparisons import alpha_of  # noqa: PLC0415
        from bench.analyse.process_spread import known, log_ratios, with_twin  # noqa: PLC0415
        from bench.analyse.ratio_intervals import compare  # noqa: PLC0415
        from bench.analyse.sample_rounds import Rounds  # noqa: PLC0415

        state = self.blocks[block.name]
        failed, programs = state.failed, state.programs
        counted = [row for row in samples if implementation_of(row["arm"]) not in failed]
        rounds = Rounds.of(pd.DataFrame(counted))
        named = [name for name in self.plan.implementations if name in rounds.arms]
        apart = with_twin(self.apart, self.plan.baseline_of(named or [TWIN]))
        state.series = log_ratios(rounds, apart)
        alike = [each for each in self.plan.blocks if each.mesh.size == block.mesh.size]
        assumed = known(self.plan.process_spread, block.mesh.size, apart)
        process = assumed.updated(self.blocks[each.name].series for each in alike)
        errors = {arm: alpha_of(arm, looks) for arm in opponents}
        each = {arm: error / self.family(opponents) for arm, error in errors.items()}
        claims = compare(rounds, opponents, each, self.plan.margin, process, programs)
        enough = {arm for arm, one in claims.items() if self.is_enough(one)}
        of_pairs = {frozenset((arm, opponents[arm])): error for arm, error in errors.items()}
        needed = self.contenders(rounds, process, programs, alpha_of("", looks), of_pairs)
        return claims, enough - needed

    def family(self, opponents: Mapping[str, str]) -> float:
        """Return the number of comparisons among which the error of a block's looks is divided."""
        # The report also compares arms under another version with the baseline.
        compared = len(opponents) + len(versions_of(opponents))
        return self.sharing or len(self.compared_cells) or max(compared, 1)

    def contenders(
        self,
        rounds: Rounds,
        process: Spreads,
        programs: Mapping[str, str],
        alpha: float,
        errors: Mapping[frozenset[str], float],
    ) -> set[str]:
        """Return the arms that may be the fastest, if they may differ by more than the margin.

        Of arms that run the same program, it returns one. Empty if the run has another goal: in a
        gate or referee, or with a target interval.
        """
        from bench.analyse.standings import rank  # noqa: PLC0415 (needs scipy)

        if self.bases is not None or self.sharing or self.plan.target_ci is not None:
            return set()
        exact = {*self.plan.implementations} - {*self.plan.approximate}
        own = [arm for arm in rounds.arms if arm in exact]
        standings = rank(rounds, own, alpha, process, programs, errors)
        if standings.largest_ratio <= 1 + self.plan.margin:
            return set()
        one_each = {programs.get(arm) or arm: arm for arm in reversed(standings.leaders)}
        return set(one_each.values())

    def is_enough(self, claim: Claim) -> bool:
        """Whether a comparison needs no more samples."""
        if self.plan.target_ci is None:
            return claim.verdict.decided
        return claim.ratio.half_width() <= math.log1p(self.plan.target_ci)

    def _open(self, block: Block, arms: Sequence[str], launches: int) -> list[str]:
        """List the arms with fewer launches than this; in a gate, only complete pairs."""
        state = self.blocks[block.name]
        settled, failed = state.settled, state.failed
        done = Counter(row["implementation"] for row in state.cells)
        # Comparisons of variants and of process counts use the launches that all have in common.
        across = len({(b.options.variant, b.options.processes) for b in self.plan.blocks}) > 1
        fewest = launches if across else min(launches, FEWEST_LAUNCHES)
        most = {name: fewest if name in settled else launches for name in arms}
        names = [name for name in arms if done[name] < most[name] and name not in failed]
        if self.bases is not None:
            return self.bases.paired(names)
        # Others need the baseline; alone, it is worth measuring only if arms beside it are open.
        baseline = self.plan.baseline_of(arms)
        if names and baseline not in (*names, *failed):
            names.insert(0, baseline)
        alone = names == [baseline] and baseline not in state.waiting
        return [] if alone and (settled or self.sharing is not None) else names

    def _widest(self, selected: Iterable[Block], left_s: float) -> Block | None:
        """Return the block with the widest unsettled interval among those that fit the budget."""
        widths: dict[Block, float] = {}
        for block in selected:
            state = self.blocks[block.name]
            opponents = self.opponents(block, state.samples)
            more = state.seconds <= left_s and len(state.launches) < MAX_LAUNCHES
            if state.looks and opponents and more:
                claims, settled = self.compared(block, state.samples, opponents, state.looks)
                for arm, claim in claims.items():
                    if claim.ratio.paired and arm not in settled:
                        widths[block] = max(widths.get(block, 0.0), claim.ratio.half_width())
        return max(widths, key=lambda block: widths[block], default=None)
