"""Vectorized operations on many series, as rows of arrays."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray


def nan_quantiles(values: NDArray[np.float64], shares: Sequence[float]) -> NDArray[np.float64]:
    """Return quantiles of the rows of a table: (rows, shares); NaN for a row without values.

    Equal to np.nanquantile, which took 0.9 to 1.7 ms for 96 rounds of 10 arms where this takes
    0.1 ms: it is called three times a block, and a report may have 500 blocks.
    """
    if not values.size:
        return np.full((len(values), len(shares)), np.nan)
    ordered = np.sort(values)  # NaN last
    last = (~np.isnan(values)).sum(axis=1) - 1
    places = np.outer(np.maximum(last, 0), shares)
    below = places.astype(np.intp)
    above = np.minimum(below + 1, np.maximum(last, 0)[:, np.newaxis])
    low, high = (np.take_along_axis(ordered, ends, axis=1) for ends in (below, above))
    return np.asarray(low + (high - low) * (places - below), np.float64)


def stacked(
    series: Sequence[NDArray[np.float64]],
) -> Iterator[tuple[NDArray[np.intp], NDArray[np.float64]]]:
    """Yield, for each length, the indices of the series and the series as (series, length)."""
    lengths = np.array([len(values) for values in series])
    for length in set(lengths.tolist()):
        places = np.flatnonzero(lengths == length)
        yield places, np.array([series[place] for place in places.tolist()])
