"""What all plots share: colours, marks, sizes, panels in a grid, and how a figure is written."""

from __future__ import annotations

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

from bench.records import files, numbers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.path import Path as Outline
    from numpy.typing import NDArray

Dashes = Literal["solid"] | tuple[float, tuple[float, ...]]

PAPER, INK, MUTED, LINE, SHADE = "#ffffff", "#1c242e", "#5d6875", "#d8dde3", "#eceff2"

PALETTE = ("#0072b2", "#d55e00", "#009e73", "#b5609a", "#c48a00", "#3f9fd8", "#6b5bb8", "#7a7a7a")
"""After Okabe and Ito, https://jfly.uni-koeln.de/color/, with the lightest darkened for lines."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "h", "<", ">", "p")

DASHES: tuple[Dashes, ...] = ("solid", (0, (4, 1.5)), (0, (1, 1)))
"""Of the first eight implementations, the next eight, and so on."""

GUIDE = (0, (4, 3))
"""Dashes of what is no implementation's: the ideal, the margin."""

VARIABLES = {
    PAPER: "--paper", INK: "--ink", MUTED: "--muted", LINE: "--line", SHADE: "--shade",
} | {colour: f"--c{number}" for number, colour in enumerate(PALETTE)}  # fmt: skip
"""CSS variables the page gives its own light and dark values."""

WIDTH = 7.2
"""Inches of every plot: the text of a page of print, and about as wide as GitHub shows it."""

DPI = 160
"""Of PNG files."""

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
    "figure.facecolor": PAPER,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 8,
    "grid.color": LINE,
    "grid.linewidth": 0.5,
    "hatch.linewidth": 0.6,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    # Outlines of glyphs are in the file, so that it looks the same wherever it is opened.
    "svg.fonttype": "path",
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": MUTED,
    "xtick.labelsize": 7.5,
    "ytick.color": MUTED,
    "ytick.labelsize": 7.5,
}

_LETTER = 0.6 / 72
"""Inches a point of a font's size that a letter is wide, about."""

_TICKS = 7
"""Most labels along an axis of devices or batches."""

_LONGEST = 30
"""Letters of a name; longer ones are cut."""


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


def styled(slug: str, changes: Mapping[str, Any] | None = None) -> AbstractContextManager[None]:
    """In which a figure is made and rendered: STYLE, with changes."""
    return mpl.rc_context(STYLE | {"svg.hashsalt": slug} | dict(changes or {}))


def render(figure: Figure, slug: str) -> Plot:
    """Draw a finished figure, within `styled`."""
    FigureCanvasAgg(figure)
    svg, png = io.StringIO(), io.BytesIO()
    figure.savefig(svg, format="svg", metadata={"Date": None})
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
    """By its place among all implementations of the run; unique among the first 88."""
    number = list(implementations).index(name)
    return Look(
        PALETTE[number % len(PALETTE)],
        MARKERS[number % len(MARKERS)],
        DASHES[number // len(PALETTE) % len(DASHES)],
    )


def handle(name: str, implementations: Sequence[str]) -> Artist:
    """A legend's entry."""
    colour, marker, dashes = look(name, implementations)
    return Line2D([], [], color=colour, marker=marker, linestyle=dashes, linewidth=1.3,
                  markersize=5, markeredgewidth=0, label=short(name))  # fmt: skip


def guide(label: str, dashes: Dashes = GUIDE) -> Artist:
    """A legend's entry for a line that is no implementation's."""
    return Line2D([], [], color=MUTED, linewidth=1, linestyle=dashes, label=label)


class Grid(NamedTuple):
    """Panels in rows, with sizes in inches."""

    columns: int
    """At most: rows are filled evenly."""
    height: float
    """Of a panel."""
    left: float = 0.55
    """Of the first column's labels."""
    right: float = 0.08
    top: float = 0.25
    """Of the first row's titles."""
    bottom: float = 0.38
    """Of the last row's labels."""
    across: float = 0.15
    """Between columns."""
    down: float = 0.4
    """Between rows."""
    shared: str = ""
    """Axes that all panels share: `x`, `y`, `xy` or none."""

    def figure(self, count: int, handles: Sequence[Artist] = ()) -> tuple[Figure, list[Axes]]:
        """A figure of so many panels, left to right and downwards, with its legend below."""
        rows = -(-count // self.columns)
        columns = -(-count // rows)
        inner = rows * self.height + (rows - 1) * self.down
        height = self.top + inner + self.bottom + _below(handles)
        width = (WIDTH - self.left - self.right - (columns - 1) * self.across) / columns
        figure = Figure(figsize=(WIDTH, height))
        made: list[Axes] = []
        for number in range(count):
            row, column = divmod(number, columns)
            x = self.left + column * (width + self.across)
            y = height - self.top - self.height - row * (self.height + self.down)
            axes = figure.add_axes(
                (x / WIDTH, y / height, width / WIDTH, self.height / height),
                sharex=made[0] if made and "x" in self.shared else None,
                sharey=made[0] if made and "y" in self.shared else None,
            )
            axes.tick_params(
                labelleft=not column or "y" not in self.shared,
                labelbottom=number + columns >= count or "x" not in self.shared,
                length=0,
            )
            made.append(axes)
        if handles:
            figure.legend(
                handles=list(handles), ncols=_fit(handles), loc="lower left", borderaxespad=0.2,
                bbox_to_anchor=(0, 0), fontsize=7.5, columnspacing=1.2, handlelength=2.4,
                labelspacing=0.45, borderpad=0.2,
            )  # fmt: skip
        return figure, made

    def label(self, figure: Figure, text: str, handles: Sequence[Artist] = ()) -> None:
        """Name the horizontal axis of all panels, once."""
        height = figure.get_size_inches()[1]
        figure.text(
            (self.left + WIDTH - self.right) / 2 / WIDTH, (_below(handles) + 0.03) / height, text,
            ha="center", va="bottom", fontsize=8, color=MUTED,
        )  # fmt: skip


def _fit(handles: Sequence[Artist]) -> int:
    """How many columns a legend has room for; it is filled column by column."""
    widths = [7.5 * _LETTER * len(str(one.get_label())) + 0.5 for one in handles]
    for columns in range(len(handles), 1, -1):
        # The first ones are longer by one where they cannot be equal.
        ends = np.cumsum([len(part) for part in np.array_split(widths, columns)])
        if sum(part.max() for part in np.split(np.array(widths), ends[:-1])) <= WIDTH:
            return columns
    return 1


def _below(handles: Sequence[Artist]) -> float:
    """Inches that a legend needs."""
    return 0.08 + 0.165 * -(-len(handles) // _fit(handles)) if handles else 0.0


def short(name: str, letters: int = _LONGEST) -> str:
    """A name that has room."""
    return name if len(name) <= letters else f"{name[: letters - 1]}\N{HORIZONTAL ELLIPSIS}"


def room(names: Iterable[str]) -> float:
    """Inches that names need beside an axis."""
    return 0.12 + 7.5 * _LETTER * max((len(short(name)) for name in names), default=0)


class Curve(NamedTuple):
    """A line with bars; NaN where there is no value, and the line breaks."""

    look: Look
    x: NDArray[np.float64]
    y: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def draw_curves(axes: Axes, curves: Sequence[Curve]) -> None:
    """Draw curves on a logarithmic axis, a little apart, so that equal ones do not hide others."""
    apart = 2 ** (0.16 * ((np.arange(len(curves)) + 0.5) / max(1, len(curves)) - 0.5))
    shifted = [curve._replace(x=curve.x * by) for curve, by in zip(curves, apart, strict=True)]
    lines = [(np.column_stack([curve.x, curve.y]), curve.look) for curve in shifted]
    bars = [
        ([(x, low), (x, high)], curve.look)
        for curve in shifted
        for x, low, high in zip(curve.x, curve.low, curve.high, strict=True)
        if np.isfinite(low + high)
    ]
    segments(axes, lines, 1.2, dashed=True)
    segments(axes, bars, 0.8)
    marks(
        axes,
        [
            Mark(x, y, curve.look.colour, curve.look.marker)
            for curve in shifted
            for x, y in zip(curve.x, curve.y, strict=True)
            if np.isfinite(y)
        ],
    )


def segments(
    axes: Axes, lines: Sequence[tuple[Any, Look]], width: float, *, dashed: bool = False
) -> None:
    """Lines of many implementations as one artist, which is drawn much faster than one each."""
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
    axes.add_collection(
        PathCollection(
            [_outline(point.marker) for point in points], sizes=[size**2],
            offsets=np.array([(point.x, point.y) for point in points]).reshape(-1, 2),
            offset_transform=axes.transData, transform=IdentityTransform(), zorder=3,
            facecolors=[PAPER if point.hollow else point.colour for point in points],
            edgecolors=[point.colour if point.hollow else PAPER for point in points],
            linewidths=[0.9 if point.hollow else 0.4 for point in points],
        ),
        autolim=False,
    )  # fmt: skip


def _outline(marker: str) -> Outline:
    """Of diameter 1."""
    made = MarkerStyle(marker)
    return made.get_path().transformed(made.get_transform())


def log2_axis(axes: Axes, ticks: Sequence[int]) -> None:
    """Devices or batches: a tick each, if there is room."""
    axes.set_xscale("log", base=2)
    apart = (ticks[-1] / ticks[0]) ** (1 / _TICKS)
    kept = [ticks[0]]
    for tick in ticks[1:]:
        if tick >= kept[-1] * apart:
            kept.append(tick)
    axes.set_xticks(kept, [str(tick) for tick in kept])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlim(ticks[0] / 1.25, ticks[-1] * 1.25)


def log_axis(
    axes: Axes,
    which: str,
    values: Iterable[float],
    text: Callable[[float], str],
    *,
    base: int = 10,
) -> None:
    """A logarithmic axis around values, with a labelled tick always in view."""
    known = [value for value in values if np.isfinite(value) and value > 0] or [1.0]
    low, high = min(known) / 1.12, max(known) * 1.12
    stretch = max(1.0, (4 * low / high) ** 0.5)
    low, high = low / stretch, high * stretch
    axis = axes.xaxis if which == "x" else axes.yaxis
    (axes.set_xscale if which == "x" else axes.set_yscale)("log", base=base)
    (axes.set_xlim if which == "x" else axes.set_ylim)(low, high)
    wide = high / low > 100  # noqa: PLR2004
    axis.set_major_locator(
        LogLocator(base, subs=(1.0,) if wide or base == 2 else (1.0, 2.0, 5.0))  # noqa: PLR2004
    )
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: text(value)))


def short_si(unit: str) -> Callable[[float], str]:
    """Text of ticks: `2 ms`, `500 k`."""

    def text(value: float) -> str:
        number, _, prefixed = numbers.si(value, unit).partition(numbers.NARROW)
        return f"{float(number):g} {prefixed}".strip()

    return text


def _attribute(text: str) -> str:
    return (
        text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")
    )
