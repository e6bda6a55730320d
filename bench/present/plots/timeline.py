"""What the host did over the run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from bench.present.plots import style
from bench.present.plots.style import MUTED, PALETTE, Grid

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from bench.present.plots.style import Plot

POINTS = 1000
"""Most points of a series over time; of more, medians are drawn."""

_OTHERS = (("foreign", "other processes", PALETTE[1], "s"),
           ("steal", "other guests (steal)", PALETTE[3], "^"))  # fmt: skip


def draw(slug: str, rounds: pd.DataFrame) -> Plot:
    """Draw the drift of the baselines, what others used, and frequency where the system shows it.

    Args:
      slug: file name.
      rounds: `Tables.timeline`.
    """
    seconds = rounds.groupby((60 * rounds["minutes"]).astype(int)).mean()
    clocked = bool(seconds["mhz"].notna().any())
    grid = Grid(columns=1, height=1.1, left=0.55, down=0.35, shared="x")
    with style.styled(slug):
        handles = [
            Line2D([], [], linestyle="", marker=marker, markersize=4, markeredgewidth=0,
                   color=colour, label=label)
            for _, label, colour, marker in _OTHERS
        ]  # fmt: skip
        figure, (drift, others, *clock) = grid.figure(3 if clocked else 2, handles)
        shown = thinned(rounds)
        drift.axhline(1, color=MUTED, linewidth=0.6)
        _dots(drift, shown["minutes"], shown["relative"], PALETTE[0])
        drift.set_yscale("log")
        drift.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
        drift.yaxis.set_minor_locator(NullLocator())
        drift.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
        drift.set_title("Step time of the baseline, against its median in the block")
        seconds = thinned(seconds)
        for name, _, colour, marker in _OTHERS:
            _dots(others, seconds["minutes"], seconds[name].clip(lower=0), colour, marker)
        top = float(np.nanmax([0.1, *seconds["foreign"], *seconds["steal"]]))
        others.set_ylim(-0.03 * top, 1.08 * top)
        others.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{100 * y:.0f} %"))
        others.set_title("Share of the cores' time that others had, second by second")
        for axes in clock:
            _dots(axes, seconds["minutes"], seconds["mhz"], PALETTE[2])
            axes.set_title("Mean frequency of the cores, MHz")
        grid.label(figure, "minutes since the first round", handles)
        return style.render(figure, slug)


def thinned(rounds: pd.DataFrame) -> pd.DataFrame:
    """At most POINTS rows: medians of rounds that follow one another."""
    if len(rounds) <= POINTS:
        return rounds
    groups = np.arange(len(rounds)) * POINTS // len(rounds)
    return rounds.groupby(groups).median()


def _dots(axes: Axes, x: pd.Series, y: pd.Series, colour: str, marker: str = "o") -> None:
    axes.plot(
        x.to_numpy(float), y.to_numpy(float), linestyle="", marker=marker, markersize=2.2,
        color=colour, markeredgewidth=0,
    )  # fmt: skip
