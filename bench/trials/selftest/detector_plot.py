"""The plot of a self-test: how often each tool is right about equal and different programs."""

from collections.abc import Sequence
from typing import Any

from bench.present.plots.vega_plot import Plot, panel_sizes
from bench.present.plots.vega_plot import draw as draw_chart
from bench.trials.selftest.detector_figures import LOCKSTEP
from bench.trials.selftest.equal_arms import WORKING
from bench.trials.selftest.shares import Rate, Shares

EQUAL = "Equal: called different"


def draw(found: Sequence[Shares], size: str) -> Plot | None:
    """Draw the shares of each tool at one measuring time of two arms; None if there are none.

    One panel shows equal programs, and one each planted slowdown. Points are shares, and lines are
    Wilson's 95 % intervals.
    """
    by_tool = {
        str(each.keys["tool"]): each
        for each in found
        if each.keys["size"] == size and each.keys["slowed"] == WORKING
    }
    if not by_tool:
        return None
    planted = dict.fromkeys(name for each in by_tool.values() for name in each.found)
    rows = [
        _row(tool, panel, rate)
        for tool, each in by_tool.items()
        for panel, rate in (
            (EQUAL, each.alarms),
            *((f"{name}: found", each.found.get(name)) for name in planted),
        )
    ]
    panels = list(dict.fromkeys(row["panel"] for row in rows))
    values = {
        "rows": rows,
        "panels": panels,
        "order": sorted(by_tool, key=lambda tool: (tool != LOCKSTEP, by_tool[tool].alarms.value)),
        **panel_sizes(len(panels), 4, labels=110),
    }
    better = f"{size}; of equal programs, lower is better, and of slower ones, higher"
    return draw_chart("detectors", "detectors", values, "How often each tool is right", better)


def _row(tool: str, panel: str, rate: Rate | None) -> dict[str, Any]:
    known = rate is not None and rate.of > 0
    low, high = rate.interval if rate and known else (None, None)
    shares = {"value": rate.value if rate and known else None, "low": low, "high": high}
    return {"name": tool, "panel": panel, "own": tool == LOCKSTEP, **shares}
