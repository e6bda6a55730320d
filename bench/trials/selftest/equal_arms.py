"""Trials without measuring: the product's decision rule on parts of stored samples of equal arms.

Arms that are copies of one program have the true ratio 1; if one arm's times are multiplied by
1.02, the ratio is exactly 1.02. From one measurement, windows of rounds and random choices of arms
give hundreds of trials with known truth, which overlap.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bench.analyse.alpha_spending import AlphaSpending
from bench.analyse.ratio_intervals import compare
from bench.analyse.sample_rounds import Rounds
from bench.analyse.verdicts import Claim
from bench.measure.run_folder import find_run
from bench.plan.option_values import BadInput
from bench.records import store
from bench.records.arms import TWIN
from bench.records.messages import is_look
from bench.records.statuses import MARGIN
from bench.trials.selftest.selftest_settings import ARMS, PLANTED

ROUNDS = (16, 32, 64, 128)
"""Numbers of rounds of a trial, from the fewest processes that have enough."""
SECONDS = (5.0, 10.0, 20.0)
"""Measuring times of a pair of arms, also from the fewest processes that have enough."""
SLOWDOWNS = tuple(PLANTED.values())
_TOLERANCE = 0.1
"""Share of rounds that may be missing before a trial uses another process."""

SEVERAL = "several loads"
SCALED, WORKING = "times", "work"
"""How arms are slowed: their samples are multiplied, or their steps had more to do."""

COLUMNS = [
    *("program", "load", "processes", "slowed", "arms", "size", "trial", "truth", "used_s"),
    *("word", "holds", "width", "verdict_width"),
]

_SPANS = ["wash_out_ns", "throughput_ns", "latency_ns"]
_TEXTS = dict.fromkeys(("block", "attempt", "arm"), str)
_NEEDED = {*_TEXTS, "round", "steps", "latency_steps", *_SPANS}
"""Columns of samples that trials need."""


def read(name: str) -> pd.DataFrame:
    """Read the samples of equal arms of a stored run, or all of a Parquet or CSV file.

    Raises BadInput if there is no such file or run, or if it lacks columns, or has too few samples
    for any trial.
    """
    path = Path(name)
    if path.suffix == ".parquet" and path.is_file():
        samples = pd.read_parquet(path)
    elif path.suffix == ".csv" and path.is_file():
        samples = pd.read_csv(path, keep_default_na=False, dtype=_TEXTS)
    else:
        samples = equal_samples(store.load(find_run(name)))
    if "truth" in samples:  # those of a self-test
        samples = samples[samples["truth"] == 1]
    if lacking := sorted(_NEEDED - set(samples)):
        raise BadInput([f"{name} has no columns {', '.join(lacking)}"])
    most = samples.groupby(["block", "attempt", "round"])["arm"].nunique().ge(2)
    if most.groupby(["block", "attempt"]).sum().max() < ROUNDS[0] or most.empty:
        raise BadInput([f"{name} has no {ROUNDS[0]} rounds of two equal arms"])
    return samples


def equal_samples(run: store.Run) -> pd.DataFrame:
    """Select a run's samples of equal arms: the twin, and all copies of the baseline.

    Copies are implementations whose files have the same content.
    """
    contents = {
        (row["block"], row["implementation"]): sorted(row["sources"]["implementation"].values())
        for row in run.cell_rows
        if "sources" in row
    }
    baselines = {row["block"]: row["baseline"] for row in run.block_rows}

    def is_equal(block: str, arm: str) -> bool:
        own, first = contents.get((block, arm)), baselines[block]
        return arm in (TWIN, first) or (own is not None and own == contents.get((block, first)))

    samples = run.samples
    return samples[[is_equal(*key) for key in zip(samples["block"], samples["arm"], strict=True)]]


def trials(
    samples: pd.DataFrame, count: int = 200, seconds: Sequence[float] = SECONDS
) -> pd.DataFrame:
    """Run trials on parts of samples of arms whose true ratios are known.

    Each part gives two trials: one of equal arms, and one in which every arm but the baseline is
    slower: its times are multiplied by one of SLOWDOWNS, or, with two arms, it was measured with
    extra work. `count` is the number of parts for each number of arms and each size of a block,
    divided among the blocks; `seconds` are measuring times of a pair.

    Samples have the columns of bench.records.rows.SampleRow, and optionally `load`, the name of the
    background load, and `truth`, an arm's true ratio to the equal ones.

    Returns:
      One row for each trial and arm but its baseline, with the columns
        program, load: block, and background load; SEVERAL where processes had different ones.
        processes: names of the processes that it took rounds of.
        slowed: SCALED or WORKING; for equal arms, how they are slowed in the part's other trial.
        arms: number of arms of the block, including its baseline.
        size: `32 rounds`, or `5 s per pair`.
        trial: its number.
        truth: the true ratio.
        used_s: seconds per pair until the engine would have stopped.
        word: the verdict.
        holds: whether the 95 % interval that is shown when the engine stops covers the truth.
        width, verdict_width: half-widths, as log ratios, of intervals from all rounds: at 95 %,
          and the one behind the verdict; infinite where there is none.
    """
    chance = np.random.default_rng(0)
    samples = pd.DataFrame({"load": "", "truth": 1.0, **samples})
    blocks = list(samples.groupby("block", sort=False))
    each = math.ceil(count / max(len(blocks), 1))
    found = (trial for _, own in blocks for trial in _of_block(own, each, chance, seconds))
    rows = [{**row, "trial": number} for number, trial in enumerate(found) for row in trial]
    return pd.DataFrame(rows, columns=COLUMNS)


def _of_block(
    samples: pd.DataFrame, count: int, chance: np.random.Generator, seconds: Sequence[float]
) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows of each trial, one for each arm but its baseline, without the number."""
    rounds = Rounds.of(samples)
    loads = samples.groupby("attempt", sort=False)["load"].first()
    truths = samples.groupby("arm", sort=False)["truth"].first()
    equal, slower = (truths.index[own].tolist() for own in (truths == 1, truths != 1))
    pair_s = 2e-9 * float(samples[_SPANS].mean().sum())
    every, block = np.arange(len(rounds.attempt)), samples["block"].iloc[0]
    kinds = [(number, SCALED) for number in ARMS if number <= len(equal)]
    kinds += [(2, WORKING)] * bool(slower and len(equal) > 1)
    for (number, slowed), _ in itertools.product(kinds, range(count)):
        arms = chance.permutation(equal)[:number].tolist()
        scales = dict(zip(arms, [1.0, *chance.choice(SLOWDOWNS, number - 1)], strict=True))
        same = dict.fromkeys(arms, 1.0)
        if slowed == WORKING:
            scales = {arms[0]: 1.0, str(chance.choice(slower)): 1.0}
        for rows, size in _parts(part(rounds, every, same | scales), pair_s, chance, seconds):
            own = loads.iloc[np.unique(rounds.attempt[rows])]
            under = set(own)
            for factors in (same, scales):
                found = replay(part(rounds, rows, factors), list(factors))
                trial = {
                    "program": block, "load": next(iter(under)) if len(under) == 1 else SEVERAL,
                    "processes": [f"{block}/{process}" for process in own.index],
                    "slowed": slowed, "arms": number, "size": size,
                    "used_s": found.rounds * pair_s,
                }  # fmt: skip
                others = {arm: float(factors[arm] * truths[arm]) for arm in list(factors)[1:]}
                yield [trial | found.judge(arm, truth) for arm, truth in others.items()]


def _parts(
    rounds: Rounds, pair_s: float, chance: np.random.Generator, seconds: Sequence[float]
) -> Iterator[tuple[NDArray[np.intp], str]]:
    """Yield the indices of random windows of complete rounds, and the name of their size."""
    complete = np.flatnonzero(~np.isnan(rounds.throughput).any(axis=1))
    whole = np.split(complete, np.searchsorted(complete, rounds.starts[1:]))
    longest = max(map(len, whole), default=0)
    sizes = [(count, f"{count} rounds") for count in ROUNDS]
    sizes += [(round(each / pair_s), f"{each:g} s per pair") for each in seconds]
    for count, size in sizes:
        fewest = max(1, math.ceil(count / max(longest, 1) - _TOLERANCE))
        for launches in range(fewest, len(whole) + 1):
            each = min(count // launches, longest)
            enough = [process for process in whole if len(process) >= each > 0]
            if launches <= len(enough):
                drawn = sorted(chance.permutation(len(enough))[:launches].tolist())
                starts = [int(chance.integers(len(enough[at]) - each + 1)) for at in drawn]
                stretches = zip(drawn, starts, strict=True)
                yield np.concatenate([enough[at][start:][:each] for at, start in stretches]), size
                break


@dataclass(frozen=True)
class Replay:
    """The claims about a block's arms against its baseline."""

    rounds: int
    """Rounds after which the engine would have stopped."""
    shown: dict[str, Claim]
    """Claims from these rounds."""
    whole: dict[str, Claim]
    """Claims from all rounds, at the last planned look, as if nothing had been decided before."""

    def judge(self, arm: str, truth: float) -> dict[str, object]:
        """Compare the claim about one arm with the true ratio; see `equal_arms.trials`."""
        shown, whole = self.shown[arm], self.whole[arm]
        low, high = whole.verdict.low, whole.verdict.high
        ends = shown.ratio.interval()
        return {
            "truth": truth,
            "word": shown.verdict.word,
            "holds": None if ends is None else ends[0] <= truth <= ends[1],
            "width": whole.ratio.half_width(),
            "verdict_width": math.log(high / low) / 2 if low > 0 else math.inf,
        }


def replay(rounds: Rounds, arms: Sequence[str]) -> Replay:
    """Look at a block's rounds as the engine does while it measures, and stop where it stops.

    The rounds are those of the block's planned launches; its baseline is the first of the arms.
    """
    total = len(rounds.attempt)
    opponents, same = dict.fromkeys(arms[1:], arms[0]), dict.fromkeys(rounds.arms, 1.0)
    taken = np.arange(0)
    looks, every = list[int](), list[int]()
    shown: dict[str, Claim] = {}
    for own in np.split(np.arange(total), rounds.starts[1:]):
        stops = [*filter(is_look, range(len(own))), len(own)]
        every += [int(own[0]) + stop for stop in stops]
        for stop in stops:
            seen = np.concatenate([taken, own[:stop]])
            looks.append(len(seen))
            each = _alpha(total, tuple(looks), len(opponents))
            shown = compare(part(rounds, seen, same), opponents, each, MARGIN)
            if all(claim.verdict.decided for claim in shown.values()):
                break
        taken = seen
    last = _alpha(total, tuple(every), len(opponents))
    whole = shown if len(taken) == total else compare(rounds, opponents, last, MARGIN)
    return Replay(len(taken), shown, whole)


@cache
def _alpha(planned: int, looks: tuple[int, ...], comparisons: int) -> float:
    """Return each comparison's error probability at the last look; looks are numbers of rounds."""
    spending = AlphaSpending()
    alphas = [spending.look(look, look / planned, comparisons) for look in looks]
    return alphas[-1] / comparisons


def part(rounds: Rounds, rows: NDArray[np.intp], factors: dict[str, float]) -> Rounds:
    """Select rounds by their indices, and the arms in `factors`, with times multiplied by them."""
    chosen = np.ix_(rows, np.array([rounds.arms.index(arm) for arm in factors]))
    scale = np.array(list(factors.values()))
    return Rounds(
        arms=tuple(factors),
        attempt=rounds.attempt[rows],
        throughput=rounds.throughput[chosen] * scale,
        latency=rounds.latency[chosen] * scale,
    )
