"""Compiled steps below the measured roofs of the devices."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from bench.present.charts import CHARTS
from bench.present.plots.plot_plan import Drawing, Plan, Subject, row_of
from bench.present.plots.vega_plot import panel_sizes, spec_of
from bench.records import numbers
from bench.records.rows import Ceilings


def plan(subject: Subject) -> Iterator[Plan]:
    """Yield a plot with a panel for each number of devices whose roofs were measured."""
    # The first block for each number of devices decides.
    ceilings = {b.block.mesh.size: b.ceilings for b in reversed(subject.blocks) if b.ceilings}
    marks: dict[int, list[dict[str, Any]]] = {}
    for block in subject.blocks:
        devices = block.block.mesh.size
        for cell in block.ranked:
            if devices in ceilings and cell["intensity"] > 0 and cell["device_flops"] > 0:
                row = row_of(block, cell, "roofline") | {"place": numbers.count(devices, "device")}
                marks.setdefault(devices, []).append(row)
    counts, rest = subject.some(sorted(marks), "meshes")
    if counts:
        shown = {devices: marks[devices] for devices in counts}
        yield Plan(len(counts), partial(_drawing, subject, shown, ceilings, rest))


def _drawing(
    subject: Subject,
    marks: Mapping[int, Sequence[dict[str, Any]]],
    ceilings: Mapping[int, Ceilings],
    rest: str,
) -> Drawing:
    every = [row for own in marks.values() for row in own]
    intensities = [row["intensity"] for row in every]
    rows: list[dict[str, Any]] = []
    for devices, (first, *_) in marks.items():
        flops, memory = (ceilings[devices][key] for key in ("matmul_flops", "memory_bytes"))
        ridge = flops / memory
        rows += [
            {"isRoof": True, "place": first["place"], "intensity": x,
             "device_flops": min(flops, x * memory)}
            for x in (min(*intensities, ridge) / 2, ridge, max(*intensities, ridge) * 2)
        ]  # fmt: skip
    rows += every
    xs, ys = ([row[key] for row in rows] for key in ("intensity", "device_flops"))
    values = {
        "rows": rows,
        "places": [own[0]["place"] for own in marks.values()],
        "xDomain": [min(xs), max(xs)],
        "yDomain": [min(ys) / 1.2, max(ys) * 1.2],
        "area": 60,
        **panel_sizes(len(marks), 3, labels=60),
        **subject.looks(row["name"] for row in every),
    }
    return Drawing(spec_of("roofline", values), CHARTS["roofline"].note + rest)
