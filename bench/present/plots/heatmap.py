"""Ratios to the baseline over meshes and batches."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from matplotlib.collections import PolyCollection
from matplotlib.colors import LinearSegmentedColormap, to_rgb

from bench.present.plots import style
from bench.present.plots.style import (
    INK,
    LINE,
    MUTED,
    PALETTE,
    PAPER,
    SHADE,
    Grid,
)
from bench.records import numbers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pandas as pd
    from matplotlib.axes import Axes

    from bench.present.plots.style import Plot

_COLOURS = LinearSegmentedColormap.from_list(
    "ratio", [PALETTE[0], "#8cc3e3", "#f7f7f5", "#f0b48a", PALETTE[1]]
)
"""Blue is faster, orange slower: also to those who cannot tell red from green."""

FULL = 1.5
"""From this ratio on, and from 1 / 1.5 down, colours do not change any more."""


_FIELD = 0.38
"""Inches that a field is wide; it is half as high."""

_GAP = 0.4
"""Fields between panels."""


def draw(slug: str, cells: pd.DataFrame, names: Sequence[str]) -> Plot:
    """Draw a panel an implementation: meshes downwards, batches across, the ratio in each field.

    Args:
      slug: file name.
      cells: rows of the tidy table, of one subject; those without a time show their status.
      names: the implementations shown, in order.
    """
    meshes = list(cells.sort_values(["devices", "mesh"])["mesh"].unique())
    batches = sorted(cells["batch"].unique())
    margin = style.room(meshes)
    wide = max(len(batches), style.room(names) / _FIELD) + _GAP
    high = len(meshes) + 1.6
    columns = min(len(names), max(1, int((style.WIDTH - margin) / (_FIELD * wide))))
    rows = -(-len(names) // columns)
    grid = Grid(columns=1, height=_FIELD / 2 * (high * rows), left=margin, top=0.05, bottom=0.2)
    of = dict(list(cells.groupby("implementation")))
    found: dict[tuple[float, float], Mapping[Any, Any]] = {}
    with style.styled(slug, {"axes.grid": False, "axes.edgecolor": PAPER}):
        # One set of axes for all panels: they cost more than anything within them.
        figure, (axes,) = grid.figure(1)
        axes.set_xlim(0, max(columns * wide - _GAP, (style.WIDTH - margin) / _FIELD))
        axes.set_ylim(high * rows, 0)
        for number, name in enumerate(names):
            row, column = divmod(number, columns)
            left, top = column * wide, row * high + 1
            axes.text(left, top - 0.3, style.short(name), fontsize=7,
                      weight="bold")  # fmt: skip
            if number + columns >= len(names):
                for x, batch in enumerate(batches):
                    axes.text(left + x + 0.5, top + len(meshes) + 0.5, str(batch), color=MUTED,
                              fontsize=6.5, ha="center", va="center")  # fmt: skip
            found |= {
                (left + batches.index(cell["batch"]), top + meshes.index(cell["mesh"])): cell
                for cell in of[name].to_dict("records")
            }
        _fields(axes, found)
        lines = [row * high + 1.5 + number for row in range(rows) for number in range(len(meshes))]
        axes.set_yticks(lines, [style.short(mesh) for mesh in meshes] * rows)
        axes.set_xticks([])
        grid.label(figure, "global batch")
        return style.render(figure, slug)


def colour(ratio: float) -> tuple[float, float, float]:
    """Of a field: as far from white as the ratio is from 1, by its logarithm."""
    share = 0.5 + 0.5 * math.log(ratio) / math.log(FULL)
    red, green, blue, _ = _COLOURS(min(1.0, max(0.0, share)))
    return red, green, blue


def _fields(axes: Axes, found: Mapping[tuple[float, float], Mapping[Any, Any]]) -> None:
    timed = {place: row for place, row in found.items() if not math.isnan(row["ratio"])}
    others = {place: row for place, row in found.items() if place not in timed}
    colours = [colour(row["ratio"]) for row in timed.values()]
    axes.add_collection(
        PolyCollection([_square(*place) for place in timed], facecolors=colours, edgecolors=PAPER,
                       linewidths=0.8),
        autolim=False,
    )  # fmt: skip
    axes.add_collection(
        PolyCollection([_square(*place) for place in others], facecolors=SHADE, edgecolors=LINE,
                       hatch="////", linewidths=0.4),
        autolim=False,
    )  # fmt: skip
    for ((x, y), row), fill in zip(timed.items(), colours, strict=True):
        axes.text(x + 0.5, y + 0.5, _text(row), color=_ink(fill), fontsize=6.5, ha="center",
                  va="center")  # fmt: skip
    for (x, y), row in others.items():
        status = "no ratio" if row["status"] == "ok" else str(row["status"])
        axes.text(x + 0.5, y + 0.5, style.short(status, 7), color=MUTED, fontsize=5.5, ha="center",
                  va="center")  # fmt: skip


def _text(row: Mapping[Any, Any]) -> str:
    return f"{row['ratio']:.2f}" if row["ratio"] < 10 else numbers.significant(row["ratio"])  # noqa: PLR2004


def _square(x: float, y: float) -> list[tuple[float, float]]:
    return [(x, y), (x + 1, y), (x + 1, y + 1), (x, y + 1)]


def _ink(fill: tuple[float, float, float]) -> str:
    """White on dark fields, by the luminance of https://www.w3.org/TR/WCAG21/."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(fill)]  # noqa: PLR2004
    bright = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return INK if bright > 0.25 else PAPER  # noqa: PLR2004
