"""Breakdown plots: where the time of traced steps goes, as stacked bars."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.collections import PolyCollection
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from bench.analyse.causes import traced_differences
from bench.present.charts import CHARTS, PALETTE, PARTS
from bench.present.plots import style
from bench.present.plots.plot_plan import Plan, Subject
from bench.present.plots.style import LINE, PAPER

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from matplotlib.axes import Axes

    from bench.present.plots.style import Plot

_CHART = CHARTS["breakdown"]


@dataclass(frozen=True)
class Panel:
    """A block's traced cells."""

    title: str
    bars: Mapping[str, Mapping[str, float]]
    """Seconds of a step by part, by implementation: see bench.analyse.causes.traced_differences."""


def plan(subject: Subject) -> Iterator[Plan]:
    """Yield a plot with a panel for each block that was traced."""
    traced = [
        Panel(
            f"{block.block.mesh}\nbatch {block.block.batch}",
            {
                cell["implementation"]: traced_differences.parts(subject.traces[cell["cell"]])
                for cell in block.ranked
                if cell["cell"] in subject.traces
            },
        )
        for block in subject.blocks
    ]
    traced = [panel for panel in traced if panel.bars]
    if traced:
        shown, rest = subject.some(traced, "blocks", max(len(panel.bars) for panel in traced))
        slug = f"breakdown-{subject.slug}"
        yield Plan(_CHART.title, _CHART.note + rest, len(shown), lambda: draw(slug, shown))


def draw(slug: str, blocks: Sequence[Panel]) -> Plot:
    """Draw a bar for each traced cell, the shortest on top, in panels by block."""
    known = {part for block in blocks for bar in block.bars.values() for part in bar if bar[part]}
    shown = [part for part in PARTS if part in known]
    most = max(len(block.bars) for block in blocks)
    with style.styled(slug, {"axes.spines.left": False}):
        handles = [
            Patch(facecolor=_colour(part), edgecolor=PAPER, hatch=hatch, linewidth=0, label=label)
            for part in shown
            for label, _, hatch in [PARTS[part]]
        ]
        figure, panels = style.panels(
            len(blocks), 0.72 + 0.19 * most, _CHART.x, columns=2, handles=handles
        )
        for axes, block in zip(panels, blocks, strict=True):
            _draw_bars(axes, block, shown, most)
        return style.render(figure, slug, _CHART.title)


def _colour(part: str) -> str:
    """The colour of a part, which PARTS names as a variable of the page."""
    _, variable, _ = PARTS[part]
    return LINE if variable == "line" else PALETTE[int(variable[1:])]


def _draw_bars(axes: Axes, block: Panel, shown: Sequence[str], most: int) -> None:
    bars = sorted(block.bars.items(), key=lambda bar: sum(bar[1].values()))
    ends = np.cumsum([[0.0, *(bar.get(part, 0.0) for part in shown)] for _, bar in bars], axis=1)
    for number, part in enumerate(shown):
        boxes = [
            [(start, line - 0.38), (end, line - 0.38), (end, line + 0.38), (start, line + 0.38)]
            for line, (start, end) in enumerate(ends[:, number : number + 2])
            if end > start
        ]
        axes.add_collection(
            PolyCollection(boxes, facecolors=_colour(part), edgecolors=PAPER,
                           hatch=PARTS[part][2], linewidths=0.3),
            autolim=False,
        )  # fmt: skip
    axes.set_xlim(0, 1.02 * float(ends.max()) or 1.0)
    axes.set_ylim(most - 0.4, -0.6)
    style.name_axis(axes, [name for name, _ in bars])
    axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    text = style.short_si("s")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: text(x)))
    axes.set_title(block.title)
