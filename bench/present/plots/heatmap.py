"""Ratios to the baseline over meshes and batches."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from matplotlib.collections import PolyCollection
from matplotlib.colors import LinearSegmentedColormap, to_rgb

from bench.present.charts import CHARTS, FARTHEST_RATIO, PALETTE
from bench.present.plots import style
from bench.present.plots.plot_plan import Plan, Subject, some
from bench.present.plots.style import INK, LINE, MUTED, PAPER, SHADE
from bench.records import numbers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pandas as pd
    from matplotlib.axes import Axes

    from bench.present.plots.style import Plot

SIDE = 6
"""Most batches, and most meshes, of a heatmap."""

_CHART = CHARTS["heatmap"]
_COLOURS = LinearSegmentedColormap.from_list(
    "ratio", [PALETTE[0], "#8cc3e3", "#f7f7f5", "#f0b48a", PALETTE[1]]
)
"""Blue is faster and orange slower, also for those who cannot tell red from green."""

_FIELD = 0.38
"""Inches that a field is wide; it is half as high."""

_GAP = 0.4
"""Fields between the implementations."""

_FIELDS_A_PANEL = 25
"""Fields that take as long to draw as a panel of another plot."""


def plan(subject: Subject) -> Iterator[Plan]:
    """Yield a plot of all implementations, if there are several meshes and several batches."""
    cells = subject.cells
    all_meshes = list(cells.sort_values(["devices", "mesh"], kind="stable")["mesh"].unique())
    all_batches = sorted(cells["batch"].unique())
    others = cells[(cells["implementation"] != cells["baseline"]) & cells["ratio"].notna()]
    typical = others.groupby("implementation")["ratio"].median().sort_values(kind="stable")
    if len(all_meshes) < 2 or len(all_batches) < 2 or typical.empty:  # noqa: PLR2004
        return
    batches, no_batches = some(all_batches, SIDE, "batches")
    meshes, no_meshes = some(all_meshes, SIDE, "meshes")
    fields = cells[cells["mesh"].isin(meshes) & cells["batch"].isin(batches)]
    each = fields["implementation"].value_counts()
    most = max(1, subject.panels * _FIELDS_A_PANEL // int(each.max()))
    names, no_names = some(
        [name for name in typical.index if name in each], most, "implementations"
    )
    fields = fields[fields["implementation"].isin(names)]
    yield Plan(
        _CHART.title,
        f"{_CHART.note} {_CHART.remarks['untimed']}{no_batches}{no_meshes}{no_names}",
        1 + len(fields) // _FIELDS_A_PANEL,
        lambda: draw(f"heatmap-{subject.slug}", fields, names),
    )


def draw(slug: str, cells: pd.DataFrame, names: Sequence[str]) -> Plot:
    """Draw the ratio of each field: meshes downwards and batches across, by implementation.

    Args:
      slug: file name.
      cells: rows of the tidy table, of one subject; those without a time show their status.
      names: the implementations to show, in order.
    """
    meshes = list(cells.sort_values(["devices", "mesh"])["mesh"].unique())
    batches = sorted(cells["batch"].unique())
    across = (style.WIDTH - style.room(meshes)) / _FIELD
    wide = max(len(batches), style.room(names) / _FIELD) + _GAP
    high = len(meshes) + 1.6
    columns = min(len(names), max(1, int(across / wide)))
    rows = -(-len(names) // columns)
    of = dict(list(cells.groupby("implementation")))
    found: dict[tuple[float, float], Mapping[Any, Any]] = {}
    with style.styled(slug, {"axes.grid": False, "axes.edgecolor": PAPER}):
        # All implementations share one set of axes, which costs more than anything within it.
        figure, (axes,) = style.panels(1, 0.05 + _FIELD / 2 * high * rows, _CHART.x)
        axes.set_xlim(0, max(columns * wide - _GAP, across))
        axes.set_ylim(high * rows, 0)
        for number, name in enumerate(names):
            row, column = divmod(number, columns)
            left, top = column * wide, row * high + 1
            axes.text(left, top - 0.3, style.short(name), fontsize=7, weight="bold")
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
        return style.render(figure, slug, _CHART.title)


def colour(ratio: float) -> tuple[float, float, float]:
    """The colour of a field: as far from white as the ratio is from 1, by its logarithm."""
    share = 0.5 + 0.5 * math.log(ratio) / math.log(FARTHEST_RATIO)
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
