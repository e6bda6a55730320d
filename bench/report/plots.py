"""The plots, as SVG and PNG. Same rows, same bytes."""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from bench import files, numbers, statistics

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pandas as pd
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

    from bench.report.scaling import Scaling
    from bench.report.tables import Comparison

PAPER, INK, MUTED, LINE, SHADE = "#ffffff", "#1c242e", "#5d6875", "#d8dde3", "#eceff2"

PALETTE = ("#0072b2", "#d55e00", "#009e73", "#b5609a", "#c48a00", "#3f9fd8", "#6b5bb8", "#7a7a7a")
"""After Okabe and Ito, https://jfly.uni-koeln.de/color/, with the lightest darkened for lines."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "h", "<", ">", "p", "*")

VARIABLES = {
    PAPER: "--paper", INK: "--ink", MUTED: "--muted", LINE: "--line", SHADE: "--shade",
} | {colour: f"--c{number}" for number, colour in enumerate(PALETTE)}  # fmt: skip
"""CSS variables the page gives its own light and dark values."""

CLIP = 1.5
"""Ratios beyond this are drawn at the edge with their number, so that the rest stays readable."""

TIMELINE_POINTS = 1000
"""Most points of a series over time; of more, medians are drawn."""

STYLE: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": LINE,
    "axes.facecolor": PAPER,
    "axes.grid": True,
    "axes.labelcolor": MUTED,
    "axes.labelsize": 9,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "figure.facecolor": PAPER,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "svg.fonttype": "none",
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": MUTED,
    "xtick.labelsize": 8.5,
    "ytick.color": MUTED,
    "ytick.labelsize": 8.5,
}


@dataclass(frozen=True)
class Plot:
    """One figure, drawn."""

    slug: str
    """File name under plots/, without its ending; unique in the report."""
    svg: str
    """With fixed colours, for files."""
    png: bytes

    def inline(self, label: str) -> str:
        """The SVG element for a page: colours and font are the page's, ids are unique in it."""
        svg = self.svg[self.svg.index("<svg") :]
        svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
        for colour, variable in VARIABLES.items():
            svg = svg.replace(colour, f"var({variable})")
        svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{self.slug}-", svg)
        svg = svg.replace("'DejaVu Sans', sans-serif", "var(--sans)").replace(
            "'DejaVu Sans'", "var(--sans)"
        )
        svg = re.sub(r'(<svg [^>]*?) width="[^"]*"', r"\1", svg, count=1)
        svg = re.sub(r'(<svg [^>]*?) height="[^"]*"', r"\1", svg, count=1)
        # All figures at one scale, whatever their width: between 1 and 1.65 pixels a point.
        points = float(svg.split('viewBox="', 1)[1].split()[2])
        size = f"min-width: {points:.0f}px; max-width: {1.65 * points:.0f}px"
        label = _attribute(label)
        return svg.replace("<svg ", f'<svg role="img" aria-label="{label}" style="{size}" ', 1)

    def write(self, folder: Path) -> None:
        """Write `<slug>.svg` and `<slug>.png`."""
        files.write(folder / f"{self.slug}.svg", self.svg)
        files.write(folder / f"{self.slug}.png", self.png)


def scaling(curve: Scaling, implementations: Sequence[str]) -> Plot:
    """Step time and parallel efficiency against devices.

    `implementations` are all of the run's, in order: they fix colours and markers.
    """
    with mpl.rc_context(STYLE | {"svg.hashsalt": curve.slug}):
        figure = Figure(figsize=(10, 3.9))
        time, share = figure.subplots(1, 2, gridspec_kw={"wspace": 0.2})
        figure.subplots_adjust(left=0.07, right=0.76, top=0.9, bottom=0.14)
        _draw_curves(time, curve, "step_s", ("step_q1_s", "step_q3_s"), implementations)
        _draw_curves(
            share, curve, "efficiency", ("efficiency_q1", "efficiency_q3"), implementations
        )
        _draw_ideal(time, share, curve)
        _time_axis(time)
        share.set_ylim(0, max(1.1, 1.08 * float(curve.points["efficiency_q3"].max())))
        share.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{100 * y:.0f} %"))
        time.set_title("Step time (lower is better)")
        share.set_title("Parallel efficiency (higher is better)")
        for axes in (time, share):
            _device_axis(axes, curve)
        figure.legend(
            handles=_legend(curve, implementations),
            loc="center left", bbox_to_anchor=(0.775, 0.52), labelspacing=0.7, fontsize=8.5,
        )  # fmt: skip
        return render(figure, curve.slug)


def forest(
    slug: str,
    comparisons: Sequence[Comparison],
    cells: pd.DataFrame,
    implementations: Sequence[str],
) -> Plot:
    """Ratio to the baseline with its interval: a panel a block, a line an implementation.

    `cells` is the report's tidy table; at least one of its cells in these blocks has a ratio.
    """
    shown = cells[cells["block"].isin([c.name for c in comparisons]) & cells["ratio"].notna()]
    typical = shown.groupby("implementation")["ratio"].median().sort_values(ascending=False)
    names = list(typical.index)
    low = min(0.95, float(shown[["ratio", "ratio_low"]].min().min()))
    high = max(1.05, min(CLIP, float(shown[["ratio", "ratio_high"]].max().max())))
    pad = 0.06 * (high - low)
    columns = min(4, len(comparisons))
    rows = -(-len(comparisons) // columns)
    width, height = 2.0 + 2.05 * columns, 0.75 + rows * (0.6 + 0.27 * len(names))
    with mpl.rc_context(STYLE | {"svg.hashsalt": slug, "axes.spines.left": False}):
        figure = Figure(figsize=(width, height))
        grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        figure.subplots_adjust(
            left=1.75 / width, right=1 - 0.15 / width, top=1 - 0.35 / height, bottom=0.5 / height,
            wspace=0.12, hspace=0.6 / (0.27 * len(names)),
        )  # fmt: skip
        for axes in grid.flat[len(comparisons) :]:
            axes.set_visible(False)
        for number, comparison in enumerate(comparisons):
            axes = grid.flat[number]
            own = shown[shown["block"] == comparison.name].set_index("implementation")
            _draw_ratios(
                axes, own, comparison, names=names, implementations=implementations, high=high
            )
            axes.set_xlim(low - pad, high + pad)
            axes.set_ylim(-0.6, len(names) - 0.4)
            axes.set_yticks(range(len(names)), names)
            axes.tick_params(axis="y", length=0, labelcolor=INK)
            axes.tick_params(axis="x", labelbottom=number + columns >= len(comparisons))
            axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
            axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
            axes.set_title(comparison.place, fontsize=9)
        figure.supxlabel(
            "step time over the baseline's (left of 1 is faster)",
            x=(1.75 / width + 1) / 2, y=0.06 / height, va="bottom", fontsize=9, color=MUTED,
        )  # fmt: skip
        return render(figure, slug)


def timeline(slug: str, rounds: pd.DataFrame) -> Plot:
    """What the host did over the run: drift of the baselines, what others used, and frequency.

    `rounds` is `Tables.timeline`. Frequency has a panel of its own where the system shows it.
    """
    seconds = rounds.groupby((60 * rounds["minutes"]).astype(int)).mean()
    clocked = bool(seconds["mhz"].notna().any())
    heights = (2, 1, 1) if clocked else (2, 1)
    with mpl.rc_context(STYLE | {"svg.hashsalt": slug}):
        figure = Figure(figsize=(10, 1.4 + 0.93 * sum(heights)))
        panels = figure.subplots(
            len(heights), 1, sharex=True, gridspec_kw={"height_ratios": heights, "hspace": 0.35}
        )
        figure.subplots_adjust(left=0.07, right=0.97, top=0.93, bottom=0.12)
        drift, others = panels[:2]
        shown = _thinned(rounds)
        drift.axhline(1, color=MUTED, linewidth=0.6)
        _dots(drift, shown["minutes"], shown["relative"], PALETTE[0])
        drift.set_yscale("log")
        drift.yaxis.set_major_locator(
            LogLocator(subs=(1.0, 1.2, 1.5, 2.0, 3.0, 5.0, 7.0, 8.0, 9.0))
        )
        drift.yaxis.set_minor_locator(NullLocator())
        drift.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
        drift.set_title("Step time of the baseline, against its median in the block")
        seconds = _thinned(seconds)
        for name, label, colour in (
            ("foreign", "other processes", PALETTE[1]),
            ("steal", "other guests (steal)", PALETTE[3]),
        ):
            _dots(others, seconds["minutes"], seconds[name].clip(lower=0), colour, label)
        top = float(np.nanmax([0.1, *seconds["foreign"], *seconds["steal"]]))
        others.set_ylim(-0.03 * top, 1.08 * top)
        others.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{100 * y:.0f} %"))
        others.set_title("Share of the cores' time that others had, second by second")
        others.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, fontsize=8)
        if clocked:
            _dots(panels[2], seconds["minutes"], seconds["mhz"], PALETTE[2])
            panels[2].set_title("Mean frequency of the cores, MHz")
        panels[-1].set_xlabel("minutes since the first round")
        return render(figure, slug)


def _dots(axes: Axes, x: pd.Series, y: pd.Series, colour: str, label: str = "") -> None:
    axes.plot(
        x.to_numpy(float), y.to_numpy(float), linestyle="", marker="o", markersize=2.5,
        color=colour, markeredgewidth=0, label=label,
    )  # fmt: skip


def _thinned(rounds: pd.DataFrame) -> pd.DataFrame:
    """At most TIMELINE_POINTS rows: medians of rounds that follow one another."""
    if len(rounds) <= TIMELINE_POINTS:
        return rounds
    groups = np.arange(len(rounds)) * TIMELINE_POINTS // len(rounds)
    return rounds.groupby(groups).median()


def _look(name: str, implementations: Sequence[str]) -> tuple[str, str]:
    number = list(implementations).index(name)
    return PALETTE[number % len(PALETTE)], MARKERS[number % len(MARKERS)]


def _draw_curves(
    axes: Axes,
    curve: Scaling,
    value: str,
    quartiles: tuple[str, str],
    implementations: Sequence[str],
) -> None:
    groups = list(curve.points.groupby("implementation"))
    devices = np.unique(curve.points["devices"])
    for number, (name, points) in enumerate(groups):
        colour, marker = _look(str(name), implementations)
        # Side by side, so that error bars of equal curves do not cover each other.
        shift = 2 ** (0.12 * ((number + 0.5) / len(groups) - 0.5))
        # A line breaks where a mesh has no time.
        every = points.set_index("devices").reindex(devices)
        low, middle, high = (every[c].to_numpy(float) for c in (quartiles[0], value, quartiles[1]))
        axes.errorbar(
            devices * shift, middle,
            yerr=np.vstack([middle - low, high - middle]).clip(min=0),
            color=colour, marker=marker, markersize=4.5, markeredgewidth=0, linewidth=1.4,
            elinewidth=1,
        )  # fmt: skip


def _draw_ideal(time: Axes, share: Axes, curve: Scaling) -> None:
    devices = np.unique(curve.points["devices"].to_numpy(float))
    best = float(curve.points.loc[curve.points["devices"] == devices[0], "step_s"].min())
    ideal = best * devices[0] / devices if curve.kind == "strong" else np.full(len(devices), best)
    for axes, values in ((time, ideal), (share, np.ones(len(devices)))):
        axes.plot(devices, values, color=MUTED, linewidth=1, linestyle=(0, (4, 3)), zorder=1.5)


def _time_axis(axes: Axes) -> None:
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    # At least a factor of four, so that a labelled tick is always in view.
    stretch = max(1.0, (4 * low / high) ** 0.5)
    axes.set_ylim(low / stretch, high * stretch)
    wide = high / low > 300  # noqa: PLR2004
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: _short_seconds(y)))


def _short_seconds(value: float) -> str:
    number, _, unit = numbers.si(value, "s").partition(numbers.NARROW)
    return f"{float(number):g} {unit}"


def _device_axis(axes: Axes, curve: Scaling) -> None:
    devices = sorted(curve.points["devices"].unique())
    axes.set_xscale("log", base=2)
    axes.set_xticks(devices, [str(d) for d in devices])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlim(devices[0] / 1.25, devices[-1] * 1.25)
    axes.set_xlabel("devices")
    over = sorted(curve.points.loc[curve.points["oversubscribed"], "devices"].unique())
    if over:
        below = [d for d in devices if d < over[0]]
        start = (below[-1] * over[0]) ** 0.5 if below else devices[0] / 1.25
        axes.axvspan(start, devices[-1] * 1.25, color=SHADE, zorder=0, linewidth=0)


def _legend(curve: Scaling, implementations: Sequence[str]) -> list[Artist]:
    largest = curve.points.sort_values("devices").groupby("implementation").tail(1)
    handles: list[Artist] = []
    for name in largest.sort_values("step_s")["implementation"]:
        colour, marker = _look(name, implementations)
        handles.append(
            Line2D([], [], color=colour, marker=marker, markersize=5, markeredgewidth=0,
                   label=name)
        )  # fmt: skip
    handles.append(Line2D([], [], color=MUTED, linewidth=1, linestyle=(0, (4, 3)), label="ideal"))
    if curve.points["oversubscribed"].any():
        label = "more devices than cores:\nshows dispatch and\ncommunication cost,\nnot scaling"
        handles.append(Patch(facecolor=SHADE, edgecolor=LINE, linewidth=0.5, label=label))
    return handles


def _draw_ratios(
    axes: Axes,
    own: pd.DataFrame,
    comparison: Comparison,
    *,
    names: Sequence[str],
    implementations: Sequence[str],
    high: float,
) -> None:
    axes.grid(visible=False, axis="y")
    axes.axvline(1, color=MUTED, linewidth=0.6)
    for end in (1 / (1 + comparison.margin), 1 + comparison.margin):
        axes.axvline(end, color=MUTED, linewidth=0.6, linestyle=(0, (4, 3)))
    if comparison.floor:
        width = statistics.floor_width(comparison.floor)
        axes.axvspan(np.exp(-width), np.exp(width), color=LINE, zorder=0.5, linewidth=0)
    found = own.to_dict("index")
    within = {line: found[name] for line, name in enumerate(names)
              if name in found and found[name]["ratio"] <= high}  # fmt: skip
    axes.hlines(
        list(within),
        [cell["ratio_low"] for cell in within.values()],
        [cell["ratio_high"] for cell in within.values()],
        colors=[_look(names[line], implementations)[0] for line in within],
        linewidth=1.8, capstyle="butt",
    )  # fmt: skip
    for line, name in enumerate(names):
        if name not in found:
            axes.annotate("no time", (1, line), xytext=(5, 0), textcoords="offset points",
                          color=MUTED, fontsize=7.5, va="center")  # fmt: skip
            continue
        cell = found[name]
        colour, marker = _look(name, implementations)
        if cell["ratio"] > high:
            text = f"{numbers.ratio(cell['ratio'])} \N{BLACK RIGHT-POINTING SMALL TRIANGLE}"
            axes.text(high, line, text, color=colour, fontsize=8, va="center", ha="right")
            continue
        axes.plot(
            cell["ratio"], line, color=colour, marker=marker, markersize=5,
            # Hollow: not measured beside the baseline.
            markerfacecolor=colour if cell["paired"] else PAPER, markeredgecolor=colour,
        )  # fmt: skip


def render(figure: Figure, slug: str) -> Plot:
    """Draw a finished figure."""
    FigureCanvasAgg(figure)
    svg, png = io.StringIO(), io.BytesIO()
    figure.savefig(svg, format="svg", metadata={"Date": None})
    figure.savefig(png, format="png", dpi=150, metadata={"Software": None})
    return Plot(slug, svg.getvalue(), png.getvalue())


def _attribute(text: str) -> str:
    return (
        text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")
    )
