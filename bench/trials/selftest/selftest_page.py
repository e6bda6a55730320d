"""The figures of a self-test as a page, as Markdown and as one JSON file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from functools import partial
from pathlib import Path

from markupsafe import Markup

from bench.present.columns import Column, Table
from bench.present.rendering import environment
from bench.records import files, numbers
from bench.records.trial_results import SELFTEST_FIGURES
from bench.trials.selftest import detector_figures, detector_plot, trial_rows
from bench.trials.selftest.detector_figures import Coverage, Detector, Figures, Rate
from bench.trials.selftest.trial_rows import Manifest
from bench.trials.selftest.trial_verdicts import ALL

METHOD = {
    "Programs": """All tools time the same machine code, which spins a given number of times. A
        planted slowdown is a larger number and nothing else. The test itself generates the
        background load.""",
    "Trials": """Under each load, {processes} processes ran {trials} trials each. The trials of one
        process share its memory layout, so the intervals, which assume independent trials, are
        somewhat too narrow. A longer trial combines the rounds of several processes.""",
    "Verdicts": """Five programs take turns in a trial, and each gets half of a pair's time. The
        verdicts are those that the engine would give two implementations, including the looks
        after 16, 32 and 64 rounds. In a block of more implementations, each comparison must meet
        a stricter level.""",
    "Peers": """Peers measure one program after the other, as their manuals say, for the same
        measuring time. Start-up does not count.""",
}
"""How a self-test is done; placeholders are names of settings."""


def build(folder: Path) -> tuple[Path, Figures]:
    """Write `figures.json`, the plot, `report.md` and `report.html` from a self-test's stored rows.

    Returns:
      The path of the page, and the figures on it.

    Raises:
      DamagedError: a stored file has changed since it was written.
      FileNotFoundError: the folder holds no self-test.
    """
    manifest, rows = trial_rows.read(folder)
    seconds = float(manifest["settings"]["seconds"])
    figures = detector_figures.compute(rows, seconds)
    planted = list(dict.fromkeys(name for d in figures.detectors for name in d.found))
    plot = detector_plot.draw(figures.detectors, seconds, planted)
    files.write(folder / SELFTEST_FIGURES, json.dumps(asdict(figures), indent=2) + "\n")
    if plot is not None:
        plot.write(folder)
    label = "How often each tool is right; the table below holds the numbers"
    git = manifest["git"]
    content = {
        "title": folder.name,
        "manifest": manifest,
        "started": f"{datetime.fromisoformat(manifest['started_at']):%Y-%m-%d %H:%M} UTC",
        "commit": f"{git['commit'] or 'unknown'}{' with uncommitted changes' * git['dirty']}",
        "targets": figures.targets,
        "svg": Markup(plot.inline(label)) if plot else None,  # noqa: S704 (escapes itself)
        "all_loads": _detector_table(
            "All loads together",
            [d for d in figures.detectors if d.pattern == ALL],
            planted,
        ),
        "by_load": _detector_table(
            "By load", [d for d in figures.detectors if d.pattern != ALL], planted
        ),
        "coverage": _coverage_table(figures.coverages),
        "method": _method(manifest, figures),
    }
    for name, markdown in (("md", True), ("html", False)):
        template = environment(Path(__file__).parent, markdown=markdown)
        text = template.get_template(f"selftest.{name}.j2").render(content)
        files.write(folder / f"report.{name}", text)
    return folder / "report.html", figures


def _rate(share: Rate | None) -> str | None:
    """`1.4 % (0.6 to 3.5)`; None without trials."""
    if share is None or not share.of:
        return None
    low, high = share.interval
    return f"{100 * share.value:.1f} % ({100 * low:.1f} to {100 * high:.1f})"


def _detected(slowdown: str, detector: Detector) -> str | None:
    return _rate(detector.found.get(slowdown))


def _detector_table(title: str, detectors: Sequence[Detector], planted: Sequence[str]) -> Table:
    columns = [
        Column("tool", "Tool", detail=lambda d: "" if d.pattern == ALL else f"{d.pattern} load"),
        Column("seconds", "Seconds a pair"),
        Column("alarms", "Identical, called different", value=lambda d: _rate(d.alarms)),
        *(Column(name, f"{name}, detected", value=partial(_detected, name)) for name in planted),
        Column("wrong", "Wrong verdicts"),
        Column("used_s", "Seconds used", value=lambda d: f"{d.used_s:.2f}"),
    ]
    facts = ("Shares of trials with Wilson's 95 % interval. Each tool decides by its own rule.",)
    return Table(title, columns, detectors, facts)


def _coverage_table(coverages: Sequence[Coverage]) -> Table:
    columns = [
        Column("pattern", "Load"),
        Column("launches", "Processes"),
        Column("reported", "As reported", value=lambda c: _rate(c.reported)),
        Column("whole", "From all rounds", value=lambda c: _rate(c.whole)),
        Column("width", "Median half-width", value=lambda c: f"{100 * c.width:.2f} %"),
        Column("alike", "Identical processes", value=lambda c: _rate(c.alike)),
    ]
    facts = (
        "How often the 95 % interval of two identical programs holds their true ratio, 1.",
        "The reported interval ends with the measurement, which stops at a verdict.",
        "Processes that run a model differ slightly in speed, and the interval allows for it.",
        "The planted program's do not, so all columns but the last add such a difference.",
    )
    return Table("Coverage", columns, coverages, facts)


def _method(manifest: Manifest, figures: Figures) -> dict[str, str]:
    """How the self-test was done, by title."""
    texts = {title: text.format_map(manifest["settings"]) for title, text in METHOD.items()}
    for name, reason in manifest["unavailable"].items():
        texts[name] = f"Not measured: {reason}."
    for name, count in figures.errors.items():
        texts[name] = f"Failed in {numbers.count(count, 'trial')}, which are left out."
    return texts
