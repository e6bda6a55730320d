"""An attribution in one sentence."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from bench import numbers
from bench.explain.attribution import Attribution, Cause, Key

_CATEGORIES = {
    "matmul": "matrix products",
    "elementwise": "elementwise operations",
    "layout": "copies and transpositions",
    "control": "loops and branches themselves",
    "dispatch": "waiting for the host to launch",
    "wait": "waiting for other devices in collectives",
    "idle": "idle",
}
_PHASES = {
    "forward": ", forward",
    "backward": ", backward",
    "recomputed": ", recomputed",
    "update": ", update",
}
_MOST = 3
"""Causes that a sentence names, of those in its direction."""

_TOLD = 0.05
"""Share of the difference that is worth naming."""


class Theme(NamedTuple):
    """Causes of one kind, taken together."""

    category: str
    phase: str
    kind: str
    """Of collectives: `all-reduce`."""
    transposes: str
    """`a` or `b` where only its operations move elements to another layout."""


def sentence(a: str, b: str, found: Attribution, timed_ratio: float) -> str:
    """Why a step of A takes longer or shorter than one of B.

    Args:
      a: what A is called.
      b: what B is called.
      found: the attribution of their traces.
      timed_ratio: step time of A over that of B, measured without a profiler.
    """
    share = found.explained(timed_ratio)
    more = "more" if timed_ratio > 1 else "less"
    start = f"{a} takes {numbers.percent(abs(timed_ratio - 1))} {more} time than {b}"
    if not share:
        return f"{start}; its trace does not show why ({_signed_percent(found.gap)} as traced)."
    gap = found.traced_a - found.traced_b
    themes = sorted(_themes(found.causes).items(), key=lambda item: -abs(_sum(item[1])))
    named = [(theme, causes) for theme, causes in themes if theme.category != "idle"]
    along = [
        _phrase(a, b, theme, causes)
        for theme, causes in named
        if _sum(causes) / gap >= _TOLD
    ][:_MOST]  # fmt: skip
    against = [
        _phrase(a, b, theme, causes)
        for theme, causes in named
        if _sum(causes) / gap <= -2 * _TOLD
    ][:1]  # fmt: skip
    text = f"{start}: {'; '.join(along)}" if along else start
    if against:
        text += f"; against that {against[0]}"
    return f"{text}. This explains {numbers.percent(share)} of the difference."


def called(key: Key) -> str:
    """What is matched, in words: `matrix products, backward`."""
    if key.category == "collective":
        return f"moving data in {key.sizes[0]}s"
    return _CATEGORIES[key.category] + _PHASES.get(key.phase, "")


def milliseconds(seconds: float) -> str:
    """A difference, with its sign."""
    sign = "+" if seconds > 0 else ""
    return f"{sign}{numbers.si(seconds, 's')}"


def _signed_percent(share: float) -> str:
    return f"{'+' if share > 0 else ''}{numbers.percent(share)}"


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
    sources = dict.fromkeys(cause.key.source for cause in causes if cause.key.source)
    where = f", {' and '.join(list(sources)[:2])}" if sources else ""
    return f"{text} ({milliseconds(_sum(causes))}{where})"
