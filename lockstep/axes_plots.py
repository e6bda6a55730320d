"""Charts of a run on matplotlib axes, for your own figures."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, ScalarFormatter

from bench.analyse.cell_table import Tables
from bench.analyse.scaling_curves import Scaling
from bench.present.charts import looks_of
from bench.present.columns import formatted
from bench.present.plots.vega_plot import colours

MARKERS = {
    "circle": "o", "square": "s", "triangle-up": "^", "diamond": "D",
    "cross": "P", "triangle-down": "v", "triangle-right": ">", "triangle-left": "<",
}  # fmt: skip
"""matplotlib's names of the marks of bench.present.charts.SHAPES."""


Draw = Callable[[Axes], None]


def draw(tables: Tables, kind: str, of: str, axes: Axes | None) -> Axes:
    """Draw the only chart of a kind whose name contains `of`: see `Results.plot`."""
    if kind not in _KINDS:
        raise ValueError(f"kind is {kind!r}; it may be {' or '.join(map(repr, _KINDS))}")
    charts = _KINDS[kind](tables, sorted(tables.cells["implementation"].unique()))
    matching = [name for name in charts if of in name]
    if len(matching) != 1:
        if not charts:
            raise ValueError(f"the run has no chart of the kind {kind!r}")
        found = "several charts have" if matching else "no chart has"
        listed = "".join(f"\n  {name}" for name in matching or charts)
        raise ValueError(f"{found} {of!r} in the name; there are{listed}")
    if axes is None:
        axes = plt.subplots(layout="constrained")[1]
    charts[matching[0]](axes)
    axes.set_title(matching[0], fontsize="medium")
    return axes


def _ratios(tables: Tables, implementations: Sequence[str]) -> dict[str, Draw]:
    timed = tables.cells[tables.cells["ratio"].notna()].sort_values("ratio")
    return {
        str(block): partial(_draw_ratios, rows, implementations)
        for block, rows in timed.groupby("block")
    }


def _curves(tables: Tables, implementations: Sequence[str]) -> dict[str, Draw]:
    return {
        f"{curve.subject}: {curve.title}": partial(_draw_scaling, curve, implementations)
        for curve in tables.curves
    }


_KINDS = {"ratios": _ratios, "scaling": _curves}


def _draw_ratios(cells: pd.DataFrame, implementations: Sequence[str], axes: Axes) -> None:
    """Draw the step times of a block relative to its baseline's, with the fastest on top."""
    for place, row in enumerate(cells.to_dict("records")):
        style = _style(row["implementation"], implementations)
        axes.plot([row["ratio_low"], row["ratio_high"]], [place, place], color=style["color"])
        axes.plot(row["ratio"], place, **style)
    axes.axvline(1.0, color="0.5", linewidth=0.8, linestyle=(0, (4, 3)))
    axes.set_yticks(range(len(cells)), cells["implementation"])
    axes.invert_yaxis()
    axes.set_xlabel(f"step time over that of {cells['baseline'].iloc[0]}, 95 % interval")


def _draw_scaling(curve: Scaling, implementations: Sequence[str], axes: Axes) -> None:
    """Draw median step times with quartiles over devices, and ideal scaling of the fastest."""
    for name, points in curve.points.groupby("implementation"):
        style = _style(str(name), implementations)
        x = points["devices"].to_numpy(float)
        low, high = (points[f"step_{q}_s"].to_numpy(float) for q in ("q1", "q3"))
        axes.fill_between(x, low, high, color=style["color"], alpha=0.15, linewidth=0)
        axes.plot(x, points["step_s"].to_numpy(float), label=str(name), **style)
    axes.plot(*curve.ideal.T, color="0.5", linewidth=0.8, linestyle=(0, (4, 3)), label="ideal")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.set_xticks(sorted(curve.points["devices"].unique()))
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda seconds, _: formatted(seconds, "s")))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("devices")
    axes.set_ylabel("step time")
    axes.legend(frameon=False, fontsize="small")


def _style(name: str, implementations: Sequence[str]) -> dict[str, Any]:
    """Return the look that the report gives an implementation."""
    own = looks_of(implementations)[name]
    dashes = (0, [4 * length for length in own.dashes]) if own.dashes[1] else "solid"
    return {"color": colours()[f"c{own.colour}"], "marker": MARKERS[own.shape], "linestyle": dashes}
