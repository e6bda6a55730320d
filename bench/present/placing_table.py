"""The matrix of a report: implementations by blocks, and how far each is behind the fastest.

`picture` draws it, with the answer above, for slides and for the gallery.
"""

import math
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from bench.analyse import placings
from bench.analyse.cell_table import Tables
from bench.analyse.comparisons import Comparison
from bench.analyse.placings import Row
from bench.present import bounds, sentences
from bench.present.columns import Figure, missing
from bench.present.plots.kinds import some
from bench.present.plots.vega_plot import Plot, compose, spec_of
from bench.records import numbers
from bench.records.statuses import STATUSES

COLUMNS = 12
"""Limit on the blocks that are shown; worst and mean cover all blocks."""

SHADES = (1.02, 1.1, 1.25, 1.6)
"""Thresholds of the shades, as ratios to the fastest time."""

SLIDE = 1920, 1080
"""Width and height of a slide in pixels, into which the picture's PNG has to fit."""

LINE, PER_COLUMN = 44, 9
"""Characters per line of the picture's text: beside the blocks, and at least for each block."""

CAPTION = (
    "Medians over rounds. Below each mesh: the fastest step time. The stronger the blue, the "
    "farther behind. Solid outline: the fastest estimate; dashed: may be equally fast. Worst and "
    "geometric mean cover the situations shared with others."
)

APART = " Approximate steps are ranked separately, and set beside the fastest exact one."


class Field(NamedTuple):
    """One cell of the run, as a field of the matrix."""

    text: str
    look: str
    """Classes of the page's style: `shade0` to `shade4`, `leads`, `fastest`, `apart`, `failed`."""
    sure: str
    """The interval in words, and the step time."""
    choices: Mapping[str, str]
    """The choices that its link sets: `subject` and `cell`."""


@dataclass(frozen=True)
class Line:
    """A row of the matrix."""

    name: str
    fields: list[Field | None]
    """None where it is unsupported in a block or was not part of it."""
    worst: str
    mean: str
    count: str
    """`6 of 10`; empty if it is ranked in all."""


@dataclass(frozen=True)
class PlacingTable:
    """The matrix in words."""

    subjects: list[tuple[str, int]]
    """Workloads with their options, and how many columns each has."""
    situations: list[Figure]
    """Meshes, with the fastest time on each."""
    lines: list[Line]
    note: str


def make(found: Tables) -> PlacingTable | None:
    """Return the matrix of a run in words; None if nothing was compared."""
    blocks, rows = placings.find(found)
    shown, left = some(blocks, COLUMNS, "situations")
    if not shown:
        return None
    names = {block.name for block in shown}
    subjects, situations = [], []
    for subject, same in sentences.by_subject(sentences.summaries(found)):
        own = [each for each in same if each.compared]
        columns = [each for each in own if each.comparison.name in names]
        batches = {each.comparison.block.batch for each in own}
        batch = f", batch {batches.pop()}" if len(batches) == 1 else ""
        if columns:
            subjects.append((f"{subject}{batch}", len(columns)))
        situations += [Figure(each.among(own), each.step) for each in columns]
    apart = APART if any(row.approximate for row in rows) else ""
    single, count = sum(b.span_steps == (1,) for b in blocks), len(blocks)
    where = f"In {single} of {count} situations, single" if single < count else "Single"
    latency = f" {where} steps were timed, so step times are latencies."
    return PlacingTable(
        subjects,
        situations,
        [_line(row, shown, count) for row in rows],
        f"{CAPTION}{apart}{latency if single else ''}{left.replace('plot', 'table')}",
    )


def picture(found: Tables, title: str, machine: str) -> Plot | None:
    """Return a drawing of the answer above the matrix; None if nothing was compared.

    `title` is the question that the run answers; `machine` names the hardware and the date.
    """
    matrix = make(found)
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
    legend = "Bluer: farther behind the fastest; white: the fastest, or possibly as fast."
    said = [
        f"{subject}: {' '.join(texts)}"
        for subject, texts in sentences.answers(sentences.summaries(found)).items()
    ]
    width = LINE + sum(max(PER_COLUMN * columns, len(name)) for name, columns in matrix.subjects)
    lines = [
        line
        for text in (*said, "", f"{machine}. {legend}")
        for line in textwrap.wrap(text, width, break_on_hyphens=False) or [""]
    ]
    return replace(compose("share", spec, textwrap.wrap(title, width * 3 // 4), lines), fills=SLIDE)


def _line(row: Row, blocks: list[Comparison], count: int) -> Line:
    known = len(row.known)
    fields = [
        _field(row.cells[block.name], block.subject) if block.name in row.cells else None
        for block in blocks
    ]
    part = "" if known == count else f"{known} of {count}"
    name = sentences.named(row.implementation, bool(row.approximate))
    return Line(name, fields, behind(row.worst), behind(row.mean), part)


def _field(cell: Mapping[str, Any], subject: str) -> Field:
    choices = {"subject": subject, "cell": str(cell["cell"])}
    if cell["status"] != "ok" or missing(cell["behind"]):
        status = STATUSES[cell["status"]]
        return Field(status.short, "failed", cell["reason"] or "no ratio", choices)
    text, step = behind(cell["behind"]), f"{numbers.si(cell['step_s'], 's')} per step"
    if math.isnan(cell["tier"]):  # it shared no rounds with others
        apart = "approximate" if cell["approximate"] else "measured separately"
        return Field(text, "apart", f"{apart}, {step}", choices)
    low, high = cell["behind_low"], cell["behind_high"]
    sure = f"surely {bounds.sure(low, high)} {'of' if low == 1 else 'behind'} the fastest"
    sure = sure if math.isfinite(high) else "too few rounds for a bound"
    look = f"shade{sum(cell['behind'] >= least for least in SHADES)}"
    if cell["tier"] == 0:
        text, leads = ("fastest", " fastest") if cell["behind"] == 1 else (text, " leads")
        look += leads
    return Field(text, look, f"{sure}, {step}", choices)


def behind(times: float) -> str:
    """Return `+4 %`, or `2.1x` from 2 on; a minus below 1; a dash for NaN."""
    if math.isnan(times):
        return numbers.MISSING
    if times >= bounds.TWICE:
        return f"{times:.1f}{numbers.TIMES}"
    sign = "+" if times >= 1 else numbers.MINUS
    return f"{sign}{100 * abs(times - 1):.0f}{numbers.NARROW}%"
