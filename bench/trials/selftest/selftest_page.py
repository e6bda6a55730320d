"""The results of a self-test as a page with a plot, as Markdown and as one JSON file."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd

from bench.present.columns import Column, Table
from bench.present.plots.vega_plot import Plot, compose, panel_sizes, spec_of
from bench.present.rendering import write_pages
from bench.records import files, numbers
from bench.records.trial_results import SELFTEST_FIGURES
from bench.trials.selftest import detector_figures, selftest_settings
from bench.trials.selftest.detector_figures import LOCKSTEP, Figures
from bench.trials.selftest.equal_arms import WORKING
from bench.trials.selftest.selftest_settings import SAMPLES, Manifest
from bench.trials.selftest.shares import Rate, Shares, intervals, verdicts

METHOD = {
    "Real steps": """Processes under each load: {processes}. Each times 14 copies of a train step,
        and copies with extra work: matrix products whose number is set by timing them and the step
        in the same process.""",
    "Trials": """Trials are parts of these rounds with two or more copies, each by the product's own
        rule, looks included. Slower arms are copies with their times multiplied (times), which is
        exact, or those with extra work (work). Longer trials take rounds of several processes,
        each under another load. Parts overlap, and share what is peculiar to their process, so the
        intervals also span those of a jackknife that leaves out one process at a time.""",
    "Peers": """Peers measure one step after the other, as their manuals say, for the same measuring
        time. Start-up does not count.""",
}
"""Description of a self-test's method; placeholders are names of settings."""

TARGETS = (
    Column("promise", "Promise"),
    Column("met", "Met", value=lambda target: "met" if target.met else "missed"),
    Column("measured", "Measured"),
)


def build(folder: Path) -> tuple[Path, Figures]:
    """Write `figures.json`, the plot, `report.md` and `report.html` from a self-test's stored rows.

    Return the path of the page and the figures on it. The errors are those of
    `selftest_settings.read`.
    """
    manifest, rows = selftest_settings.read(folder)
    settings = manifest["settings"]
    # Earlier self-tests also timed a program that spins, for a fifth of the time.
    seconds = float(settings["seconds"]) * (5 if "trials" in settings else 1)
    figures = detector_figures.compute(rows, pd.read_parquet(folder / SAMPLES), seconds)
    size = f"{seconds:g} s per pair"
    plot = draw(figures.steps, size)
    files.write_sealed(folder / SELFTEST_FIGURES, asdict(figures))
    if plot is not None:
        plot.write(folder)
    git = manifest["git"]
    measured = {"size": "Measured"}
    kinds = {"tool": "Tool", **measured, "arms": "Arms", "slowed": "Slowed by"}
    placed = [each for each in figures.places if each.keys["size"] == size]
    page = write_pages(
        folder,
        "selftest",
        Path(__file__).parent,
        file="report",
        title=folder.name,
        manifest=manifest,
        started=f"{datetime.fromisoformat(manifest['started_at']):%Y-%m-%d %H:%M} UTC",
        commit=f"{git['commit'] or 'unknown'}{' with uncommitted changes' * git['dirty']}",
        targets=Table("What the project promises, and what was measured", TARGETS, figures.targets),
        svg=plot.svg if plot else None,
        steps=[
            verdicts("All steps and loads together", figures.steps, kinds),
            verdicts("By step and load, seven arms", placed,
                     {"program": "Step", "load": "Load", **measured}),
            intervals("Intervals", figures.intervals, {**measured, "arms": "Arms"}),
        ],
        method=_method(manifest, figures),
    )  # fmt: skip
    return page, figures


def _method(manifest: Manifest, figures: Figures) -> dict[str, str]:
    """Return the method of the self-test, by title."""
    texts = {title: text.format_map(manifest["settings"]) for title, text in METHOD.items()}
    for name, reason in manifest["unavailable"].items():
        texts[name] = f"Not measured: {reason}."
    for name, count in figures.errors.items():
        texts[name] = f"Failed in {numbers.count(count, 'trial')}, which are left out."
    return texts


EQUAL = "Equal: called different"


def draw(found: Sequence[Shares], size: str) -> Plot | None:
    """Draw the shares of each tool at one measuring time of two arms; None if there are none.

    One panel shows equal programs, and one each planted slowdown. Points are shares, and lines are
    their 95 % intervals.
    """
    by_tool = {
        str(each.keys["tool"]): each
        for each in found
        if each.keys["size"] == size and each.keys["slowed"] == WORKING
    }
    if not by_tool:
        return None
    planted = dict.fromkeys(name for each in by_tool.values() for name in each.found)
    panels = [EQUAL, *(f"{name}: found" for name in planted)]
    rows = [
        _row(tool, panel, rate)
        for tool, each in by_tool.items()
        for panel, rate in zip(panels, [each.alarms, *map(each.found.get, planted)], strict=True)
    ]
    values = {
        "rows": rows,
        "panels": panels,
        "order": sorted(by_tool, key=lambda tool: (tool != LOCKSTEP, by_tool[tool].alarms.value)),
        **panel_sizes(len(panels), 4, labels=110),
    }
    better = f"{size}; of equal programs, lower is better, and of slower ones, higher"
    spec = spec_of("detectors", values)
    return compose("detectors", spec, "How often each tool is right", better)


def _row(tool: str, panel: str, rate: Rate | None) -> dict[str, Any]:
    value, low, high = (rate.value, *rate.interval) if rate and rate.of else (None,) * 3
    own = {"name": tool, "panel": panel, "own": tool == LOCKSTEP}
    return {**own, "value": value, "low": low, "high": high}
