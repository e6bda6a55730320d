"""Loss curves, and how far they are from the reference's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.lines import Line2D

from bench.present.plots import style
from bench.present.plots.style import MUTED, Dashes, Grid
from bench.records import numbers
from bench.records.arms import EXACT, IN_PARTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from bench.analyse.loss_curves import Curve, Training
    from bench.present.plots.style import Plot

POINTS = 400
"""Most points of a line."""

EQUAL = "equal"
"""Where an axis shows differences of 0, for which a logarithmic one has no place."""

# As on the page: see bench/present/web/chart_style.js.
_YARDSTICKS: dict[str, Dashes] = {IN_PARTS: (0, (1, 1.5)), EXACT: (0, (6, 2))}
_BENEATH: dict[str, Any] = {"color": MUTED, "alpha": 0.35, "linewidth": 4}
"""How the reference is drawn, so that curves on it are seen to be."""

_GRID = Grid(columns=2, height=1.9, across=0.62, left=0.62, down=0.45)


def draw(slug: str, trainings: Sequence[Training], implementations: Sequence[str]) -> Plot:
    """Draw every block's losses, and beside them the largest difference so far.

    Args:
      slug: file name.
      trainings: of one subject.
      implementations: all of the run's, in order: they fix colours and marks.
    """
    arms = sorted({one.arm for training in trainings for one in training.curves})
    named = list(dict.fromkeys(one.arm for training in trainings for one in training.yardsticks))
    with style.styled(slug):
        handles = [style.handle(name, implementations) for name in arms]
        handles.append(Line2D([], [], label="the reference", **_BENEATH))
        handles += [style.guide(name, _YARDSTICKS[name]) for name in named]
        handles.append(style.guide("the gate's tolerance"))
        figure, panels = _GRID.figure(2 * len(trainings), handles)
        for training, loss, apart in zip(trainings, panels[::2], panels[1::2], strict=True):
            tolerance = training.reference.tolerance
            apart.axhline(tolerance, color=MUTED, linewidth=1, linestyle=style.GUIDE, zorder=1.5)
            floor = _differences_axis(apart, [tolerance], training)
            _line(loss, training.reference.losses, **_BENEATH)
            for one in training.curves:
                look = style.look(one.arm, implementations)
                drawn = {"color": look.colour, "linestyle": look.dashes, "linewidth": 1.1}
                _line(loss, one.losses, **drawn)
                _line(apart, np.maximum(one.so_far, floor), **drawn)
            for one in training.yardsticks:
                drawn = {"color": MUTED, "linestyle": _YARDSTICKS[one.arm], "linewidth": 1.1}
                _line(apart, np.maximum(one.so_far, floor), **drawn)
            loss.set_title(f"Loss, {style.short(training.block.place)}")
            apart.set_title("Largest relative difference so far")
        _GRID.label(figure, "step", handles)
        return style.render(figure, slug)


def _line(axes: Axes, values: NDArray[np.float64], **drawn: Any) -> None:
    places = np.unique(np.linspace(0, len(values) - 1, POINTS).round().astype(int))
    if len(values):
        axes.plot(places + 1, values[places], **drawn)


def _differences_axis(axes: Axes, others: list[float], training: Training) -> float:
    """Make the axis logarithmic; returns where on it a difference of 0 is."""
    curves: list[Curve] = [*training.curves, *training.yardsticks]
    every = np.concatenate([one.so_far for one in curves])
    every = every[np.isfinite(every)]
    style.log_axis(axes, "y", [*others, *every], numbers.scientific)
    low, high = axes.get_ylim()
    floor = low / (high / low) ** 0.1
    if (every == 0).any():
        ticks = axes.yaxis.get_major_locator().tick_values(low, high)
        shown = {floor: EQUAL} | {t: numbers.scientific(t) for t in ticks if low <= t <= high}
        axes.set_yticks([*shown], [*shown.values()])
        axes.set_ylim(floor / (high / low) ** 0.03, high)
    return float(floor)
