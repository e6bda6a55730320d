"""Which process of several is slow, and by how much: from samples, and from traces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    pass


@dataclass(frozen=True)
class Spread:
    """How far apart the processes of an implementation are."""

    slowest: int
    """Rank of the process that most often takes longest."""
    often: float
    """Share of the spans in which it does."""
    excess: float
    """Median over spans of the longest time over the shortest, less 1."""


def spread(times: np.ndarray) -> Spread:
    """Compare processes.

    Args:
      times: (spans, processes), of any unit.
    """
    counts = np.bincount(times.argmax(axis=1), minlength=times.shape[1])
    excess = np.median(times.max(axis=1) / times.min(axis=1)) - 1
    slowest = int(counts.argmax())
    return Spread(slowest, float(counts[slowest] / len(times)), float(excess))
