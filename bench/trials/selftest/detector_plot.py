"""The plot of a self-test: how often each tool is right about programs that differ, or do not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from bench.present.charts import PALETTE
from bench.present.plots.plot_output import Plot
from bench.present.plots.style import INK, MUTED, render, styled
from bench.trials.selftest.detector_figures import LOCKSTEP
from bench.trials.selftest.equal_arms import WORKING
from bench.trials.selftest.shares import Rate, Shares

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SLUG = "detectors"


def draw(found: Sequence[Shares], size: str) -> Plot | None:
    """Draw the shares of each tool with one measuring time of two arms; None if there are none.

    One panel is for equal programs and one for each planted slowdown. Points are shares, and lines
    are Wilson's 95 % intervals.
    """
    by_tool = {
        str(each.keys["tool"]): each
        for each in found
        if each.keys["size"] == size and each.keys["slowed"] == WORKING
    }
    if not by_tool:
        return None
    tools = sorted(by_tool, key=lambda tool: (tool == LOCKSTEP, -by_tool[tool].alarms.value))
    planted = dict.fromkeys(name for each in by_tool.values() for name in each.found)
    panels: dict[str, list[Rate | None]] = {
        "Equal, called different\n(lower is better)": [by_tool[tool].alarms for tool in tools],
        **{f"{name}: found\n(higher is better)": [by_tool[tool].found.get(name) for tool in tools]
           for name in planted},
    }  # fmt: skip
    height = 1.1 + 0.32 * len(tools)
    with styled(SLUG, {"axes.spines.left": False}):
        figure = Figure(figsize=(10, height))
        row = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        figure.subplots_adjust(
            left=0.15, right=0.98, top=1 - 0.5 / height, bottom=0.35 / height, wspace=0.12
        )
        for axes, (title, rates) in zip(row, panels.items(), strict=True):
            _draw_panel(axes, rates)
            axes.set_title(title, fontsize=9)
            axes.set_yticks(range(len(tools)), tools)
        return render(figure, SLUG, "How often each tool is right")


def _draw_panel(axes: Axes, rates: Sequence[Rate | None]) -> None:
    axes.grid(visible=False, axis="y")
    axes.set_xlim(-0.04, 1.04)
    axes.set_ylim(-0.6, len(rates) - 0.4)
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=" %"))
    for line, share in enumerate(rates):
        if share is None or not share.of:
            axes.text(
                0.5, line, "not measured", color=MUTED, fontsize=7.5, va="center", ha="center"
            )
            continue
        own = line == len(rates) - 1
        colour = PALETTE[0] if own else MUTED
        axes.plot(share.interval, [line, line], color=colour, linewidth=1.6)
        axes.plot(share.value, line, color=colour, marker="o", markersize=5.5)
