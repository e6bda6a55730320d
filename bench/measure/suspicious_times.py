"""Impossible times of a launch, and winners whose times are suspicious.

Impossible times are inconsistent with other figures: when each turn began, how long the supervisor
waited for all turns, and the ceilings that were measured before a user's file was loaded. Where
such a file wins by far, the supervisor measures it again beside the fastest other arm, each in a
process of its own, where their ratio should be as before.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise
from statistics import median, quantiles

from bench.records import numbers
from bench.records.arms import TWIN
from bench.records.grouping import grouped
from bench.records.row_parts import Isolation
from bench.records.rows import BlockRow, Ceilings, Cells, SampleRow

SAFETY = 8
"""A step may be faster than the ceilings allow by this factor. Ceilings are measured within a
second, in which a busy host may be several times slower, and FLOP formulas may count products that
a right step skips, such as those above the diagonal of causal attention."""
UNCACHED = 1 << 30
"""Bytes of optimizer state per device that exceed any cache, so that memory bounds a step."""

LATE_S = 1.0
"""Seconds by which the supervisor may notice the start of the rounds late, on a busy host."""
FEWEST_TURNS, FEWEST_OTHERS = 8, 4
"""Fewest turns of an arm, and of all others, for a comparison of its gaps with theirs."""
GAP_SHARE, GAP_S, GAP_ERROR = 0.25, 5e-3, 1e-4
"""Allowed excess of an arm's gap over those of other arms, as a share of its turn and, for short
turns on a busy host, in seconds; and the largest probability that gaps exceed it more often
than those of other arms by chance."""

Rows = Sequence[SampleRow]

FACTOR, NEAR = 1.5, 1.5
"""A winner is suspicious if it surely is more than FACTOR times as fast as the next arm, or if it
takes less than NEAR times what the ceilings allow."""
ODDS, ODDS_ALONE, DISPATCH_S = 1.5, 2.0, 20e-6
"""Its times are at odds if, in processes of their own, the ratio is surely larger by a factor ODDS
(without another arm, the step time by ODDS_ALONE, because the host's speed may have changed), and a
step by DISPATCH_S, because another thread may run a step of microseconds there. So must be the
ratio of the quickest rounds, because a busy host may delay most spans of a short step."""
ERROR, FEWEST, ROUNDS = 0.01, 7, 24
"""Largest probability, by the sign test, that chance alone makes a finding sure; the fewest rounds
in which one can be; and the most rounds of the second measurement, of which twelve are often too
few on a loaded machine."""


def reasons_against(
    block: BlockRow, cells: Cells, samples: Rows, ceilings: Ceilings | None, rounds_s: float
) -> dict[str, str]:
    """Return, by implementation, why its times in a launch are impossible.

    `cells` are the rows of ok cells, by implementation, `samples` those of all arms, and `ceilings`
    those of the block, if they are known. `rounds_s` is the duration of the rounds by the
    supervisor's clock.
    """
    spans_s = sum(map(_spans_s, samples))
    if block["processes"] == 1 and spans_s > rounds_s + LATE_S:
        reason = (
            f"the launch's spans add up to {numbers.si(spans_s, 's')}, but only "
            f"{numbers.si(rounds_s, 's')} passed by the supervisor's clock"
        )
        return dict.fromkeys(cells, reason)
    found = _why_gaps_are_long(samples, cells)
    for name, (least_s, what) in least_times(block, cells, ceilings).items():
        steps_s = step_times(samples, name).values()
        if steps_s and (step_s := median(steps_s)) < least_s / SAFETY:
            found[name] = (
                f"its steps would take {numbers.si(step_s, 's')}: for {what} on each device, this "
                f"machine was measured to need {numbers.si(least_s, 's')}"
            )
    if TWIN in found:
        found.setdefault(block["baseline"], found[TWIN])
    return {name: reason for name, reason in found.items() if name in cells}


def _spans_s(row: SampleRow) -> float:
    return (row["throughput_ns"] + row["latency_ns"] + row["wash_out_ns"]) / 1e9


def _why_gaps_are_long(samples: Rows, cells: Cells) -> dict[str, str]:
    """Compare the spans of each arm's turns with the time until the next turn began."""
    turns = [defaultdict[str, list[tuple[float, float]]](list) for _ in (False, True)]
    """Seconds of each turn and of its gap, by whether the arm was checked in it, and by arm."""
    for row, following in pairwise(samples):
        arm = row["arm"]
        plain = arm == TWIN or (arm in cells and "foreign" not in cells[arm])
        if plain and row["round"] == following["round"]:
            turn_s = following["at"] - row["at"]
            turns[bool(row.get("checked"))][arm].append((turn_s, turn_s - _spans_s(row)))
    found = {}
    for arm in {*turns[False], *turns[True]}:
        # Checks differ in length: where they count, three in four turns have to be late.
        many = len(turns[False][arm]) >= FEWEST_TURNS
        kinds, most = ([False], 0.5) if many else ([False, True], 0.75)
        counted = [turn for kind in kinds for turn in turns[kind][arm]]
        if len(counted) < FEWEST_TURNS:
            continue
        turn_s, gap_s = map(median, zip(*counted, strict=True))
        allowed_s = max(GAP_S, GAP_SHARE * turn_s)
        late, others = list[bool](), list[bool]()
        for kind in kinds:
            theirs = (each for other, each in turns[kind].items() if other != arm)
            gaps = [gap for each in theirs for _, gap in each]
            if len(gaps) >= FEWEST_OTHERS:
                limit_s = median(gaps) + allowed_s
                late += [gap > limit_s for _, gap in turns[kind][arm]]
                others += [gap > limit_s for gap in gaps]
        usual = (sum(others) + 1) / (len(others) + 2)
        often = len(late) >= FEWEST_TURNS and sum(late) > most * len(late)
        if (often and _is_significant(late, usual, GAP_ERROR)) or gap_s < -allowed_s:
            than = "longer" if gap_s < 0 else "shorter"
            found[arm] = (
                f"its spans are {than} than its turns: of {numbers.si(turn_s, 's')}, they account "
                f"for {numbers.si(turn_s - gap_s, 's')}"
            )
    return found


def least_times(
    block: BlockRow, cells: Cells, ceilings: Ceilings | None
) -> dict[str, tuple[float, str]]:
    """Return by implementation the least seconds that the ceilings allow a step, and for what.

    Without ceilings, any time is allowed.
    """
    if ceilings is None:
        return dict.fromkeys(cells, (0.0, ""))
    # A workload may overstate its FLOPs, so those of the largest compiled step are the limit.
    done = max((row.get("product_flops") or 0.0 for row in cells.values()), default=0.0)
    moved = 2.0 * block.get("optimizer_bytes", 0) / block["devices"]
    found = {}
    for name, cell in cells.items():
        said = cell.get("model_flops") or 0.0
        flops = min(said, done or said) / block["devices"]
        bounds = [(flops / ceilings["matmul_flops"], f"{numbers.si(flops, 'FLOP')} in products")]
        if moved > 2 * UNCACHED:
            what = f"{numbers.si(moved, 'B')} of optimizer state, read and written"
            bounds.append((moved / ceilings["memory_bytes"], what))
        found[name] = max(bounds)
    return found


@dataclass(frozen=True)
class Suspicion:
    """A suspicious winner."""

    name: str
    finding: Isolation
    """What the rounds have shown: the other arm is the fastest, a shipped one if possible."""
    high: float
    """The upper quartile of the rounds' ratios, of which the finding has the median."""


def suspicious_winner(
    block: BlockRow, cells: Cells, samples: Rows, ceilings: Ceilings | None, users: Collection[str]
) -> Suspicion | None:
    """Return the block's winner if it is a user's file and suspicious, else None.

    `users` are the implementations whose files were not shipped with Lockstep; the other arguments
    are those of `reasons_against`.
    """
    # An approximate step computes something else, and cannot be proved in its own process.
    exact = {name: row for name, row in cells.items() if "approximate" not in row}
    times = {name: step_times(samples, name) for name in exact}
    typical = {name: median(each.values()) for name, each in times.items() if each}
    winner = min(typical, key=lambda name: typical[name], default="")
    if winner not in users or "foreign" in cells[winner]:
        return None
    others = [name for name in typical if name != winner and "foreign" not in cells[name]]
    shipped = [name for name in others if name not in users]
    beside = min(shipped or others, key=lambda name: typical[name], default="")
    ratios = _ratios(times[winner], times.get(beside))
    if len(ratios) < FEWEST:
        return None
    ratio, step_s, row = median(ratios), typical[winner], cells[winner]
    far = beside and _is_significant([each < 1 / FACTOR for each in ratios])
    least_s, _ = least_times(block, cells, ceilings)[winner]
    signs = {
        f"it is {numbers.significant(1 / ratio)} times as fast as {beside}": far,
        f"its steps take {numbers.si(step_s, 's')}, and what this machine was measured to do at "
        f"best takes {numbers.si(least_s, 's')}": step_s < NEAR * least_s,
        "its threads worked in other arms' turns": row.get("threads_s"),
        "its file changes settings of the whole process": row.get("jax_config"),
    }
    why = "; ".join(sign for sign, shown in signs.items() if shown)
    if not why:
        return None
    finding = Isolation(why=why, beside=beside, ratio=ratio, isolated_ratio=None, reason="")
    return Suspicion(winner, finding, quantiles(ratios, n=4, method="inclusive")[-1])


def compared(suspicion: Suspicion, cells: Cells, samples: Rows) -> tuple[Isolation, str]:
    """Compare a winner's times with those in isolation, which `cells` and `samples` hold.

    Returns the finding, and the reason why the cell is wrong, empty if it is not.
    """
    name, found = suspicion.name, suspicion.finding.copy()
    beside = found["beside"]
    ended = [cells[one] for one in (name, beside) if one in cells and cells[one]["status"] != "ok"]
    own, others = step_times(samples, name), step_times(samples, beside) if beside else None
    ratios = _ratios(own, others)
    if ended or not ratios:
        row = ended[0] if ended else None
        said = f"{row['implementation']} is {row['status']}: {row['reason']}" if row else ""
        found["reason"] = said or "it ended without samples"
        wrong = row and row["implementation"] == name and row["status"] in {"wrong", "implausible"}
        return found, f"in a process of its own, {said}" if wrong else ""
    found["isolated_ratio"] = now = median(ratios)
    least = suspicion.high * (ODDS if others else ODDS_ALONE)
    least += DISPATCH_S / (median(others.values()) if others else 1.0)
    quickest = min(own.values()) / (min(others.values()) if others else 1.0)
    if quickest <= least or not _is_significant([each > least for each in ratios]):
        return found, ""
    took = [
        f"{100 * each:.3g} % of the time of {beside}" if beside else numbers.si(each, "s")
        for each in (found["ratio"], now)
    ]
    return found, (
        f"its times depend on the process that it shares with the clock: a step took {took[0]} "
        f"there, and {took[1]} in a process of its own"
    )


def step_times(samples: Rows, arm: str) -> dict[int, float]:
    """Return an arm's seconds per step, by round."""
    own = [row for row in samples if row["arm"] == arm]
    steps = grouped((row["round"], row["throughput_ns"] / row["steps"] / 1e9) for row in own)
    return {number: median(each) for number, each in steps.items()}


def _ratios(own: Mapping[int, float], others: Mapping[int, float] | None) -> list[float]:
    """Return the ratios within rounds; without another arm, the times."""
    if others is None:
        return list(own.values())
    return [own[number] / others[number] for number in own.keys() & others.keys()]


def _is_significant(signs: Sequence[bool], chance: float = 0.5, error: float = ERROR) -> bool:
    """Return whether a binomial test shows that signs are true more often than by this chance."""
    above = import_module("scipy.special").bdtrc  # not at the top: a dry run loads no numpy
    return bool(above(sum(signs) - 1, len(signs), chance) <= error)
