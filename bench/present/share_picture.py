"""A picture of a report's first screen, for slides and for the gallery."""

import re
import textwrap
from dataclasses import replace
from typing import Any

import vl_convert

from bench.analyse.cell_table import Tables
from bench.present import placing_table, sentences
from bench.present.plots.vega_plot import Plot, compose, spec_of

SLUG = "share"

SLIDE = 1920, 1080
"""Width and height of a slide in pixels, which the PNG fills in one direction."""

LINE = 135
"""Characters per line of the answer."""


def draw(found: Tables, title: str, machine: str) -> Plot | None:
    """Draw the answer above the matrix; None if nothing was compared.

    Args:
      found: the run's tables.
      title: the question that the run answers.
      machine: in a few words, with the date.
    """
    matrix = placing_table.make(found)
    if matrix is None:
        return None
    subjects = [name for name, columns in matrix.subjects for _ in range(columns)]
    rows: list[dict[str, Any]] = []
    for line in matrix.lines:
        for subject, place, field in zip(subjects, matrix.situations, line.fields, strict=True):
            shade, *leads = field.look.split() if field else ("",)
            blue = shade.startswith("shade") and not leads
            rows.append({
                "panel": subject,
                "mesh": place.main,
                "line": line.name,
                "label": field.text if field else "\N{MIDDLE DOT}",
                "colour": f"var(--{shade.replace('shade', 'behind') if blue else 'paper'})",
            })  # fmt: skip
        worst = {"panel": "", "mesh": "worst", "line": line.name, "label": line.worst}
        rows.append({**worst, "colour": "var(--paper)"})
    panels = [*dict.fromkeys(subjects), ""]
    meshes = [*dict.fromkeys(place.main for place in matrix.situations), "worst"]
    lines = [line.name for line in matrix.lines]
    values = {"rows": rows, "panels": panels, "meshes": meshes, "lines": lines, "yTitle": None}
    spec = spec_of("heatmap", {**values, "columns": len(panels)})
    spec["resolve"]["scale"] = {"x": "independent"}
    answers = [
        line
        for subject, texts in sentences.answers(sentences.summaries(found)).items()
        for line in textwrap.wrap(f"{subject}: {' '.join(texts)}", LINE, break_on_hyphens=False)
    ]
    legend = "Bluer: farther behind the fastest; white: the fastest, or not told from it."
    plot = compose(SLUG, spec, title, [*answers, "", f"{machine}. {legend}"])
    width, height = map(float, re.findall(r'(?:width|height)="([\d.]+)"', plot.svg)[:2])
    scale = min(SLIDE[0] / width, SLIDE[1] / height)
    return replace(plot, png=vl_convert.svg_to_png(plot.svg, scale=scale))
