"""Descriptions of the charts that a report shows: their words, and the look of their series.

plots/<kind>.py draws a printed chart with matplotlib, and web/charts/<kind>.js draws it on the
page, which gets `for_page` as JSON. Both have the same titles, notes, colours, marks and dashes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

PALETTE = ("#0072b2", "#d55e00", "#009e73", "#b5609a", "#c48a00", "#3f9fd8", "#6b5bb8", "#7a7a7a")
"""After Okabe and Ito, https://jfly.uni-koeln.de/color/, with the lightest darkened for lines.
templates/style.css has them as --c0 to --c7, with lighter ones for a dark page."""

SHAPES = {
    "circle": "o", "square": "s", "triangle-up": "^", "diamond": "D", "cross": "P",
    "triangle-down": "v", "triangle-right": ">", "triangle-left": "<",
}  # fmt: skip
"""Vega's names of marks, and matplotlib's."""

DASHES: tuple[tuple[float, ...], ...] = ((), (4, 1.5), (1, 1))
"""Dashes of the first eight implementations, the next eight, and so on."""

FARTHEST_RATIO = 1.5
"""Where the axis of ratios may end and the colours of ratios saturate, in either direction."""

PARTS = {
    "dispatch": ("dispatch", "c7", ""),
    "matmul": ("matrix products", "c0", ""),
    "elementwise": ("elementwise", "c5", "////"),
    "layout": ("layout", "c3", "xxxx"),
    "unknown": ("unknown", "c6", "...."),
    "wait": ("waiting", "c4", "\\\\\\\\"),
    "move": ("moving data", "c1", ""),
    "idle": ("idle", "line", ""),
}
"""Label, colour and hatch of each part of a traced step, in the order of the bars."""


class Look(NamedTuple):
    """The look of one implementation in every chart of a report."""

    colour: int
    """Index into PALETTE."""
    shape: str
    dashes: tuple[float, ...]


def look(number: int) -> Look:
    """The look of an implementation by its place among all of the run; unique among 64."""
    again = number // len(PALETTE)
    shapes = list(SHAPES)
    return Look(
        number % len(PALETTE), shapes[(number + again) % len(shapes)], DASHES[again % len(DASHES)]
    )


@dataclass(frozen=True)
class Chart:
    """The words of one kind of chart."""

    heading: str
    """Heading of its section on the page."""
    title: str = ""
    note: str = ""
    """How to read it. `{margin}` stands for the margin of the verdicts."""
    x: str = ""
    """Title of the horizontal axis."""
    y: str = ""
    panels: Mapping[str, str] = field(default_factory=dict)
    """Titles of panels that show different quantities."""
    remarks: Mapping[str, str] = field(default_factory=dict)
    """Sentences for the note that apply to some data only."""
    figures: Sequence[str] = ()
    """Columns of `Tables.cells` that the page's chart needs beside those of the table of cells."""
    printed: bool = True
    """Whether plots/ draws it too."""


CHARTS = {
    "ratios": Chart(
        heading="Against the baseline",
        title="Step time relative to the baseline",
        x="step time / baseline step time (left of 1 is faster)",
        figures=("ratio_low", "ratio_high"),
        note=(
            "Marks to the left of 1 are faster than the baseline. Horizontal lines are 95 % "
            "confidence intervals, the dashed lines show the margin of {margin}, and the shaded "
            "band is the noise floor: how far two copies of the baseline may differ in that "
            "block. A hollow mark was not measured in the same rounds as the baseline and has no "
            "interval. A ratio that lies off the axis is written at its edge."
        ),
    ),
    "scaling": Chart(
        heading="Scaling",
        x="devices",
        figures=("step_q1_s", "step_q3_s", "high_water_bytes"),
        panels={
            "step": "Step time (lower is better)",
            "efficiency": "Parallel efficiency (higher is better)",
            "rate": "Throughput, {unit} per second",
            "memory": "Memory per device",
        },
        note=(
            "Points are medians and bars are quartiles. Efficiency compares each implementation "
            "with itself on the smallest mesh. The dashed line is ideal scaling of the fastest "
            "implementation there."
        ),
        remarks={
            "communication": (
                "The dotted line is the time that communication alone would take, at the measured "
                "all-reduce bandwidth, for the implementation that sends least."
            ),
            "oversubscribed": (
                "Shaded: more devices than cores, which shows the cost of dispatch and "
                "communication but not how the step scales."
            ),
            "high_water": (
                "Memory is what the compiler planned; hollow marks are the most that was "
                "measured in use."
            ),
        },
    ),
    "breakdown": Chart(
        heading="Where the step time goes",
        title="Where the step time goes",
        x="time per traced step",
        note=(
            "From traces, averaged over the devices and over the traced steps of median duration. "
            "The host waits for every traced step, so each bar is a latency."
        ),
    ),
    "heatmap": Chart(
        heading="Mesh by batch",
        title="Ratio to the baseline by mesh and batch",
        x="global batch",
        note=(
            "Blue fields are faster than the baseline of their block and orange ones slower; the "
            "strongest colours stand for a factor of 1.5 and more."
        ),
        remarks={"untimed": "Hatched fields have no time, for the reason given."},
    ),
    "roofline": Chart(
        heading="Roofline",
        title="Roofline",
        x="arithmetic intensity (FLOP per byte accessed)",
        y="FLOP/s per device",
        figures=("device_flops", "intensity"),
        note=(
            "Each mark is a compiled step, placed by XLA's count of its operations and of the "
            "bytes that it accesses. The roofs are what one device reached in this run while the "
            "whole mesh was busy: matrix products (flat) and memory bandwidth (slanted). XLA "
            "counts every operand as read from memory, so a step whose operands stay in a cache "
            "may lie above the slanted roof; a step above the flat roof ran at a quieter moment "
            "than the measurement of the roof."
        ),
    ),
    "batches": Chart(heading="Batch size", x="global batch", printed=False),
    "losses": Chart(
        heading="Loss curves",
        x="step",
        panels={"loss": "Loss", "apart": "Largest difference from the reference so far"},
        note=(
            "Every implementation trains from the same parameters on the same data. The wide grey "
            "line is the reference: the whole batch on one device."
        ),
        remarks={
            "apart": (
                "Relative to the reference's loss at the same step; no difference at all is drawn "
                "at the bottom (equal). Grey lines are the reference with its batch in parts and "
                "in float64, which shows how far rounding alone leads. The dashed line is the "
                "gate's tolerance for its first few steps."
            )
        },
        printed=False,
    ),
}
"""Every kind of chart, in the order of a report."""


def for_page(implementations: Iterable[str]) -> dict[str, Any]:
    """What the page's script needs: `charts`, `looks` by implementation, and `parts` of a step."""
    looks = [look(number) for number, _ in enumerate(implementations)]
    return {
        "charts": {kind: asdict(chart) for kind, chart in CHARTS.items()},
        "looks": [
            {"colour": f"var(--c{each.colour})", "shape": each.shape, "dashes": each.dashes}
            for each in looks
        ],
        "parts": [
            {"key": key, "title": title, "colour": f"var(--{colour})"}
            for key, (title, colour, _) in PARTS.items()
        ],
        "farthestRatio": FARTHEST_RATIO,
    }
