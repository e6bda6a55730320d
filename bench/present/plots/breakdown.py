"""Where the time of traced steps goes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.collections import PolyCollection
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from bench.present.plots import style
from bench.present.plots.style import INK, PALETTE, PAPER, Grid

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.axes import Axes

    from bench.present.plots.style import Plot

PARTS = {
    "dispatch": ("dispatch", "#4a4a4a", ""),
    "matmul": ("matrix products", PALETTE[0], ""),
    "elementwise": ("elementwise", PALETTE[5], "////"),
    "layout": ("layout", PALETTE[3], "xxxx"),
    "unknown": ("unknown", PALETTE[6], "...."),
    "wait": ("waiting", PALETTE[4], "\\\\\\\\"),
    "move": ("moving data", PALETTE[1], ""),
    "idle": ("idle", "#d5d8dc", ""),
}
"""Label, colour and hatch of each part, in the order of the bars."""


@dataclass(frozen=True)
class Panel:
    """A block's traced cells."""

    title: str
    bars: Mapping[str, Mapping[str, float]]
    """Seconds of a step by part, by implementation: see bench.analyse.causes.traced_differences."""


def draw(slug: str, blocks: Sequence[Panel]) -> Plot:
    """Draw a bar a traced cell, the shortest above, in panels by block."""
    known = {part for block in blocks for bar in block.bars.values() for part in bar if bar[part]}
    shown = [part for part in PARTS if part in known]
    names = [name for block in blocks for name in block.bars]
    left = style.room(names)
    columns = min(2, len(blocks))
    most = max(len(block.bars) for block in blocks)
    grid = Grid(columns=columns, height=0.1 + 0.19 * most, left=left, across=left + 0.12, top=0.38,
                bottom=0.38, down=0.62)  # fmt: skip
    with style.styled(slug, {"axes.spines.left": False}):
        handles = [_patch(*PARTS[part]) for part in shown]
        figure, panels = grid.figure(len(blocks), handles)
        for axes, block in zip(panels, blocks, strict=True):
            _draw_bars(axes, block, shown, most)
        grid.label(figure, "time of a step", handles)
        return style.render(figure, slug)


def _patch(label: str, colour: str, hatch: str) -> Patch:
    return Patch(facecolor=colour, edgecolor=PAPER, hatch=hatch, linewidth=0, label=label)


def _draw_bars(axes: Axes, block: Panel, shown: Sequence[str], most: int) -> None:
    bars = sorted(block.bars.items(), key=lambda bar: sum(bar[1].values()))
    ends = np.cumsum([[0.0, *(bar.get(part, 0.0) for part in shown)] for _, bar in bars], axis=1)
    for number, part in enumerate(shown):
        _, colour, hatch = PARTS[part]
        boxes = [
            [(start, line - 0.38), (end, line - 0.38), (end, line + 0.38), (start, line + 0.38)]
            for line, (start, end) in enumerate(ends[:, number : number + 2])
            if end > start
        ]
        axes.add_collection(
            PolyCollection(boxes, facecolors=colour, edgecolors=PAPER, hatch=hatch, linewidths=0.3),
            autolim=False,
        )
    axes.set_xlim(0, 1.02 * float(ends.max()) or 1.0)
    axes.set_ylim(most - 0.4, -0.6)
    axes.set_yticks(range(len(bars)), [style.short(name) for name, _ in bars])
    axes.tick_params(axis="y", labelcolor=INK)
    axes.grid(visible=False, axis="y")
    axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    text = style.short_si("s")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: text(x)))
    axes.set_title(block.title)
