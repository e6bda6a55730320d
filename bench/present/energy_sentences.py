"""A sentence about the source of a run's energy figures, or why there are none."""

from collections import Counter
from collections.abc import Iterable

from bench.analyse.cell_table import Tables
from bench.records import numbers


def sentence(found: Tables) -> str:
    """Name the energy counter, or why there is none; empty if no launch looked for counters."""
    meters = [meter for block in found.comparisons for meter in found.meters.get(block.name, ())]
    reasons = sorted({meter["reason"] for meter in meters if meter["reason"]})
    known = [meter for meter in meters if not meter["reason"]]
    parts = []
    if known:
        longest = max(meter["period_s"] for meter in known)
        kinds = sorted({_kinds(meter["counted"]) for meter in known})
        parts.append(
            f"of {' or '.join(kinds)}, each as a whole, with idle power and other programs; the "
            f"counters advance every {numbers.si(longest, 's')}"
        )
        unsure = _unsure(found)
        if unsure:
            parts.append(unsure)
    if reasons:
        parts.append(f"{'elsewhere ' if known else ''}unknown: {'; '.join(reasons)}")
    return "; ".join(parts)


def _kinds(counted: Iterable[str]) -> str:
    counts = Counter(counted)
    return " and ".join(numbers.count(count, kind) for kind, count in sorted(counts.items()))


def _unsure(found: Tables) -> str:
    """Count the cells that have no figure although there are counters."""
    blocks = {
        name for name, meters in found.meters.items() if not all(one["reason"] for one in meters)
    }
    cells = found.cells
    timed = cells[(cells["status"] == "ok") & cells["block"].isin(blocks)]
    missing = int(timed["joules_per_step"].isna().sum())
    if not missing:
        return ""
    return (
        f"unknown for {numbers.count(missing, 'cell')}, whose turns are too short for that: more "
        "--seconds make them longer"
    )
