"""The causes of a difference as rows, a cause each: for CSV, Parquet and the terminal."""

from __future__ import annotations

from typing import Any

from bench.explain.attribution import Attribution, Cause
from bench.explain.words import called


def cause_rows(a: str, b: str, found: Attribution, timed_ratio: float) -> list[dict[str, Any]]:
    """What a step of cell A spends more or less time on than one of cell B.

    Columns: the cells `a` and `b`; `timed_ratio` of their step times, and the share of the
    difference that all causes but idle time have `explained`; `what` a cause is, its `source` line
    and the `sizes` it makes; HLO instructions (`a_ops`, `b_ops`), whether any of them moves
    elements to another layout (`a_transposes`, `b_transposes`), and seconds a traced step (`a_s`,
    `b_s`, `difference_s`).
    """
    return [_row(a, b, cause, found, timed_ratio) for cause in found.causes]


def _row(a: str, b: str, cause: Cause, found: Attribution, timed_ratio: float) -> dict[str, Any]:
    return {
        "a": a,
        "b": b,
        "timed_ratio": timed_ratio,
        "explained": found.explained(timed_ratio),
        "what": called(cause.key),
        "source": cause.key.source,
        "sizes": " ".join(cause.key.sizes),
        "a_ops": " ".join(cause.a.ops),
        "b_ops": " ".join(cause.b.ops),
        "a_transposes": cause.a.transposes,
        "b_transposes": cause.b.transposes,
        "a_s": cause.a.seconds,
        "b_s": cause.b.seconds,
        "difference_s": cause.difference,
    }
