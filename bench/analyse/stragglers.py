"""Stragglers: which of several processes is slow, and by how much."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bench.analyse.causes import attribution
from bench.records.cells import Block
from bench.records.trace_rows import TraceRow


@dataclass(frozen=True)
class Spread:
    """Spread between the processes of an implementation."""

    slowest: int
    """Rank of the process that most often takes the longest."""
    often: float
    """Share of the spans in which it does."""
    excess: float
    """Median over spans of the longest time over the shortest, less 1."""


def process_times(timed: pd.DataFrame, places: NDArray[np.intp]) -> dict[str, NDArray[np.int64]]:
    """Return the nanoseconds of each arm's throughput spans, (spans, processes)."""
    rows = timed[["arm", "process_throughput_ns"]].iloc[places].dropna()
    return {
        str(arm): np.array(own["process_throughput_ns"].tolist(), dtype=np.int64)
        for arm, own in rows.groupby("arm")
    }


def spread(times: NDArray[np.int64]) -> Spread:
    """Compare processes by their times, (spans, processes), in any unit."""
    counts = np.bincount(times.argmax(axis=1), minlength=times.shape[1])
    excess = np.median(times.max(axis=1) / times.min(axis=1)) - 1
    slowest = int(counts.argmax())
    return Spread(slowest, float(counts[slowest] / len(times)), float(excess))


def busiest(trace: TraceRow, block: Block) -> tuple[int, float]:
    """Return the rank that computes the most in traced steps, and its excess over the mean."""
    devices = block.mesh.size // block.options.processes
    seconds = np.zeros(block.options.processes)
    for place, computing in attribution.stragglers(trace).items():
        seconds[place // devices] += computing / devices
    rank = int(seconds.argmax())
    return rank, float(seconds[rank] / seconds.mean() - 1)
