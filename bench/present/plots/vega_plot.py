"""Vega-Lite, as bundled by vl-convert: its library for pages, and its renderer for printed charts.

Printed charts have the page's specifications, with colours for paper and a legend.
"""

import functools
import importlib.metadata
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import truediv
from pathlib import Path
from typing import Any

import vl_convert

from bench.present.charts import CHARTS, LOG_TICKS, SPECS
from bench.records import files, user_cache

VERSION = "6.1"
"""Version of Vega-Lite. vl-convert bundles several; bench/present/web/charts/ targets this one."""

LICENCE = (
    "Charts by Vega, Vega-Lite and Vega-Embed of the University of Washington Interactive Data Lab "
    "(BSD 3-Clause licence, https://github.com/vega), and the parts of D3 that they use, by Mike "
    "Bostock (ISC licence, https://d3js.org). Their code is in this file."
)

WIDTH = 700
"""Width of a plot in pixels: about the text width of a page at 96 pixels per inch."""

LABELS = 190
"""Pixels beside panels for the names of implementations."""

MOST_BYTES = 200
"""Of a plot's slug: file systems allow 255 for a name, here with the suffixes of a draft."""

_STYLE = Path(__file__).parents[1] / "templates" / "style.css"

_CLIP = re.compile(r"\bclip\d+\b")


@dataclass(frozen=True)
class Plot:
    """One figure, which is drawn when it is first needed."""

    slug: str
    """File name under plots/ without its suffix; unique in the report."""
    spec: str
    """In Vega-Lite, as JSON."""
    fills: tuple[int, int] | None = None
    """Width and height that the PNG has to fit into; by default, 1.5 times those of the plot."""

    @functools.cached_property
    def svg(self) -> str:
        """The plot as SVG: equal specifications always give equal bytes."""
        load_bundled_fonts()
        svg = vl_convert.vegalite_to_svg(self.spec, vl_version=VERSION)
        # Vega numbers clip paths consecutively over all figures of the process.
        names = dict.fromkeys(_CLIP.findall(svg))
        clips = {name: f"clip{place}" for place, name in enumerate(names)}
        return _CLIP.sub(lambda found: clips[found[0]], svg)

    @property
    def png(self) -> bytes:
        """The plot as PNG, rendered again on each access."""
        size = map(float, re.findall(r'(?:width|height)="([\d.]+)"', self.svg)[:2])
        scale = min(map(truediv, self.fills, size)) if self.fills else 1.5
        return bytes(vl_convert.svg_to_png(self.svg, scale=scale))

    def write(self, folder: Path) -> None:
        """Write `<slug>.svg`, `<slug>.png` and `<slug>.pdf`.

        An existing PDF of the same plot is kept: the library orders fonts at random, so a new PDF
        would have other bytes.
        """
        svg, pdf = folder / f"{self.slug}.svg", folder / f"{self.slug}.pdf"
        if not (svg.is_file() and pdf.is_file() and svg.read_bytes() == self.svg.encode()):
            files.write(pdf, vl_convert.svg_to_pdf(self.svg))
        files.write(svg, self.svg)
        files.write(folder / f"{self.slug}.png", self.png)


@functools.cache
def load_bundled_fonts() -> None:
    """Make the renderer load only the fonts that it bundles, and none of the system's.

    Plots then look alike everywhere, and take less than half the time: the renderer opens the file
    of a system font again for every character.
    """
    own = os.environ.get("FONTCONFIG_FILE")
    os.environ["FONTCONFIG_FILE"] = str(Path(__file__).with_name("fonts.conf"))
    vl_convert.svg_to_png('<svg xmlns="http://www.w3.org/2000/svg" width="1" height="1"/>')
    del os.environ["FONTCONFIG_FILE"]
    os.environ |= {} if own is None else {"FONTCONFIG_FILE": own}


@functools.cache
def library() -> str:
    """Return JavaScript that defines `vegaEmbed`, about 0.9 MB; it depends only on vl-convert.

    Vega has to interpret expressions itself (`ast`): the page's policy forbids `eval`.
    Bundling takes two seconds, so the result is kept in the user's cache.
    """
    packer = importlib.metadata.version("vl-convert-python")
    name = f"vega-{packer}-{VERSION}.js"
    kept = user_cache.read(name)
    if kept is not None:
        return kept.decode()
    text: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=VERSION)
    user_cache.write(name, text.encode())
    return text


@functools.cache
def colours() -> dict[str, str]:
    """Return the colours of the light page by their names in style.css: `c0`, `ink`, `muted`."""
    return dict(re.findall(r"--([\w-]+): light-dark\((#\w+)", _STYLE.read_text("utf-8")))


def spec_of(kind: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the Vega-Lite specification of a kind of chart, like `specOf` in web/chart_style.js.

    The values replace `$name` in specs.json. A name without a value is left out.
    """
    spec = dict(SPECS[kind])
    parts = SPECS["common"] | spec.pop("values", {})
    own = {"area": 45, "legend": {"title": None, "columns": 4}}
    words = CHARTS.get(kind, {})
    own |= {f"{axis}Title": words[axis] for axis in ("x", "y") if axis in words}
    filled: dict[str, Any] = _filled(spec, {**own, **values}, parts)
    return filled


def _filled(part: Any, values: Mapping[str, Any], parts: Mapping[str, Any]) -> Any:
    if isinstance(part, str) and part.startswith("$"):
        name = part[1:]
        return values[name] if name in values else _filled(parts.get(name, ...), values, parts)
    if isinstance(part, list):
        found = [_filled(one, values, parts) for one in part]
        return [one for one in found if one is not ...]
    if isinstance(part, dict):
        pairs = [(key, _filled(one, values, parts)) for key, one in part.items()]
        return {key: one for key, one in pairs if one is not ...}
    return part


def time_and_share(
    kind: str, values: Mapping[str, Any], time: Mapping[str, Any], share: Mapping[str, Any]
) -> dict[str, Any]:
    """Return two panels over devices: step times, on a logarithmic axis, and shares of the ideal.

    `values` apply to both panels, `time` and `share` to one each: `title`, `rows` and `guides`.
    """
    xs = sorted({row["x"] for row in (*time["rows"], *share["rows"]) if "x" in row})
    seconds = [row[key] for row in time["rows"] for key in ("value", "low", "high") if row[key]]
    seconds += [row["value"] for row in time.get("guides", ())]
    low, high = min(seconds), max(seconds)
    most = max([1.0, *(row["high"] for row in share["rows"] if row.get("high"))])
    both = {
        "xs": xs,
        "xScale": {"type": "log", "base": 2, "domain": [xs[0] / 1.2, xs[-1] * 1.2], "nice": False},
        "width": WIDTH // 2 - 80,
        **values,
    }
    with_unit = "format(datum.value, '~s') + 's'"
    times = {
        "yScale": {"type": "log", "domain": [low / 1.15, high * 1.15], "nice": False},
        "yAxis": {"title": None, "values": LOG_TICKS, "labelExpr": with_unit},
    }
    shares = {
        "yScale": {"domain": [0, 1.08 * most], "nice": False},
        "yAxis": {"title": None, "tickCount": 5, "format": ".0%"},
    }
    panels = [spec_of(kind, {**both, **time, **times}), spec_of(kind, {**both, **share, **shares})]
    return {"hconcat": panels}


def compose(slug: str, spec: Mapping[str, Any], title: str | Sequence[str],
            subtitle: str | Sequence[str]) -> Plot:  # fmt: skip
    """Return a figure for print.

    The title is that of the whole figure. The subtitle has what makes the figure understandable
    on its own: workload, baseline and machine. A text of several lines is a list.
    """
    given = {"paper": "#ffffff", "font": "Liberation Sans, Arial, Helvetica, sans-serif"}
    config = _filled(SPECS["common"]["config"], given, {})
    whole = {**spec, "title": {"text": title, "subtitle": subtitle}, "config": config}
    text = re.sub(r"var\(--([\w-]+)\)", lambda found: colours()[found[1]], json.dumps(whole))
    if len(slug.encode()) > MOST_BYTES:  # a user's workload may have a long name
        slug = f"{slug[:40]}-{files.digest(slug.encode())}"
    return Plot(slug, text)
