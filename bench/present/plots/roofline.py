"""Compiled steps below the measured roofs of the devices."""

from collections.abc import Iterator, Sequence
from functools import partial

from bench.present.charts import CHARTS
from bench.present.plots.plot_plan import Drawing, Plan, Subject, row_of
from bench.present.plots.vega_plot import panel_sizes, spec_of
from bench.records import numbers


def plan(subject: Subject) -> Iterator[Plan]:
    """Yield a plot with a panel for each number of devices whose roofs were measured."""
    measured = {block.block.mesh.size for block in subject.blocks if block.ceilings}
    known = subject.cells.query("status == 'ok' and intensity > 0 and device_flops > 0")
    counts, rest = subject.some(sorted(measured & set(known["devices"])), "meshes")
    if counts:
        yield Plan(len(counts), partial(_drawing, subject, counts, rest))


def _drawing(subject: Subject, counts: Sequence[int], rest: str) -> Drawing:
    rows = [
        row_of(block, cell, "roofline")
        | {"place": numbers.count(cell["devices"], "device")}
        | {"matmul": block.ceilings["matmul_flops"], "bandwidth": block.ceilings["memory_bytes"]}
        for block in subject.blocks
        for cell in block.ranked
        if block.ceilings and cell["devices"] in counts and cell["intensity"] > 0
    ]
    values = {
        "rows": rows,
        "places": [numbers.count(devices, "device") for devices in counts],
        "area": 60,
        **panel_sizes(len(counts), 3, labels=60),
        **subject.looks(row["name"] for row in rows),
    }
    return Drawing(spec_of("roofline", values), CHARTS["roofline"].note + rest)
