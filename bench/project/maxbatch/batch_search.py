"""The search for the largest batch that a device's memory holds, in as few compilations as can be.

Memory of a step is nearly a + b x batch: state and updates, and activations. So each guess is where
the straight line through the two nearest batches meets the limit. Where memory bends, such guesses
come from one side only, or are above what is too large; after two of these, or at once, the middle
is asked.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

RESOLUTION = 16
"""The search ends when the next batch that is known not to fit is larger by less than 1/16."""

GROWTH = 16
"""Most that a guess may be larger than what was compiled before: lines from far off mislead."""


@dataclass
class Search:
    """Finds the largest multiple of `quantum` whose bytes are within the limit.

    Args:
      quantum: the smallest batch, of which all others are multiples.
      limit: bytes.
      known: bytes by batch, as far as they are known.
    """

    quantum: int
    limit: float
    known: dict[int, float] = field(default_factory=dict)
    _fitted: list[bool] = field(default_factory=list)
    """Whether each batch fitted that was asked for."""

    def __post_init__(self) -> None:
        wrong = [batch for batch in self.known if batch % self.quantum]
        if wrong:
            raise ValueError(f"batches {wrong} are no multiples of {self.quantum}")

    def add(self, batch: int, size: float) -> None:
        """Note a size; infinite where all that is known is that the batch does not fit."""
        self.known[batch] = size
        self._fitted.append(size <= self.limit)

    @property
    def asked(self) -> int:
        """How many batches it was told of beside those that were known."""
        return len(self._fitted)

    @property
    def fits(self) -> int | None:
        """The largest batch that is known to fit, with all smaller ones; None if there is none."""
        below = self.too_large or float("inf")
        return max((b for b, size in self.known.items() if size <= self.limit and b < below),
                   default=None)  # fmt: skip

    @property
    def too_large(self) -> int | None:
        """The smallest batch that is known not to fit."""
        return min((b for b, size in self.known.items() if size > self.limit), default=None)

    @property
    def next(self) -> int | None:
        """The batch to find out about next; None if the search has ended."""
        low, high = self.fits, self.too_large
        if low is None:
            return None if high == self.quantum else self.quantum
        step = max(self.quantum, low // RESOLUTION // self.quantum * self.quantum)
        if high is not None and high - low <= step:
            return None
        if high is None:
            return max(self._whole(min(self._on_line(low), GROWTH * low)), low + step)
        one_sided = len(set(self._fitted[-2:])) == 1 and len(self._fitted) > 1
        guess = self._on_line(low)
        if one_sided or guess >= high:
            guess = math.isqrt(low * high)
        # What is just above the largest that fits ends the search.
        return min(max(self._whole(guess), low + step), high - self.quantum)

    def _whole(self, batch: int) -> int:
        return batch // self.quantum * self.quantum

    def _on_line(self, low: int) -> int:
        """Where the line through what fits and the nearest other batch meets the limit."""
        sizes = {b: size for b, size in self.known.items() if b != low and math.isfinite(size)}
        others = sorted(sizes, key=lambda b: abs(b - low))
        if not others:
            return 2 * low
        other = others[0]
        slope = (sizes[other] - self.known[low]) / (other - low)
        if slope <= 0:
            return GROWTH * low
        return int(low + (self.limit - self.known[low]) / slope)
