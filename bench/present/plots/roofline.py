"""Compiled steps below the measured roofs of the devices."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import pandas as pd

from bench.present.charts import CHARTS
from bench.present.plots.plot_plan import Drawing, Plan, Subject
from bench.present.plots.vega_plot import panel_sizes, spec_of
from bench.records import numbers
from bench.records.rows import Ceilings


def plan(subject: Subject) -> Iterator[Plan]:
    """Yield a plot with a panel for each number of devices whose roofs were measured."""
    # The first block for each number of devices decides.
    ceilings = {b.block.mesh.size: b.ceilings for b in reversed(subject.blocks) if b.ceilings}
    known = subject.cells.query("status == 'ok' and intensity > 0 and device_flops > 0")
    counts, rest = subject.some(sorted(ceilings.keys() & set(known["devices"])), "meshes")
    if counts:
        cells = known[known["devices"].isin(counts)].sort_values("devices", kind="stable")
        roofs = {numbers.count(int(devices), "device"): ceilings[devices] for devices in counts}
        yield Plan(len(counts), partial(_drawing, subject, cells, roofs, rest))


def _drawing(
    subject: Subject, cells: pd.DataFrame, roofs: Mapping[str, Ceilings], rest: str
) -> Drawing:
    places = dict(zip(cells["devices"].unique(), roofs, strict=True))
    marks = cells.assign(name=cells["implementation"], place=cells["devices"].map(places))
    rows: list[dict[Any, Any]] = []
    for place, roof in roofs.items():
        flops, memory = roof["matmul_flops"], roof["memory_bytes"]
        ridge = flops / memory
        ends = min(*marks["intensity"], ridge) / 2, ridge, max(*marks["intensity"], ridge) * 2
        for x in ends:
            y = min(flops, x * memory)
            rows.append({"isRoof": True, "place": place, "intensity": x, "device_flops": y})
    rows += marks[["name", "place", "intensity", "device_flops"]].to_dict("records")
    xs, ys = ([row[key] for row in rows] for key in ("intensity", "device_flops"))
    values = {
        "rows": rows,
        "places": list(roofs),
        "xDomain": [min(xs), max(xs)],
        "yDomain": [min(ys) / 1.2, max(ys) * 1.2],
        "area": 60,
        **panel_sizes(len(roofs), 3, labels=60),
        **subject.looks(cells["implementation"]),
    }
    return Drawing(spec_of("roofline", values), CHARTS["roofline"].note + rest)
