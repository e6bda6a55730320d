"""Data for comparing any two cells on the page: bench/present/web/charts/compare.js reads it."""

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from bench.analyse.causes import means, sides
from bench.analyse.comparisons import Comparison
from bench.present.cause_sentences import called
from bench.present.columns import packed, shortened
from bench.records.trace_rows import TraceRow


def ratios(block: Comparison, arms: Mapping[str, int]) -> dict[str, list[float | None]]:
    """Return the ratios of `explain` for arms that shared rounds, by their numbers: `3/5`.

    Each is the first's time over the second's, with the ends of the interval that holds for all
    pairs of the block simultaneously, or None where there is no interval.
    """
    found = {}
    for place, arm in enumerate(block.arms[:-1], 1):
        for other, claim in block.claims_of(arm, block.arms[place:]).items():
            if claim.ratio.paired:
                low, high = claim.verdict.low, claim.verdict.high
                ends = [low, high] if low > 0 and math.isfinite(high) else [None, None]
                key = f"{arms[arm]}/{arms[other]}"
                found[key] = shortened([claim.ratio.value, *ends], 5)
    return found


def spent(traces: Mapping[str, TraceRow]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return how traced steps spend their time, so that the page need only subtract.

    Returns:
      `what` and `source` of each cause, as columns; and by cell, `causes`, the numbers of the
      step's causes, `ns`, nanoseconds on each as in `attribution.sides` with operations of all
      sizes together, `transposing`, the causes whose operations change an array's layout, and
      `steps_ns`, the times of a traced step and of one just before without a profiler.
    """
    causes: dict[tuple[str, str], int] = {}
    cells = {}
    for name, trace in traces.items():
        seconds: defaultdict[int, float] = defaultdict(float)
        transposing: set[int] = set()
        for key, side in sides(trace).items():
            cause = causes.setdefault((called(key), key.source), len(causes))
            seconds[cause] += side.seconds
            transposing |= {cause} if side.transposes else set()
        cells[name] = {
            "causes": list(seconds),
            "transposing": sorted(transposing),
            "ns": [round(1e9 * each) for each in seconds.values()],
            "steps_ns": [
                round(1e9 * means(trace)["total"]),
                round(statistics.median(trace["untraced_ns"])),
            ],
        }
    columns = {"what": [what for what, _ in causes], "source": [source for _, source in causes]}
    return {name: packed(values) for name, values in columns.items()}, cells
