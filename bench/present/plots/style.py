"""Style of the figures that matplotlib draws, and saving them."""

from __future__ import annotations

import io
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from bench.present.plots.plot_output import Plot

INK, MUTED = "#1c242e", "#5d6875"

WIDTH = 7.2
"""Inches of a figure: the text width of a printed page."""

DPI = 160
"""Resolution of PNG files."""

STYLE: dict[Any, Any] = dict(
    mpl.rc_params_from_file(Path(__file__).with_name("print.mplstyle"), use_default_template=False)
)
"""Of all figures."""


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
