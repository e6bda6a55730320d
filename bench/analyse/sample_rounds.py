"""Samples arranged by round and arm, and the spread of each arm's step times.

Arms take turns within a round, so whatever slows the host slows all of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Figure = Literal["throughput", "latency"]


@dataclass(frozen=True)
class Rounds:
    """A block's samples as tables, one row per round and one column per arm."""

    arms: tuple[str, ...]
    attempt: NDArray[np.int64]
    """(rounds,): the worker process of each round; those of one process are contiguous."""
    throughput: NDArray[np.float64]
    """(rounds, arms): seconds per step, in chronological order; NaN where an arm had no turn."""
    latency: NDArray[np.float64]
    """Like `throughput`, but waiting for the devices after every step; identical to it where the
    throughput span is a single step."""

    @classmethod
    def of(cls, samples: pd.DataFrame) -> Self:
        """Arrange one block's samples: a frame with the columns of bench.records.rows.SampleRow."""
        column, arms = pd.factorize(samples["arm"])
        number = samples["round"].to_numpy(np.int64)
        longest = int(number.max(initial=0)) + 1
        keys, row = np.unique(
            pd.factorize(samples["attempt"])[0] * longest + number, return_inverse=True
        )

        def table(values: NDArray[np.generic]) -> NDArray[np.float64]:
            filled = np.full((len(keys), len(arms)), np.nan)
            filled[row, column] = values
            return filled

        steps, waited = (samples[name].to_numpy(float) for name in ("steps", "latency_steps"))
        throughput = samples["throughput_ns"].to_numpy(float) / 1e9 / steps
        latency = samples["latency_ns"].to_numpy(float) / 1e9
        latency = np.divide(latency, waited, out=throughput.copy(), where=waited > 0)
        return cls(
            arms=tuple(arms.tolist()),
            attempt=keys // longest,
            throughput=table(throughput),
            latency=table(latency),
        )

    def seconds(self, arm: str) -> NDArray[np.float64]:
        """Return the arm's seconds per step, (rounds,); NaN where it had no turn."""
        if arm not in self.arms:
            return np.full(len(self.attempt), np.nan)
        return self.throughput[:, self.arms.index(arm)]

    def log_ratios(self, pairs: Sequence[tuple[str, str]]) -> NDArray[np.float64]:
        """Return log(time(arm) / time(other)), (rounds, pairs); NaN where not both had a turn."""
        place = {arm: column for column, arm in enumerate(self.arms)}
        arms, others = ([place[pair[end]] for pair in pairs] for end in (0, 1))
        return np.log(self.throughput[:, arms] / self.throughput[:, others])

    def paired(self, opponents: Mapping[str, str]) -> dict[str, list[NDArray[np.float64]]]:
        """Return the log ratios of each arm to its opponent, wherever both took turns.

        The result has, by arm, one array per worker process with a value for each round that the
        two share; arms that share none are left out.
        """
        known = {a: b for a, b in opponents.items() if {a, b} <= set(self.arms)}
        series = self._series(self.log_ratios([*known.items()]))
        return {arm: own for arm, own in zip(known, series, strict=True) if own}

    def log_seconds(self, arm: str) -> list[NDArray[np.float64]]:
        """Return log(seconds per step) of every round with the arm, one array per worker."""
        return self._series(np.log(self.seconds(arm))[:, np.newaxis])[0]

    @cached_property
    def starts(self) -> NDArray[np.intp]:
        """(processes,): the first round of each."""
        return np.flatnonzero(np.diff(self.attempt, prepend=-1))

    def _series(self, values: NDArray[np.float64]) -> list[list[NDArray[np.float64]]]:
        """Return each column of (rounds, columns) without NaNs, one array per worker process."""
        parts = [(part, ~np.isnan(part)) for part in np.split(values.T, self.starts[1:], axis=1)]
        return [
            [part[column, known[column]] for part, known in parts if known[column].any()]
            for column in range(values.shape[1])
        ]


class Spread(NamedTuple):
    """Seconds per step over an arm's rounds: median, quartiles and number of rounds."""

    median: float
    lower_quartile: float
    upper_quartile: float
    rounds: int


def spreads(rounds: Rounds, figure: Figure) -> dict[str, Spread]:
    """Return the median and quartiles of every arm that has samples."""
    seconds = pd.DataFrame(getattr(rounds, figure))
    quantiles = seconds.quantile([0.5, 0.25, 0.75]).to_numpy().tolist()
    each = zip(rounds.arms, *quantiles, seconds.count().tolist(), strict=True)
    return {arm: Spread(*values) for arm, *values in each if values[-1]}
