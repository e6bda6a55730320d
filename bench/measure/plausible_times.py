"""Detection of impossible times: shorter than the machine allows, or inconsistent with the turns.

A user's file shares its process with the clock, and may tamper with it. Such times are inconsistent
with other figures: when each turn began, how long the supervisor waited for all turns, and the
ceilings that were measured before the file was loaded.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median

from bench.records import numbers
from bench.records.arms import TWIN
from bench.records.rows import BlockRow, Ceilings, CellRow, SampleRow

SAFETY = 8
"""A step may be faster than the ceilings allow by this factor. Ceilings are measured within a
second, in which a busy host may be several times slower, and FLOP formulas may count products that
a right step skips, such as those above the diagonal of causal attention."""
UNCACHED = 1 << 30
"""Bytes of optimizer state per device that exceed any cache, so that memory bounds a step."""

LATE_S = 1.0
"""Seconds by which the supervisor may notice the start of the rounds late, on a busy host."""
FEWEST = 8
"""Fewest turns of an arm for a comparison of its gaps with those of others."""
GAP_SHARE = 0.25
"""Share of its turn by which an arm's gap may exceed that of other arms."""
GAP_S = 5e-3
"""Excess that is always allowed: turns may be very short, and a busy host adds milliseconds."""

Rows = Sequence[SampleRow]


def reasons_against(
    block: BlockRow,
    cells: Mapping[str, CellRow],
    samples: Rows,
    ceilings: Ceilings | None,
    rounds_s: float,
) -> dict[str, str]:
    """Return, by implementation, why its times in a launch are impossible.

    Args:
      block: the block's row.
      cells: rows of ok cells, by implementation.
      samples: samples of all arms.
      ceilings: the block's ceilings, if they are known.
      rounds_s: duration of the rounds by the supervisor's clock.
    """
    spans_s = sum(map(_spans_s, samples))
    if block["processes"] == 1 and spans_s > rounds_s + LATE_S:
        reason = (
            f"the launch's spans add up to {numbers.si(spans_s, 's')}, and only "
            f"{numbers.si(rounds_s, 's')} passed outside of its process"
        )
        return dict.fromkeys(cells, reason)
    found = _at_odds(samples, cells)
    if ceilings is not None:
        found |= _too_fast(block, cells, samples, ceilings)
    if TWIN in found:
        found.setdefault(block["baseline"], found[TWIN])
    return {name: reason for name, reason in found.items() if name in cells}


def _spans_s(row: SampleRow) -> float:
    return (row["throughput_ns"] + row["latency_ns"] + row["wash_out_ns"]) / 1e9


def _at_odds(samples: Rows, cells: Mapping[str, CellRow]) -> dict[str, str]:
    """Compare the spans of each arm's turns with the time until the next turn began."""
    turns, gaps = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
    for row, following in pairwise(samples):
        arm = row["arm"]
        plain = arm == TWIN or (arm in cells and "foreign" not in cells[arm])
        if plain and row["round"] == following["round"]:
            turns[arm].append(following["at"] - row["at"])
            gaps[arm].append(turns[arm][-1] - _spans_s(row))
    typical = {arm: median(each) for arm, each in gaps.items() if len(each) >= FEWEST}
    found = {}
    for arm, gap_s in typical.items():
        others = [other for name, other in typical.items() if name != arm]
        turn_s = median(turns[arm])
        allowed_s = max(GAP_S, GAP_SHARE * turn_s)
        if gap_s < -allowed_s or (others and gap_s - median(others) > allowed_s):
            than = "longer" if gap_s < 0 else "shorter"
            found[arm] = (
                f"its spans are {than} than its turns: of {numbers.si(turn_s, 's')}, they account "
                f"for {numbers.si(turn_s - gap_s, 's')}"
            )
    return found


def _too_fast(
    block: BlockRow, cells: Mapping[str, CellRow], samples: Rows, ceilings: Ceilings
) -> dict[str, str]:
    """Find the arms whose steps would exceed the machine's measured ceilings by far."""
    steps_s = defaultdict[str, list[float]](list)
    for row in samples:
        steps_s[row["arm"]].append(row["throughput_ns"] / row["steps"] / 1e9)
    found = {}
    for name, (least_s, what) in least_times(block, cells, ceilings).items():
        if steps_s[name] and (step_s := median(steps_s[name])) < least_s / SAFETY:
            found[name] = (
                f"its steps would take {numbers.si(step_s, 's')}: for {what} on each device, this "
                f"machine was measured to need {numbers.si(least_s, 's')}"
            )
    return found


def least_times(
    block: BlockRow, cells: Mapping[str, CellRow], ceilings: Ceilings
) -> dict[str, tuple[float, str]]:
    """Return, by implementation, the seconds of a step at the ceilings, and for what."""
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
