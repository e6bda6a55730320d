"""Formatting of numbers: three significant digits, SI prefixes, no-break spaces."""

import math
from decimal import ROUND_HALF_UP, Decimal, localcontext

MISSING = "\N{EN DASH}"
NARROW = "\N{NARROW NO-BREAK SPACE}"
TIMES = "\N{MULTIPLICATION SIGN}"
INFINITY = "\N{INFINITY}"
MINUS = "\N{MINUS SIGN}"

_PREFIXES = {-12: "p", -9: "n", -6: "\N{MICRO SIGN}", -3: "m", 0: "", 3: "k", 6: "M", 9: "G",
             12: "T", 15: "P", 18: "E"}  # fmt: skip


def _fixed(value: float, digits: int, kind: str = "f") -> str:
    """Round halves away from zero, as the page's scripts do; Python rounds them to even digits."""
    with localcontext(rounding=ROUND_HALF_UP):
        return f"{Decimal(float(value)):.{digits}{kind}}"


def significant(value: float, digits: int = 3) -> str:
    """Format in plain notation with trailing zeros: `1234.5` -> `1230`, `0.98765` -> `0.988`."""
    if value == 0:
        return "0"
    rounded = float(_fixed(value, digits - 1, "e"))
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(rounded))))
    return f"{rounded:.{decimals}f}".replace("-", MINUS)


def si(value: float | None, unit: str) -> str:
    """Format with an SI prefix: `(0.00123, "s")` -> `1.23 ms`; a dash if there is no value."""
    if value is None or not math.isfinite(value):
        return MISSING
    rounded = float(_fixed(value, 2, "e"))
    power = 3 * math.floor(math.log10(abs(rounded)) / 3) if rounded else 0
    power = min(max(power, -12), 18)
    return f"{significant(rounded / 10**power)}{NARROW}{_PREFIXES[power]}{unit}"


def range_si(low: float, high: float, unit: str, like: float | None = None) -> str:
    """Format a range, `1.20 - 1.31 ms` with an en dash; its prefix suits `like`, or else `high`."""
    prefixed = si(high if like is None else like, unit).partition(NARROW)[2]
    power = next(p for p, prefix in _PREFIXES.items() if prefixed == f"{prefix}{unit}")
    ends = (significant(end / 10**power) for end in (low, high))
    return "\N{EN DASH}".join(ends) + NARROW + prefixed


def bytes_(value: float | None) -> str:
    """Format bytes with binary prefixes: `12.3 MiB`; a dash if there is no value."""
    if value is None or not math.isfinite(value):
        return MISSING
    for prefix in ("", "Ki", "Mi", "Gi"):
        if value < 1000:  # noqa: PLR2004 (not 1024, so that there are at most three digits)
            return f"{significant(value)}{NARROW}{prefix}B" if prefix else f"{value:.0f}{NARROW}B"
        value /= 1024
    return f"{significant(value)}{NARROW}TiB"


def clock(seconds: float) -> str:
    """Format a duration to the minute: `45 s`, `3 min`, `2 h 05 min`."""
    if round(seconds) < 60:  # noqa: PLR2004
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min"


def percent(share: float) -> str:
    """Format a share: `0.1234` -> `12.3 %`; with two decimals below 1 %, with none from 100 %."""
    value = 100 * share
    if 0 < value < 0.005:  # noqa: PLR2004
        return f"<0.01{NARROW}%"
    size = abs(value)
    decimals = 0 if size >= 99.95 or not size else 1 if size >= 1 else 2  # noqa: PLR2004
    return f"{_fixed(value, decimals)}{NARROW}%".replace("-", MINUS)


def scientific(value: float | None) -> str:
    """Format with two digits: `0.000000412` -> `4.1e-7`; a dash if there is no value."""
    if value is None or not math.isfinite(value):
        return MISSING
    digits, _, power = _fixed(value, 1, "e").partition("e")
    return f"{digits}e{int(power)}" if value else "0"


def ratio(value: float) -> str:
    """Format a ratio to a thousandth, `1.253`, or below 0.01 and from 10 on to three digits."""
    return significant(value) if 0 < value < 0.01 or value >= 9.9995 else _fixed(value, 3)  # noqa: PLR2004


def count(number: int, noun: str, plural: str = "") -> str:
    """Format a count with its noun: `1 cell`, `2 cells`."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"
