"""The causes of differences as a table, in CSV and Parquet."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pandas as pd

from bench.analyse.causes import Cause, baseline_cell, pair_of
from bench.analyse.comparisons import Comparison
from bench.present.cause_sentences import called
from bench.present.explanation import Explanation
from bench.records.trace_rows import TraceRow

_OF_PAIR: dict[str, Callable[[Explanation], Any]] = {
    "a": lambda pair: pair.a,
    "b": lambda pair: pair.b,
    "timed_ratio": lambda pair: pair.timed_ratio,
    "untraced_ratio": lambda pair: pair.attribution.untraced,
    "explained": lambda pair: pair.attribution.explained,
}
_OF_CAUSE: dict[str, Callable[[Cause], Any]] = {
    "what": lambda cause: called(cause.key),
    "source": lambda cause: cause.key.source,
    "sizes": lambda cause: " ".join(cause.key.sizes),
    "a_ops": lambda cause: " ".join(cause.a.ops),
    "b_ops": lambda cause: " ".join(cause.b.ops),
    "a_transposes": lambda cause: cause.a.transposes,
    "b_transposes": lambda cause: cause.b.transposes,
    "a_s": lambda cause: cause.a.seconds,
    "b_s": lambda cause: cause.b.seconds,
    "difference_s": lambda cause: cause.difference,
}


def causes_frame(pairs: Iterable[Explanation]) -> pd.DataFrame:
    """Return one row per cause of a difference between cells `a` and `b`.

    `timed_ratio` is from the rounds, `untraced_ratio` from the steps just before the traced ones,
    and `explained` is the share of the latter that all causes but idle time account for. `a_ops`
    and `b_ops` are HLO instructions, `a_transposes` is whether any of them changes an array's
    layout, and `a_s`, `b_s` and `difference_s` are seconds per traced step.
    """
    rows = [
        {
            **{name: of(pair) for name, of in _OF_PAIR.items()},
            **{name: of(cause) for name, of in _OF_CAUSE.items()},
        }
        for pair in pairs
        for cause in pair.attribution.causes
    ]
    return pd.DataFrame(rows, columns=[*_OF_PAIR, *_OF_CAUSE])


def baseline_pairs(
    blocks: Iterable[Comparison], traces: Mapping[str, TraceRow]
) -> Iterator[Explanation]:
    """Yield each traced cell with the baseline of its block."""
    for block in blocks:
        for cell in block.ranked:
            if (pair := pair_of(cell, baseline_cell(block), traces)) is not None:
                yield Explanation(cell["cell"], f"{block.name}/{block.baseline}", *pair)
