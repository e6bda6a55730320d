"""The causes of a difference as rows, a cause each: for CSV, Parquet and the terminal."""

from __future__ import annotations

from typing import TypedDict

from bench.analyse.causes.attribution import Attribution
from bench.present.cause_sentences import called


class CauseRow(TypedDict):
    """What a step of cell A spends more or less time on than one of cell B."""

    a: str
    b: str
    timed_ratio: float
    """Ratio of their latencies, as timed in rounds."""
    untraced_ratio: float
    """Ratio of the steps just before the traced ones, without a profiler."""
    explained: float
    """Share of that last difference that all causes but idle time come to."""
    what: str
    source: str
    sizes: str
    a_ops: str
    b_ops: str
    """HLO instructions."""
    a_transposes: bool
    b_transposes: bool
    """Whether any of them moves elements to another layout."""
    a_s: float
    b_s: float
    difference_s: float
    """Seconds a traced step."""


def cause_rows(a: str, b: str, found: Attribution, timed_ratio: float) -> list[CauseRow]:
    """All causes of a difference, as rows of a table."""
    return [
        CauseRow(
            a=a,
            b=b,
            timed_ratio=timed_ratio,
            untraced_ratio=found.untraced,
            explained=found.explained,
            what=called(cause.key),
            source=cause.key.source,
            sizes=" ".join(cause.key.sizes),
            a_ops=" ".join(cause.a.ops),
            b_ops=" ".join(cause.b.ops),
            a_transposes=cause.a.transposes,
            b_transposes=cause.b.transposes,
            a_s=cause.a.seconds,
            b_s=cause.b.seconds,
            difference_s=cause.difference,
        )
        for cause in found.causes
    ]
