"""How the step times of a block's arms are distributed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgba
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from bench.present.plots import style
from bench.present.plots.style import INK, MUTED, Grid, Look, Mark

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from bench.present.plots.style import Plot

POINTS = 40
"""Most samples of an arm that are drawn as points; of more, so many evenly spaced quantiles."""

_EDGES = (0.02, 0.98)
"""Quantiles that the axis reaches to, with room on either side; what lies beyond is at the edge."""

_GRID = np.linspace(0, 1, 200)
_SPREAD = 1e-9
"""Times closer than this have no shape."""


@dataclass(frozen=True)
class Panel:
    """A block's samples."""

    title: str
    times: Mapping[str, NDArray[np.float64]]
    """(rounds,) of each arm: step times over the baseline's median; finite."""


def draw(slug: str, blocks: Sequence[Panel], implementations: Sequence[str]) -> Plot:
    """Draw a panel a block: of each arm the density above, samples below, the median a bar.

    Args:
      slug: file name.
      blocks: what is drawn, with at least one arm.
      implementations: all of the run's, in order.
    """
    medians: dict[str, list[float]] = {}
    for block in blocks:
        for name, times in block.times.items():
            medians.setdefault(name, []).append(float(np.median(times)))
    names = sorted(medians, key=lambda name: (-float(np.median(medians[name])), name))
    edges = np.array(
        [np.quantile(times, _EDGES) for block in blocks for times in block.times.values()]
    )
    low, high = min(0.95, edges[:, 0].min()), max(1.05, edges[:, 1].max())
    pad = (high / low) ** 0.08
    grid = Grid(columns=3, height=0.15 + 0.24 * len(names), left=style.room(names), top=0.38,
                bottom=0.4, down=0.45, shared="xy")  # fmt: skip
    with style.styled(slug, {"axes.spines.left": False}):
        figure, panels = grid.figure(len(blocks))
        first = panels[0]
        first.set_xscale("log")
        first.set_xlim(low / pad, high * pad)
        first.set_ylim(-0.7, len(names) - 0.4)
        first.set_yticks(range(len(names)), [style.short(name) for name in names])
        first.xaxis.set_major_locator(
            LogLocator(subs=(1.0, 2.0, 5.0))
            if high > 4 * low
            else MaxNLocator(4, steps=[1, 2, 2.5, 5, 10])
        )
        first.xaxis.set_minor_locator(NullLocator())
        first.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        for axes, block in zip(panels, blocks, strict=True):
            axes.axvline(1, color=MUTED, linewidth=0.6)
            looks = {name: style.look(name, implementations) for name in block.times}
            _draw_arms(axes, block, {n: names.index(n) for n in looks}, looks, (low, high))
            axes.grid(visible=False, axis="y")
            axes.tick_params(axis="y", labelcolor=INK)
            axes.set_title(block.title)
        grid.label(figure, "step time of a round over the baseline's median")
        return style.render(figure, slug)


def _draw_arms(
    axes: Axes,
    block: Panel,
    lines: Mapping[str, int],
    looks: Mapping[str, Look],
    within: tuple[float, float],
) -> None:
    shapes = {
        name: shape
        for name, times in block.times.items()
        if (shape := _density(times, lines[name] + 0.06)) is not None
    }
    axes.add_collection(
        PolyCollection(
            list(shapes.values()), linewidths=0.6, zorder=2,
            facecolors=[to_rgba(looks[name].colour, 0.35) for name in shapes],
            edgecolors=[looks[name].colour for name in shapes],
        ),
        autolim=False,
    )  # fmt: skip
    style.segments(
        axes,
        [
            ([(middle, lines[name] - 0.3), (middle, lines[name] + 0.5)], looks[name])
            for name, times in block.times.items()
            for middle in [float(np.median(times))]
        ],
        1.4,
    )
    style.marks(
        axes,
        [
            Mark(float(np.clip(time, *within)), lines[name] - 0.14, looks[name].colour,
                 hollow=not within[0] <= time <= within[1])
            for name, times in block.times.items()
            for time in thinned(times)
        ],
        size=2.2,
    )  # fmt: skip


def thinned(times: NDArray[np.float64]) -> NDArray[np.float64]:
    """At most POINTS of them, from the least to the greatest."""
    ordered = np.sort(times)
    if len(ordered) <= POINTS:
        return ordered
    places: NDArray[np.int64] = np.linspace(0, len(ordered) - 1, POINTS).round().astype(int)
    return ordered[places]


def _density(times: NDArray[np.float64], base: float) -> NDArray[np.float64] | None:
    """Outline of a Gaussian kernel density of log times, with Scott's bandwidth; (corners, 2).

    D. W. Scott, Multivariate Density Estimation, 1992.
    """
    logs = np.log(times)
    if len(logs) < 3 or np.ptp(logs) < _SPREAD:  # noqa: PLR2004
        return None
    x = np.linspace(logs.min(), logs.max(), 48)
    width = logs.std(ddof=1) * len(logs) ** -0.2
    # Evenly spaced quantiles stand for many samples.
    shown = logs if len(logs) <= len(_GRID) else np.quantile(logs, _GRID)
    y = np.exp(-0.5 * ((x[:, None] - shown) / width) ** 2).sum(axis=1)
    top = base + 0.44 * y / y.max()
    return np.column_stack([np.exp([x[0], *x, x[-1]]), [base, *top, base]])
