"""Comparison of a block's arms: claims, disturbances, and the samples behind them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, takewhile
from math import comb
from operator import itemgetter
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bench.analyse.disturbances import Conditions, conditions, drifts
from bench.analyse.process_spread import Spreads
from bench.analyse.ratio_intervals import Ratio, compare, log_intervals, ratios
from bench.analyse.sample_rounds import Rounds
from bench.analyse.standings import Standings, rank
from bench.analyse.turn_details import input_waits, straggling
from bench.analyse.verdicts import Claim, claim, same
from bench.records.arms import ABLATIONS, INPUT_WAYS, TWIN, implementation_of, own_arms, versions_of
from bench.records.cells import Block
from bench.records.rows import Ceilings, Look
from bench.records.step_programs import identity

Row = Mapping[str, Any]
"""A row of bench.analyse.cell_table.Tables.cells."""


@dataclass(frozen=True)
class Comparison:
    """One block, whose arms may be compared with one another."""

    block: Block
    baseline: str
    """Empty if nothing ran."""
    arms: tuple[str, ...]
    """Implementations whose times may be shown."""
    failed: frozenset[str]
    """Statuses of the block's other cells."""
    approximate: frozenset[str]
    """Implementations whose steps are approximate, which are ranked separately."""
    rounds: Rounds
    """Rounds of the twin and of the cells whose times may be shown."""
    floor: Ratio | None
    """The A/A twin against the baseline."""
    alpha: float
    """Error of the last look at the block, shared by all comparisons of a family."""
    looks: Sequence[Look]
    process: Spreads
    """Spreads between its launches, as assumed or measured."""
    margin: float
    claims: dict[str, Claim]
    """The claim about each arm but the baseline, against the baseline."""
    input_claims: dict[str, Claim]
    """The claim about each arm with input, against the same implementation's arm without."""
    version_claims: dict[str, Claim]
    """The claim about each arm under another version, against the present version's arm."""
    ablated: dict[str, Ratio]
    """Time of each ablated arm over that of its implementation's whole step."""
    waits: dict[str, dict[str, float]]
    """See bench.analyse.turn_details.input_waits."""
    ranked: list[dict[str, Any]]
    """The block's `ok` cells, as rows of `Tables.cells`, fastest first: by ratio, in which shared
    noise cancels, or by step time where there is no ratio. Approximate ones follow the exact."""
    drifts: dict[str, float]
    """Sure trends of arms' ratios to the baseline within the launches; about relative changes."""
    conditions: Conditions
    """Conditions on the host during the block."""
    straggling: dict[str, dict[str, float]]
    """With several processes: see bench.analyse.turn_details.straggling."""
    programs: dict[str, str]
    """Identities of programs, by arm: see bench.records.step_programs.identity."""
    ceilings: Ceilings | None
    """Measured limits of its hardware: see bench.analyse.peaks.ceilings."""
    oversubscribed: bool
    """Whether its CPU devices share cores, in which case it is no evidence about scaling."""
    ended: str
    """Why results of a phase after the rounds are missing, if they are: how a worker ended."""
    launches: int
    span_steps: tuple[int, ...]
    """The distinct numbers of steps in its launches' throughput spans."""

    @property
    def name(self) -> str:
        """The block's name."""
        return self.block.name

    @property
    def subject(self) -> str:
        """`gpt2-nano, fp32`: the key by which scaling curves and summaries are grouped."""
        return self.block.subject

    @property
    def place(self) -> str:
        """`data=2, batch 16`."""
        return self.block.place

    @property
    def floor_width(self) -> float | None:
        """Bound on the relative difference of two copies of the baseline; None without one."""
        if self.floor is None or not self.floor.low or not self.floor.high:
            return None
        return max(self.floor.high, 1 / self.floor.low) - 1

    def claim_of(self, arm: str, other: str) -> Claim | None:
        """Return the claim about one of the arms against another; None without samples of both."""
        known = {arm: other} if {arm, other} <= {*self.arms} else {}
        alpha = self.alpha / max(1, comb(len(self.arms), 2))
        return compare(self.rounds, known, alpha, self.margin, self.process).get(arm)

    def judged(self, arm: str, other: str, sharing: float) -> Claim:
        """Return the claim about an arm, where `sharing` comparisons share the error of the looks.

        KeyError if there are no samples of both.
        """
        alpha, programs = alpha_of(arm, self.looks) / sharing, self.programs
        return compare(self.rounds, {arm: other}, alpha, self.margin, self.process, programs)[arm]

    def all_pairs(self) -> tuple[list[tuple[str, str]], NDArray[np.float64]]:
        """Return every two arms with the log of their ratio and its interval: (pairs, 3).

        NaN or infinite where `claim_of` has no ratio or no interval.
        """
        every = [*combinations(self.arms, 2)]
        alpha = self.alpha / max(1, len(every))
        return every, log_intervals(self.rounds, every, alpha, self.process)

    @cached_property
    def standings(self) -> Standings:
        """The leaders and tiers of the block's exact arms."""
        exact = [arm for arm in self.arms if arm not in self.approximate]
        errors = {frozenset((arm, self.baseline)): alpha_of(arm, self.looks) for arm in exact}
        return rank(self.rounds, exact, self.alpha, self.process, self.programs, errors)


def compare_arms(
    attempts: Sequence[Mapping[str, Any]],
    cells: Sequence[Mapping[str, Any]],
    samples: pd.DataFrame,
    *,
    rounds: Rounds,
    process: Spreads,
    margin: float,
    ceilings: Ceilings | None,
) -> Comparison:
    """Compare a block's arms; leave `ranked` empty for the caller to fill.

    `attempts` are the block's rows of bench.records.rows.BlockRow, at least one, and `cells` its
    cells with their status; `samples` are those that may be shown, and `rounds` the same, arranged.
    `process`, `margin` and `ceilings` are as in Comparison.
    """
    block = Block.of(attempts[0])
    baseline, counted = _comparable(attempts, samples, cells)
    if len(counted) < len(samples):
        rounds = Rounds.of(counted)
    arms = tuple(cell["implementation"] for cell in cells if cell["status"] == "ok")
    looks = [look for row in sorted(attempts, key=itemgetter("launch")) for look in row["looks"]]
    opponents = {arm: baseline for arm in arms if arm != baseline}
    fed, versions = own_arms(rounds.arms, INPUT_WAYS), versions_of(arms)
    found = ratios(rounds, opponents | fed | {TWIN: baseline}, process)
    floor = found.pop(TWIN, None)
    programs = {cell["implementation"]: identity(cell) for cell in cells}
    # Of arms that run one program, the one with the most shared rounds speaks for all.
    named = sorted(filter(found.get, opponents), key=lambda a: (found[a].paired, found[a].rounds))
    longest = {programs[arm] or arm: found[arm] for arm in named}
    found |= {arm: longest[programs[arm] or arm] for arm in named}
    count = max(1, len({*opponents.items(), *fed.items(), *versions.items()}))
    last = float(looks[-1]["alpha"]) if looks else 0.0
    claims = {
        # A look settles an arm under another version only against the present one.
        arm: claim(
            ratio,
            (last if versions.get(arm, baseline) != baseline else alpha_of(arm, looks)) / count,
            margin,
            same=same(programs, arm, baseline),
        )
        for arm, ratio in found.items()
    }
    return Comparison(
        block=block,
        baseline=baseline,
        arms=arms,
        failed=frozenset(cell["status"] for cell in cells) - {"ok"},
        approximate=frozenset(cell["implementation"] for cell in cells if cell["approximate"]),
        rounds=rounds,
        floor=floor,
        alpha=last,
        looks=looks,
        process=process,
        margin=margin,
        claims={arm: one for arm, one in claims.items() if arm not in fed},
        input_claims={arm: one for arm, one in claims.items() if arm in fed},
        version_claims={
            arm: claim(ratio, alpha_of(arm, looks) / count, margin)
            for arm, ratio in ratios(rounds, versions, process).items()
        },
        ablated=ratios(rounds, own_arms(rounds.arms, ABLATIONS), process),
        waits=input_waits(counted) if fed else {},
        ranked=[],
        drifts=drifts(rounds.paired(opponents)),
        conditions=conditions(counted),
        straggling=straggling(counted) if block.options.processes > 1 else {},
        programs=programs,
        ceilings=ceilings,
        oversubscribed=any(cell["oversubscribed"] for cell in cells),
        ended=next(filter(None, (row.get("ended") for row in attempts)), "its worker ended before"),
        launches=len({row["launch"] for row in attempts}),
        span_steps=tuple(sorted({int(row["steps"]) for row in attempts if row["steps"]})),
    )


def alpha_of(arm: str, looks: Sequence[Look]) -> float:
    """Return the error of the claim about an arm: the largest of the looks since it was decided.

    A claim that was decided at a look remains so, even if its error exceeds the last look's.
    """
    since = takewhile(lambda x: arm in x.get("decided", x.get("settled", ())), reversed(looks))
    errors = [look["alpha"] for look in since] or [look["alpha"] for look in looks[-1:]]
    return float(max(errors, default=0.0))


def _comparable(
    attempts: Sequence[Mapping[str, Any]], samples: pd.DataFrame, cells: Sequence[Mapping[str, Any]]
) -> tuple[str, pd.DataFrame]:
    """Return a block's baseline, and the samples that may be compared with it.

    The baseline is that of the attempt that timed the most arms, if it may be shown. Cells measured
    alone are their own baselines, and their twins count for no other cell.
    """
    if refused := [cell["implementation"] for cell in cells if cell["status"] != "ok"]:
        samples = samples[~samples["arm"].map(implementation_of).isin(refused)]
    if samples.empty:
        return "", samples
    baselines = {row["attempt"]: row["baseline"] for row in attempts}
    if len({*baselines.values()}) == 1 and attempts[0]["baseline"] not in refused:
        return attempts[0]["baseline"], samples
    sizes = samples.groupby("attempt")["arm"].nunique()
    fit = sizes[~sizes.index.map(baselines).isin(refused)]
    exact = (c["implementation"] for c in cells if c["status"] == "ok" and not c["approximate"])
    baseline = next(exact, "") if fit.empty else baselines[fit.idxmax()]
    of_others = samples["attempt"].map(baselines) != baseline
    return baseline, samples[~((samples["arm"] == TWIN) & of_others)]
