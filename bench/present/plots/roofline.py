"""Compiled steps below the measured roofs of the devices."""

from collections.abc import Iterator
from typing import Any

from bench.present.charts import CHARTS
from bench.present.plots.plot_plan import Plan, Subject
from bench.present.plots.vega_plot import panel_sizes, spec_of
from bench.records import numbers


def plan(subject: Subject) -> Iterator[Plan]:
    """Yield a plot with a panel for each number of devices whose roofs were measured."""
    # The first block for each number of devices decides.
    ceilings = {
        comparison.block.mesh.size: comparison.ceilings
        for comparison in reversed(subject.blocks)
        if comparison.ceilings is not None
    }
    known = subject.cells.query("status == 'ok' and intensity > 0 and device_flops > 0")
    counts, rest = subject.some(sorted(ceilings.keys() & set(known["devices"])), "meshes")
    if not counts:
        return
    cells = known[known["devices"].isin(counts)].sort_values("devices")
    places = {devices: numbers.count(int(devices), "device") for devices in counts}
    columns = {"implementation": "name", "intensity": "x", "device_flops": "y"}
    marks = cells.assign(place=cells["devices"].map(places)).rename(columns=columns)
    rows: list[dict[Any, Any]] = []
    for devices, place in places.items():
        flops, memory = (ceilings[devices][key] for key in ("matmul_flops", "memory_bytes"))
        ridge = flops / memory
        ends = min(*marks["x"], ridge) / 2, ridge, max(*marks["x"], ridge) * 2
        rows += [{"roof": True, "place": place, "x": x, "y": min(flops, x * memory)} for x in ends]
    rows += marks[["place", *columns.values()]].to_dict("records")
    xs, ys = ([row[key] for row in rows] for key in "xy")
    values = {
        "rows": rows,
        "places": list(places.values()),
        "xDomain": [min(xs), max(xs)],
        "yDomain": [min(ys) / 1.2, max(ys) * 1.2],
        "area": 60,
        **panel_sizes(len(counts), 3, labels=60),
        **subject.looks(cells["implementation"]),
    }
    yield Plan(spec_of("roofline", values), len(counts), CHARTS["roofline"].note + rest)
