"""An attribution in words."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from bench.analyse.causes.attribution import Attribution, Cause, Key
from bench.records import numbers

_CATEGORIES = {
    "matmul": "matrix products",
    "elementwise": "elementwise operations",
    "layout": "copies and transpositions",
    "control": "loops and branches themselves",
    "unknown": "operations of unknown programs",
    "dispatch": "waiting for a launch or its inputs",
    "wait": "waiting for other devices in collectives",
    "idle": "idle",
}
_PHASES = {
    "forward": ", forward",
    "backward": ", backward",
    "recomputed": ", recomputed",
    "update": ", update",
    "other": ", beside passes and update",
}
_MOST = 3
"""Causes that a sentence names, of those in its direction."""

_TOLD = 0.05
"""Share of the difference that is worth naming; in the other direction, twice that."""


class Theme(NamedTuple):
    """Causes of one kind, taken together."""

    category: str
    phase: str
    kind: str
    """Of collectives: `all-reduce`."""
    transposes: str
    """`a` or `b` where only its operations move elements to another layout."""


@dataclass(frozen=True)
class Reason:
    """Why a step of one cell takes another time than one of another."""

    sentence: str
    main: str = ""
    """The main cause, in a few words; empty if the traces do not show the difference."""
    seconds: float = 0.0
    """What the main cause takes longer in A."""


def reason(a: str, b: str, found: Attribution, timed_ratio: float) -> Reason:
    """Put an attribution into words.

    Args:
      a: what A is called.
      b: what B is called.
      found: the attribution of their traces.
      timed_ratio: step time of A over that of B, waited for like traced steps, but measured without
        a profiler.
    """
    share = found.explained if (found.untraced > 1) == (timed_ratio > 1) else 0.0
    more = "more" if timed_ratio > 1 else "less"
    amount = numbers.percent(abs(timed_ratio - 1))
    start = f"When every step is waited for, {a} takes {amount} {more} time than {b}"
    themes = [
        (theme, causes)
        for theme, causes in _themes(found.causes).items()
        if theme.category != "idle"
    ]
    themes.sort(key=lambda item: -abs(_sum(item[1])))
    along = [item for item in themes if share and _sum(item[1]) / found.whole >= _TOLD][:_MOST]
    against = [item for item in themes if share and _sum(item[1]) / found.whole <= -2 * _TOLD][:1]
    if not along:
        seen = f"{signed_percent(found.untraced - 1)} just before tracing"
        seen += f", {signed_percent(found.gap)} as traced"
        return Reason(f"{start}; the traces do not show why ({seen}).")
    text = f"{start}: {'; '.join(_phrase(a, b, *item) for item in along)}"
    if against:
        text += f"; against that {_phrase(a, b, *against[0])}"
    of_it = numbers.percent(round(share, 3))
    beside, named = signed_percent(found.untraced - 1), signed_percent(found.named)
    text += (
        f". With all smaller causes this explains {of_it} of the difference ({beside} just before "
        f"tracing, {named} by named causes)."
    )
    theme, causes = along[0]
    main = called(causes[0].key) + (", transposing" if theme.transposes else "")
    return Reason(text, main, _sum(causes))


def called(key: Key) -> str:
    """What is matched, in words: `matrix products, backward`."""
    if key.category == "collective":
        return f"moving data in {key.sizes[0]}s"
    return _CATEGORIES[key.category] + _PHASES.get(key.phase, "")


def signed(seconds: float) -> str:
    """A difference of times, with its sign."""
    return numbers.signed(seconds, numbers.si(seconds, "s"))


def signed_percent(share: float) -> str:
    """A difference as a share, with its sign."""
    return numbers.signed(share, numbers.percent(share))


def _themes(causes: Iterable[Cause]) -> dict[Theme, list[Cause]]:
    found: defaultdict[Theme, list[Cause]] = defaultdict(list)
    for cause in causes:
        key = cause.key
        kind = key.sizes[0] if key.category == "collective" else ""
        found[Theme(key.category, key.phase, kind, only_one_transposes(cause))].append(cause)
    return dict(found)


def only_one_transposes(cause: Cause) -> str:
    """`a` or `b` where both have operations, and only its move elements to another layout."""
    if not (cause.a.ops and cause.b.ops) or cause.a.transposes == cause.b.transposes:
        return ""
    return "a" if cause.a.transposes else "b"


def _sum(causes: Iterable[Cause]) -> float:
    return sum(cause.difference for cause in causes)


def _phrase(a: str, b: str, theme: Theme, causes: list[Cause]) -> str:
    text = called(causes[0].key)
    if theme.transposes:
        one, other = (a, b) if theme.transposes == "a" else (b, a)
        text += f", which transpose in {one} and not in {other}"
    largest = sorted(causes, key=lambda cause: -abs(cause.difference))[:2]
    ops = [(cause.a.ops or cause.b.ops)[:1] for cause in largest]
    named = " and ".join(op for own in ops for op in own)
    where = _places(list(dict.fromkeys(c.key.source for c in largest if c.key.source)))
    return f"{text} ({signed(_sum(causes))}{f', {named}' if named else ''}{where})"


def _places(sources: list[str]) -> str:
    """` at transform.py:283 and :290`: the file once, if it is the same."""
    if not sources:
        return ""
    first, *others = sources
    file = first.rpartition(":")[0]
    same = [other.removeprefix(file) for other in others]
    return f" at {' and '.join([first, *same])}"
