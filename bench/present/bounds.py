"""Bounds on ratios of times in words, rounded so that they remain true."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from bench.records import numbers

TENTH = 0.1
"""Shares from here on have three digits, as rounding them to two would widen bounds visibly."""

EQUAL = "the program is equal"
"""Reason for a verdict that follows from no times."""

NEGLIGIBLE = 0.001
"""Shares below which the lower of two bounds says nothing to a reader."""

TWICE = 2.0
"""Ratios from here on are written as factors, because percentages above 100 are hard to read."""


def outward(share: float, rounded: Callable[[float], int] = math.ceil) -> str:
    """Return a bound, `4.2 %` or `25.1 %`, rounded so that it remains true: by default up."""
    if share <= 0 or math.isinf(share):
        return f"{numbers.INFINITY if share > 0 else 0}{numbers.NARROW}%"
    return f"{digits_of(100 * share, rounded, 2 if share < TENTH else 3)}{numbers.NARROW}%"


def percentage(times: float) -> str:
    """Return a bound as a percentage, or as a factor where that is easier to read."""
    return outward(times - 1) if times < TWICE else f"a factor of {digits_of(times)}"


def digits_of(value: float, rounded: Callable[[float], int] = math.ceil, digits: int = 0) -> str:
    """Return so many digits of a bound: by default two, or three where two would be 1.0."""
    digits = digits or (3 if 1 <= value < 1 + TENTH else 2)
    unit = 10.0 ** (math.floor(math.log10(value)) + 1 - digits)
    return numbers.significant(rounded(round(value / unit, 6)) * unit, digits)


def within(most: float) -> str:
    """Return `within 4.2 %` or `within a factor of 2.4`, rounded up."""
    return f"within {percentage(most)}"


def longer(least: float, most: float, whom: str = "") -> str:
    """Return `4.1 % to 5.2 % longer` or `2.3 to 2.6 times as long`; than or as `whom`, if any."""
    bounded = most < math.inf
    percent = (most if bounded else least) < TWICE
    low = outward(least - 1, math.floor) if percent else digits_of(least, math.floor)
    how = f"longer{whom and ' than' + whom}" if percent else f"times as long{whom and ' as' + whom}"
    if not bounded:
        return f"at least {low} {how}"
    start = "up" if least - 1 < NEGLIGIBLE else low
    return f"{start} to {outward(most - 1) if percent else digits_of(most)} {how}"


def behind(least: float) -> str:
    """Return `71 % behind`, or `2.3 times the fastest`, rounded down."""
    if least < TWICE:
        return f"{outward(least - 1, math.floor)} behind"
    return f"{digits_of(least, math.floor)} times the fastest"


def faster(most: float) -> str:
    """Return `4.2 % faster` or `2.4 times as fast`, rounded up."""
    return f"{outward(most - 1)} faster" if most < TWICE else f"{digits_of(most)} times as fast"


def sure(low: float, high: float) -> str:
    """Return an interval in words: `within 4.2 %`, or `3.1 % to 5.2 %` if it excludes 1."""
    if math.isinf(bound_of(low, high)):
        return "too few rounds"
    if low <= 1 <= high:
        return within(bound_of(low, high))
    least, most = (low, high) if low > 1 else (1 / high, 1 / low)
    if most >= TWICE:
        return f"a factor of {digits_of(least, math.floor)} to {digits_of(most)}"
    near, far = sorted(abs(end - 1) for end in (low, high))
    return f"{outward(near, math.floor)} to {outward(far)}"


def describe_verdict(cell: Mapping[Any, Any]) -> str:
    """Return the bounds behind a cell's verdict, as from `sure`, or that its program is equal."""
    return EQUAL if cell["proved_same"] else sure(cell["verdict_low"], cell["verdict_high"])


def bound_of(low: float, high: float) -> float:
    """Return the largest ratio of either side to the other; infinite without an interval."""
    return max(high, 1 / low) if low > 0 and high < math.inf else math.inf
