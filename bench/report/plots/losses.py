"""Loss curves, and how far they are from the reference's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bench import numbers
from bench.report.plots import style
from bench.report.plots.style import MUTED, Dashes, Grid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from bench.report.losses import Curve, Training
    from bench.report.plots.style import Plot

POINTS = 400
"""Most points of a line."""

_YARDSTICKS: tuple[Dashes, ...] = ((0, (1, 1.5)), (0, (6, 2)))
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
    dashes = dict(zip(named, _YARDSTICKS, strict=False))
    with style.styled(slug):
        handles = [style.handle(name, implementations) for name in arms]
        handles += [style.guide(name, dashes[name]) for name in named]
        handles.append(style.guide("the gate's tolerance"))
        figure, panels = _GRID.figure(2 * len(trainings), handles)
        for training, loss, apart in zip(trainings, panels[::2], panels[1::2], strict=True):
            for one in training.curves:
                look = style.look(one.arm, implementations)
                _line(loss, one.losses, look.colour, look.dashes)
                _line(apart, one.so_far, look.colour, look.dashes)
            for one in training.yardsticks:
                _line(apart, one.so_far, MUTED, dashes[one.arm])
            tolerance = training.reference.tolerance
            apart.axhline(tolerance, color=MUTED, linewidth=1, linestyle=style.GUIDE, zorder=1.5)
            style.log_axis(apart, "y", [tolerance, *_known(training)], numbers.scientific)
            loss.set_title(f"Loss, {style.short(training.block.place)}")
            apart.set_title("Largest relative difference so far")
        _GRID.label(figure, "step", handles)
        return style.render(figure, slug)


def _line(axes: Axes, values: NDArray[np.float64], colour: str, dashes: Dashes) -> None:
    places = np.unique(np.linspace(0, len(values) - 1, POINTS).round().astype(int))
    if len(values):
        axes.plot(places + 1, values[places], color=colour, linestyle=dashes, linewidth=1.1)


def _known(training: Training) -> list[float]:
    """Ends of the lines."""
    curves: list[Curve] = [*training.curves, *training.yardsticks]
    every = np.concatenate([one.so_far for one in curves])
    every = every[np.isfinite(every)]
    return [float(every.min()), float(every.max())] if every.size else []
