"""Descriptions of a report's charts: their words, and the look of their series.

specs.json describes each in Vega-Lite, including what follows from its rows: orders, guides, ends
of axes. plots/kinds.py supplies the rows of a printed chart, and web/charts/<kind>.js those of the
page's chart, which gets `for_page` as JSON.
"""

import hashlib
import json
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench.records.paths import ROOT

COLOURS = 8
"""templates/style.css defines them as --c0 to --c7: after Okabe and Ito,
https://jfly.uni-koeln.de/color/, with the lightest darkened for lines, and lighter in dark mode."""

SHAPES = {
    "circle": "\u25cf", "square": "\u25a0", "triangle-up": "\u25b2", "diamond": "\u25c6",
    "cross": "\u271a", "triangle-down": "\u25bc", "triangle-right": "\u25b6\ufe0e",
    "triangle-left": "\u25c0\ufe0e",
}  # fmt: skip
"""Vega's names of marks, and similar-looking characters."""

DASHES: tuple[tuple[float, ...], ...] = ((1, 0), (4, 1.5), (1, 1))
"""Dashes, which shapes take in turn."""

FARTHEST_RATIO = 1.5
"""Ratio at which the colours of a heatmap are the strongest, in either direction."""

LOG_TICKS = [float(f"{step}e{power}") for power in range(-12, 19) for step in (1, 2, 5)]
"""Ticks of a logarithmic axis, which shows those within its domain."""

PARTS = {
    "dispatch": ("dispatch", "#7a7a7a", "no launch or inputs yet"),
    "matmul": ("matrix products", "#0b4f8a", ""),
    "elementwise": ("elementwise", "#5fb4ea", "and reductions"),
    "layout": ("layout", "#c06fb0", "copies"),
    "callback": ("callbacks", "#1b8a3f", "functions of the host"),
    "unknown": ("unknown", "#3f3a63", "of other programs"),
    "wait": ("waiting", "#f4d35e", "in collectives"),
    "move": ("moving data", "#c4480a", "in collectives"),
    "idle": ("idle", "var(--line)", ""),
}
"""Label and colour of each part of a traced step, in the order of the bars, and a qualifier of the
label. The colours are distinguishable under colour blindness; a test computes their distances."""

_SHIPPED = {path.stem for path in (ROOT / "implementations").rglob("*.py")}

COLOUR_SEED, SHAPE_SEED = 272_851, 58_281
"""Seeds of the looks, chosen so that no two of implementations/ look alike, and those that are
often compared differ in colour."""


class Look(NamedTuple):
    """The look of one implementation in every chart."""

    colour: int
    """Number of the colour: see COLOURS."""
    shape: str
    dashes: tuple[float, ...]


def looks_of(names: Iterable[str]) -> dict[str, Look]:
    """Return the looks of a run's implementations, which are unique for up to 64 of them.

    A look depends on the name, so that an implementation looks the same in every run and
    projection, unless a name before it in the alphabet has taken its look. An implementation that
    Lockstep does not ship takes a colour that nothing else has in this run, if one is left.
    """
    every = [
        Look(colour, shape, DASHES[place % len(DASHES)])
        for colour in range(COLOURS)
        for place, shape in enumerate(SHAPES)
    ]
    found: dict[str, Look] = {}
    for name in sorted(names, key=lambda name: (name not in _SHIPPED, name)):
        first = len(SHAPES) * _drawn(name, COLOUR_SEED) + _drawn(name, SHAPE_SEED)
        order = every[first:] + every[:first]
        if name not in _SHIPPED:
            taken = {look.colour for look in found.values()}
            order.sort(key=lambda look: look.colour in taken)
        found[name] = next((look for look in order if look not in found.values()), order[0])
    return dict(sorted(found.items()))


def _drawn(name: str, seed: int) -> int:
    """Return a number below 8 that depends on the name alone, in the same way everywhere."""
    return hashlib.sha256(f"{seed} {name}".encode()).digest()[0] % 8


CHARTS: dict[str, dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("charts.toml").read_text("utf-8")
)
"""The words of every kind of chart, in the order of a report."""

SPECS = json.loads(Path(__file__).with_name("specs.json").read_text("utf-8"))
"""Vega-Lite of the charts shared by page and print. `$name` stands for a value or for another part:
of the kind's `values`, or of `common`."""
SPECS["common"]["logTicks"] = LOG_TICKS


def looks(names: Iterable[str], implementations: Iterable[str]) -> dict[str, Any]:
    """Return the looks of some of a run's implementations, as the values that `SPECS` names."""
    every = looks_of(implementations)
    own = {name: every[name] for name in sorted(set(names))}
    return {
        "names": list(own),
        "colours": [f"var(--c{look.colour})" for look in own.values()],
        "shapes": [look.shape for look in own.values()],
        "dashed": [list(look.dashes) for look in own.values()],
    }


def for_page(implementations: Sequence[str]) -> dict[str, Any]:
    """Return the data of the page's script: `letters` are characters of shapes, by name."""
    return {
        "specs": SPECS,
        "charts": CHARTS,
        "looks": looks(implementations, implementations),
        "letters": SHAPES,
        "parts": [
            {"key": key, "title": title, "colour": colour}
            for key, (title, colour, _) in PARTS.items()
        ],
    }
