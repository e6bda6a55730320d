"""Step time and parallel efficiency against devices."""

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from bench.analyse.scaling_curves import Scaling
from bench.present import run_tables
from bench.present.charts import CHARTS
from bench.present.plots.plot_plan import Drawing, Plan, Subject
from bench.present.plots.vega_plot import time_and_share

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
    ideal, communication = curve.ideal.tolist(), curve.communication_bound.tolist()
    start, first, last = curve.oversubscribed_from, ideal[0][0], ideal[-1][0]
    values = {
        "xTitle": _CHART.x,
        "height": 210,
        "labels": [],
        "shade": [] if start is None else [{"x": max(start, first / 1.2), "to": last * 1.2}],
        **subject.looks(curve.points["implementation"]),
    }
    time = {
        "title": _CHART.panels["step"],
        "rows": _rows(curve, "step", "_s"),
        "guides": _guides(ideal, "ideal") + _guides(communication, "communication"),
    }
    share = {
        "title": _CHART.panels["efficiency"],
        "rows": _rows(curve, "efficiency", ""),
        "guides": _guides([(devices, 1.0) for devices, _ in ideal], "ideal"),
    }
    remarks = [
        _CHART.remarks[remark]
        for remark, applies in (
            ("communication", len(communication)),
            ("oversubscribed", start is not None),
        )
        if applies
    ]
    spec = time_and_share("curve", values, time, share)
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
