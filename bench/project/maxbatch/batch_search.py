"""Search for the largest batch that fits in a device's memory, with few compilations.

The memory of a step is nearly a + b x batch: state and updates, and activations. So each guess is
where the line through the two nearest batches reaches the limit. Where memory is not linear, such
guesses may approach from one side only, or exceed a batch that is known to be too large; after two
of the former, or at once for the latter, the search bisects.
"""

import math
from dataclasses import dataclass, field

RESOLUTION = 16
"""The search ends once the smallest batch that does not fit is larger by less than 1/16."""

GROWTH = 16
"""Largest factor between a guess and the batches compiled before, as distant lines mislead."""


@dataclass
class Search:
    """A search for the largest multiple of `quantum` whose memory is within the limit."""

    quantum: int
    """The smallest batch."""
    limit: float
    """Bytes."""
    known: dict[int, float] = field(default_factory=dict)
    """Bytes by batch, where they are known."""
    _fitted: list[bool] = field(default_factory=list)
    """Whether each guess fitted, in order."""

    def add(self, batch: int, size: float) -> None:
        """Record the bytes of a guess; infinite if it is only known not to fit."""
        self.known[batch] = size
        self._fitted.append(size <= self.limit)

    @property
    def asked(self) -> int:
        """Number of guesses recorded."""
        return len(self._fitted)

    @property
    def fits(self) -> int | None:
        """The largest batch below all that are too large; None if there is none."""
        below = self.too_large or math.inf
        return max((b for b in self.known if b < below), default=None)

    @property
    def too_large(self) -> int | None:
        """The smallest batch that is known not to fit."""
        return min((b for b, size in self.known.items() if size > self.limit), default=None)

    @property
    def next(self) -> int | None:
        """The next guess; None if the search has ended."""
        low, high = self.fits, self.too_large
        if low is None:
            return None if high == self.quantum else self.quantum
        step = max(low // RESOLUTION // self.quantum, 1) * self.quantum
        if high is not None and high - low <= step:
            return None
        guess, last = self._on_line(low), self._fitted[-2:]
        if high is None:
            guess = min(guess, GROWTH * low)
        elif guess >= high or last in ([True, True], [False, False]):
            guess = math.isqrt(low * high)
        # A guess just above the largest batch that fits would end the search.
        guess = max(guess // self.quantum * self.quantum, low + step)
        return guess if high is None else min(guess, high - self.quantum)

    def _on_line(self, low: int) -> int:
        """Return where the line through `low` and the batch nearest to it reaches the limit."""
        others = [b for b, size in self.known.items() if b != low and math.isfinite(size)]
        if not others:
            return 2 * low
        other = min(others, key=lambda b: abs(b - low))
        slope = (self.known[other] - self.known[low]) / (other - low)
        if slope <= 0:
            return GROWTH * low
        return int(low + (self.limit - self.known[low]) / slope)
