"""Style of all printed plots: colours, marks, panels, axes, and saving."""

from __future__ import annotations

import html
import io
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.markers import MarkerStyle
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from matplotlib.transforms import IdentityTransform

from bench.present import charts
from bench.present.charts import PALETTE
from bench.records import files, numbers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

Dashes = Literal["solid"] | tuple[float, tuple[float, ...]]

PAPER, INK, MUTED, LINE, SHADE = "#ffffff", "#1c242e", "#5d6875", "#d8dde3", "#eceff2"

GUIDE = (0, (4, 3))
"""Dashes of reference lines, such as the ideal and the margin."""

VARIABLES = {
    PAPER: "--paper", INK: "--ink", MUTED: "--muted", LINE: "--line", SHADE: "--shade",
} | {colour: f"--c{number}" for number, colour in enumerate(PALETTE)}  # fmt: skip
"""CSS variables to which a page gives light and dark values."""

WIDTH = 7.2
"""Inches of every plot: the text width of a printed page, and about the width GitHub shows."""

DPI = 160
"""Resolution of PNG files."""

STYLE: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": LINE,
    "axes.facecolor": PAPER,
    "axes.grid": True,
    "axes.labelcolor": MUTED,
    "axes.labelsize": 8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlepad": 4,
    "axes.titlesize": 8,
    "axes.titleweight": "bold",
    "figure.constrained_layout.h_pad": 0.03,
    "figure.constrained_layout.w_pad": 0.05,
    "figure.facecolor": PAPER,
    "figure.labelsize": 8,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 8,
    "grid.color": LINE,
    "grid.linewidth": 0.5,
    "hatch.linewidth": 0.6,
    "legend.columnspacing": 1.2,
    "legend.fontsize": 7.5,
    "legend.frameon": False,
    "legend.handlelength": 2.4,
    "legend.labelcolor": INK,
    # The file holds the outlines of glyphs, so that it looks the same wherever it is opened.
    "svg.fonttype": "path",
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": MUTED,
    "xtick.labelsize": 7.5,
    "xtick.major.size": 0,
    "ytick.color": MUTED,
    "ytick.labelsize": 7.5,
    "ytick.major.size": 0,
}

_LETTER = 7.5 * 0.6 / 72
"""Approximate width in inches of a letter of the legend and of tick labels."""

_TICKS = 7
"""Most labels along an axis of devices or batches."""

_LONGEST = 30
"""Letters of a name; longer ones are cut."""


@dataclass(frozen=True)
class Plot:
    """One figure, drawn."""

    slug: str
    """File name under plots/ without its suffix; unique in the report."""
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
        svg = re.sub(r"'DejaVu Sans'(, sans-serif)?", "var(--sans)", svg)
        for size in ("width", "height"):
            svg = re.sub(rf'(<svg [^>]*?) {size}="[^"]*"', r"\1", svg, count=1)
        # All figures have one scale, whatever their width: between 1 and 1.65 pixels a point.
        points = float(svg.split('viewBox="', 1)[1].split()[2])
        scale = f"min-width: {points:.0f}px; max-width: {1.65 * points:.0f}px"
        label = html.escape(label)
        return svg.replace("<svg ", f'<svg role="img" aria-label="{label}" style="{scale}" ', 1)

    def write(self, folder: Path) -> None:
        """Write `<slug>.svg` and `<slug>.png`."""
        files.write(folder / f"{self.slug}.svg", self.svg)
        files.write(folder / f"{self.slug}.png", self.png)


def styled(slug: str, changes: Mapping[str, Any] | None = None) -> AbstractContextManager[None]:
    """A context with STYLE, and changes to it, in which a figure is made and rendered."""
    return mpl.rc_context(STYLE | {"svg.hashsalt": slug} | dict(changes or {}))


def render(figure: Figure, slug: str, title: str | None = None) -> Plot:
    """Render a finished figure within `styled`; the same figure always gives the same bytes.

    Args:
      figure: the figure.
      slug: file name.
      title: for the metadata of the SVG.
    """
    FigureCanvasAgg(figure)
    # Laid out once: saving would do it again for each file.
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    svg, png = io.StringIO(), io.BytesIO()
    figure.savefig(svg, format="svg", metadata={"Date": None, "Title": title})
    # The default level takes three times as long for a tenth less.
    compression = {"compress_level": 3}
    figure.savefig(png, format="png", dpi=DPI, metadata={"Software": None}, pil_kwargs=compression)
    return Plot(slug, svg.getvalue(), png.getvalue())


class Look(NamedTuple):
    """How an implementation is drawn, in every plot of a report."""

    colour: str
    marker: str
    dashes: Dashes


def look(name: str, implementations: Sequence[str]) -> Look:
    """The look of an implementation by its place among all of the run."""
    colour, shape, dashes = charts.look(list(implementations).index(name))
    return Look(PALETTE[colour], charts.SHAPES[shape], (0, dashes) if dashes else "solid")


def handle(name: str, implementations: Sequence[str]) -> Line2D:
    """The legend entry of an implementation."""
    colour, marker, dashes = look(name, implementations)
    return Line2D([], [], color=colour, marker=marker, linestyle=dashes, linewidth=1.3,
                  markersize=5, markeredgewidth=0, label=short(name))  # fmt: skip


def guide(label: str, dashes: Dashes = GUIDE) -> Line2D:
    """The legend entry of a reference line."""
    return Line2D([], [], color=MUTED, linewidth=1, linestyle=dashes, label=label)


def panels(
    count: int,
    height: float,
    xlabel: str,
    *,
    columns: int = 3,
    shared: str = "",
    handles: Sequence[Artist] = (),
) -> tuple[Figure, list[Axes]]:
    """A figure of equal panels in rows, with one horizontal label below and the legend above.

    Args:
      count: how many panels, left to right and downwards.
      height: of a panel with its title, in inches.
      xlabel: title of all horizontal axes.
      columns: most panels of a row; rows are filled evenly.
      shared: axes that all panels share: `x`, `y`, `xy` or none.
      handles: entries of the legend.
    """
    rows = -(-count // columns)
    columns = -(-count // rows)
    legend = _legend_columns(handles)
    around = 0.3 + 0.17 * -(-len(handles) // legend)
    figure = Figure(figsize=(WIDTH, rows * height + around), layout="constrained")
    grid = figure.subplots(
        rows, columns, sharex="x" in shared, sharey="y" in shared, squeeze=False
    ).ravel()
    for extra in grid[count:]:
        extra.remove()
    for above in grid[max(0, count - columns) : count]:
        above.tick_params(labelbottom=True)
    figure.supxlabel(xlabel, color=MUTED)
    if handles:
        figure.legend(handles=list(handles), ncols=legend, loc="outside upper left")
    return figure, list(grid[:count])


def _legend_columns(handles: Sequence[Artist]) -> int:
    """How many columns a legend has room for; it is filled column by column."""
    widths = [_LETTER * len(str(handle.get_label())) + 0.5 for handle in handles]
    for columns in range(len(handles), 1, -1):
        # The first columns are longer by one entry where they cannot be equal.
        if sum(part.max() for part in np.array_split(widths, columns)) <= WIDTH:
            return columns
    return 1


def short(name: str, letters: int = _LONGEST) -> str:
    """A name, cut where it is longer than there is room."""
    return name if len(name) <= letters else f"{name[: letters - 1]}\N{HORIZONTAL ELLIPSIS}"


def room(names: Iterable[str]) -> float:
    """Inches that names need beside an axis."""
    return 0.12 + _LETTER * max((len(short(name)) for name in names), default=0)


def name_axis(axes: Axes, names: Sequence[str]) -> None:
    """A vertical axis with a line for each name."""
    axes.set_yticks(range(len(names)), [short(name) for name in names])
    axes.tick_params(axis="y", labelcolor=INK)
    axes.grid(visible=False, axis="y")


def segments(
    axes: Axes, lines: Sequence[tuple[Any, Look]], width: float, *, dashed: bool = False
) -> None:
    """Lines of many implementations as one artist, which draws much faster than one for each."""
    axes.add_collection(
        LineCollection(
            [points for points, _ in lines], linewidths=width, zorder=2, capstyle="butt",
            colors=[look.colour for _, look in lines],
            linestyles=[look.dashes for _, look in lines] if dashed else "solid",
        ),
        autolim=False,
    )  # fmt: skip


class Mark(NamedTuple):
    """A point."""

    x: float
    y: float
    colour: str
    marker: str = "o"
    hollow: bool = False


def marks(axes: Axes, points: Sequence[Mark], size: float = 5.2) -> None:
    """Marks of many implementations as one artist, set off from lines; `size` in points."""
    outlines = [MarkerStyle(point.marker) for point in points]
    axes.add_collection(
        PathCollection(
            [outline.get_path().transformed(outline.get_transform()) for outline in outlines],
            sizes=[size**2], offsets=np.array([point[:2] for point in points]).reshape(-1, 2),
            offset_transform=axes.transData, transform=IdentityTransform(), zorder=3,
            facecolors=[PAPER if point.hollow else point.colour for point in points],
            edgecolors=[point.colour if point.hollow else PAPER for point in points],
            linewidths=[0.9 if point.hollow else 0.4 for point in points],
        ),
        autolim=False,
    )  # fmt: skip


def log2_axis(axes: Axes, ticks: Sequence[int]) -> None:
    """A horizontal axis of devices or batches, with a tick for each if there is room."""
    axes.set_xscale("log", base=2)
    apart = (ticks[-1] / ticks[0]) ** (1 / _TICKS)
    labelled = [ticks[0]]
    for tick in ticks[1:]:
        if tick >= labelled[-1] * apart:
            labelled.append(tick)
    axes.set_xticks(labelled, [str(tick) for tick in labelled])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlim(ticks[0] / 1.25, ticks[-1] * 1.25)


def log_axis(
    axes: Axes, which: Literal["x", "y"], values: Iterable[float], text: Callable[[float], str]
) -> None:
    """A logarithmic axis around values, with a labelled tick always in view."""
    known = [value for value in values if np.isfinite(value) and value > 0] or [1.0]
    low, high = min(known) / 1.12, max(known) * 1.12
    stretch = max(1.0, (4 * low / high) ** 0.5)
    limits = low / stretch, high * stretch
    axes.set(**{f"{which}scale": "log", f"{which}lim": limits})
    wide = limits[1] / limits[0] > 100  # noqa: PLR2004
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: text(value)))


def short_si(unit: str) -> Callable[[float], str]:
    """A function that writes ticks: `2 ms`, `500 k`."""

    def text(value: float) -> str:
        number, _, prefixed = numbers.si(value, unit).partition(numbers.NARROW)
        return f"{float(number):g} {prefixed}".strip()

    return text
