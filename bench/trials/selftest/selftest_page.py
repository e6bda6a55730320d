"""The results of a self-test as a page, as Markdown and as one JSON file."""

from dataclasses import asdict
from datetime import datetime
from pathlib import Path

import pandas as pd

from bench.present.columns import Column, Table
from bench.present.rendering import write_pages
from bench.records import files, numbers
from bench.records.trial_results import SELFTEST_FIGURES
from bench.trials.selftest import detector_figures, selftest_settings
from bench.trials.selftest.detector_figures import Figures
from bench.trials.selftest.selftest_settings import SAMPLES, Manifest
from bench.trials.selftest.shares import intervals, verdicts

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
    """Write `figures.json`, `report.md` and `report.html` from a self-test's stored rows.

    Return the path of the page and the figures on it. The errors are those of
    `selftest_settings.read`.
    """
    manifest, rows = selftest_settings.read(folder)
    settings = manifest["settings"]
    # Earlier self-tests also timed a program that spins, for a fifth of the time.
    seconds = float(settings["seconds"]) * (5 if "trials" in settings else 1)
    figures = detector_figures.compute(rows, pd.read_parquet(folder / SAMPLES), seconds)
    files.write_sealed(folder / SELFTEST_FIGURES, asdict(figures))
    git = manifest["git"]
    measured = {"size": "Measured"}
    kinds = {"tool": "Tool", **measured, "arms": "Arms", "slowed": "Slowed by"}
    placed = [each for each in figures.places if each.keys["size"] == f"{seconds:g} s per pair"]
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
