"""The results of a self-test as a page, as Markdown and as one JSON file."""

from dataclasses import asdict
from pathlib import Path

import pandas as pd

from bench.present.columns import Column, Table
from bench.present.rendering import write_pages
from bench.records import files
from bench.records.trial_results import SELFTEST_FIGURES
from bench.trials.selftest import detector_figures, selftest_settings
from bench.trials.selftest.detector_figures import Figures
from bench.trials.selftest.selftest_settings import SAMPLES
from bench.trials.selftest.shares import intervals, verdicts

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
        errors=figures.errors,
        targets=Table("What the project promises, and what was measured", TARGETS, figures.targets),
        steps=[
            verdicts("All steps and loads together", figures.steps, kinds),
            verdicts("By step and load, seven arms", placed,
                     {"program": "Step", "load": "Load", **measured}),
            intervals("Intervals", figures.intervals, {**measured, "arms": "Arms"}),
        ],
    )  # fmt: skip
    return page, figures
