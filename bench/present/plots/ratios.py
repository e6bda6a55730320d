"""Ratios to the baseline with their intervals."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.ticker import FuncFormatter, MaxNLocator

from bench.analyse.ratio_intervals import floor_width
from bench.present.charts import CHARTS, FARTHEST_RATIO
from bench.present.plots import style
from bench.present.plots.plot_plan import Plan, Subject
from bench.present.plots.style import LINE, MUTED, Mark
from bench.records import numbers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    import pandas as pd
    from matplotlib.axes import Axes

    from bench.analyse.comparisons import Comparison
    from bench.present.plots.style import Plot

_CHART = CHARTS["ratios"]


def plan(subject: Subject) -> Iterator[Plan]:
    """Yield a plot with a panel for each block in which something has a ratio."""
    compared = [block for block in subject.blocks if _has_ratios(block)]
    if not compared:
        return
    shown, rest = subject.some(compared, "blocks", max(len(block.arms) for block in compared))
    slug = f"ratios-{subject.slug}"
    note = _CHART.note.format(margin=numbers.percent(shown[0].margin)) + rest
    yield Plan(
        _CHART.title,
        note,
        len(shown),
        lambda: draw(slug, shown, subject.cells, subject.implementations),
    )


def _has_ratios(block: Comparison) -> bool:
    return any(
        not math.isnan(cell["ratio"])
        for cell in block.ranked
        if cell["implementation"] != block.baseline
    )


def draw(
    slug: str,
    comparisons: Sequence[Comparison],
    cells: pd.DataFrame,
    implementations: Sequence[str],
) -> Plot:
    """Draw a panel for each block, with a line for each implementation.

    Args:
      slug: file name.
      comparisons: the blocks, at least one of whose cells has a ratio.
      cells: the tidy table.
      implementations: all of the run, in order.
    """
    shown = cells[cells["block"].isin([c.name for c in comparisons]) & cells["ratio"].notna()]
    typical = shown.groupby("implementation")["ratio"].median().sort_values(ascending=False)
    names = [str(name) for name in typical.index]
    low = min(0.95, float(shown[["ratio", "ratio_low"]].min().min()))
    high = max(1.05, min(FARTHEST_RATIO, float(shown[["ratio", "ratio_high"]].max().max())))
    pad = 0.06 * (high - low)
    with style.styled(slug, {"axes.spines.left": False}):
        figure, panels = style.panels(
            len(comparisons), 0.62 + 0.17 * len(names), _CHART.x, shared="xy"
        )
        first = panels[0]
        first.set_xlim(low - pad, high + pad)
        first.set_ylim(-0.6, len(names) - 0.4)
        first.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
        first.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        for axes, comparison in zip(panels, comparisons, strict=True):
            own = shown[shown["block"] == comparison.name].set_index("implementation")
            found = {
                line: (style.look(str(name), implementations), cell)
                for name, cell in own.to_dict("index").items()
                for line in [names.index(str(name))]
            }
            style.name_axis(axes, names)
            _guides(axes, comparison)
            _draw_ratios(axes, found, high)
            for line in set(range(len(names))) - found.keys():
                axes.annotate("no time", (1, line), xytext=(5, 0), textcoords="offset points",
                              color=MUTED, fontsize=6.5, va="center")  # fmt: skip
            block = comparison.block
            axes.set_title(f"{style.short(str(block.mesh))}\nbatch {block.batch}")
        return style.render(figure, slug, _CHART.title)


def _guides(axes: Axes, comparison: Comparison) -> None:
    axes.axvline(1, color=MUTED, linewidth=0.6)
    for end in (1 / (1 + comparison.margin), 1 + comparison.margin):
        axes.axvline(end, color=MUTED, linewidth=0.6, linestyle=style.GUIDE)
    if comparison.floor:
        width = floor_width(comparison.floor)
        axes.axvspan(np.exp(-width), np.exp(width), color=LINE, zorder=0.5, linewidth=0)


def _draw_ratios(
    axes: Axes, found: Mapping[int, tuple[style.Look, Mapping[Any, Any]]], high: float
) -> None:
    within = {line: pair for line, pair in found.items() if pair[1]["ratio"] <= high}
    style.segments(
        axes,
        [
            ([(cell["ratio_low"], line), (cell["ratio_high"], line)], look)
            for line, (look, cell) in within.items()
            if cell["paired"]
        ],
        1.6,
    )
    style.marks(
        axes,
        [
            Mark(cell["ratio"], line, look.colour, look.marker, hollow=not cell["paired"])
            for line, (look, cell) in within.items()
        ],
    )
    for line in found.keys() - within.keys():
        look, cell = found[line]
        text = f"{numbers.ratio(cell['ratio'])} \N{BLACK RIGHT-POINTING SMALL TRIANGLE}"
        axes.text(high, line, text, color=look.colour, fontsize=7, va="center", ha="right")
