"""Step time and parallel efficiency against devices."""

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from bench.analyse.scaling_curves import Scaling
from bench.present import run_tables
from bench.present.charts import CHARTS
from bench.present.plots.plot_plan import Drawing, Plan, Subject
from bench.present.plots.vega_plot import SECONDS, WIDTH, log_ticks, spec_of

_CHART = CHARTS["scaling"]


def plan(subject: Subject) -> Iterator[Plan]:
    """Yield a plot for each scaling curve: the first of each kind now, the others as `later`."""
    seen = set()
    for curve in subject.curves:
        make = partial(_drawing, curve, subject)
        yield Plan(2, make, curve.kind in seen, curve.title, curve.slug)
        seen.add(curve.kind)


def _drawing(curve: Scaling, subject: Subject) -> Drawing:
    """Draw a curve for every implementation, with quartiles."""
    devices = sorted(int(count) for count in curve.points["devices"].unique())
    ideal, communication = curve.ideal.tolist(), curve.communication_bound.tolist()
    ends = [devices[0] / 1.2, devices[-1] * 1.2]
    start = curve.oversubscribed_from
    shared: dict[str, Any] = {
        "xs": devices,
        "xScale": {"type": "log", "base": 2, "domain": ends, "nice": False},
        "xTitle": _CHART.x,
        "width": WIDTH // 2 - 80,
        "height": 210,
        "labels": [],
        "shade": [] if start is None else [{"x": max(start, ends[0]), "to": ends[1]}],
        **subject.looks(curve.points["implementation"]),
    }
    time, share = _rows(curve, "step", "_s"), _rows(curve, "efficiency", "")
    known = [row[key] for row in time for key in ("low", "high") if row[key]]
    known += [seconds for _, seconds in ideal]
    low, high = min(known), max(known)
    most = max([1.0, *(row["high"] for row in share if row["high"])])
    panels = [
        spec_of("curve", shared | values)
        for values in (
            {
                "title": _CHART.panels["step"],
                "rows": time,
                "yScale": {"type": "log", "domain": [low / 1.15, high * 1.15], "nice": False},
                "yAxis": SECONDS | {"values": log_ticks(low, high)},
                "guides": _guides(ideal, "ideal") + _guides(communication, "communication"),
            },
            {
                "title": _CHART.panels["efficiency"],
                "rows": share,
                "yScale": {"domain": [0, 1.08 * most], "nice": False},
                "yAxis": {"title": None, "tickCount": 5, "format": ".0%"},
                "guides": _guides([(count, 1.0) for count in devices], "ideal"),
            },
        )
    ]
    # Only the top level may have parameters.
    _, params = (panel.pop("params") for panel in panels)
    remarks = [
        _CHART.remarks[remark]
        for remark, applies in (
            ("communication", len(communication)),
            ("oversubscribed", start is not None),
        )
        if applies
    ]
    spec = {"params": params, "hconcat": panels}
    return Drawing(spec, " ".join([_CHART.note, *remarks]), run_tables.scaling(curve))


def _rows(curve: Scaling, key: str, suffix: str) -> list[dict[str, Any]]:
    columns = {"value": f"{key}{suffix}", "low": f"{key}_q1{suffix}", "high": f"{key}_q3{suffix}"}
    return [
        {
            "name": point["implementation"],
            "x": int(point["devices"]),
            **{k: None if math.isnan(point[c]) else point[c] for k, c in columns.items()},
        }
        for point in curve.points.to_dict("records")
    ]


def _guides(points: Sequence[Sequence[float]], name: str) -> list[dict[str, Any]]:
    return [{"x": x, "value": value, "guide": name} for x, value in points]
