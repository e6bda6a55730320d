"""Compiled steps below the measured roofs of the devices."""

from collections.abc import Iterator, Mapping

import pandas as pd

from bench.present import charts
from bench.present.charts import CHARTS
from bench.present.plots.plot_plan import Plan, Subject
from bench.present.plots.vega_plot import Plot, draw, panel_sizes
from bench.records import numbers
from bench.records.rows import Ceilings

_CHART = CHARTS["roofline"]


def plan(subject: Subject) -> Iterator[Plan]:
    """Yield a plot with a panel for each number of devices whose roofs were measured."""
    # The first block for each number of devices decides.
    ceilings = {
        comparison.block.mesh.size: comparison.ceilings
        for comparison in reversed(subject.blocks)
        if comparison.ceilings is not None
    }
    cells = subject.cells
    known = cells[
        (cells["status"] == "ok") & (cells["intensity"] > 0) & (cells["device_flops"] > 0)
    ]
    devices, rest = subject.some(sorted(ceilings.keys() & set(known["devices"])), "meshes")
    if devices:
        shown = known[known["devices"].isin(devices)]
        note = _CHART.note + rest
        yield Plan(_CHART.title, note, len(devices), lambda: _draw(subject, shown, ceilings))


def _draw(subject: Subject, cells: pd.DataFrame, ceilings: Mapping[int, Ceilings]) -> Plot:
    marks = [
        {
            "place": numbers.count(int(cell["devices"]), "device"),
            "name": cell["implementation"],
            "x": cell["intensity"],
            "y": cell["device_flops"],
        }
        for cell in cells.sort_values("devices").to_dict("records")
    ]
    known, roofs = [mark["x"] for mark in marks], []
    for devices in sorted(cells["devices"].unique()):
        flops, memory = (ceilings[devices][key] for key in ("matmul_flops", "memory_bytes"))
        for x in (min(*known, flops / memory) / 2, flops / memory, max(*known, flops / memory) * 2):
            y, place = min(flops, x * memory), numbers.count(int(devices), "device")
            roofs.append({"roof": True, "place": place, "x": x, "y": y})
    rows = [*roofs, *marks]
    values = {
        "rows": rows,
        "places": list(dict.fromkeys(row["place"] for row in marks)),
        "xDomain": _around([row["x"] for row in rows], 1.0),
        "yDomain": _around([row["y"] for row in rows], 1.2),
        "xTitle": _CHART.x,
        "yTitle": _CHART.y,
        "area": 60,
        **panel_sizes(len(set(cells["devices"])), 3, labels=60),
        **charts.looks(cells["implementation"], subject.implementations),
    }
    return draw(f"roofline-{subject.slug}", "roofline", values, _CHART.title, subject.subtitle)


def _around(values: list[float], by: float) -> list[float]:
    return [min(values) / by, max(values) * by]
