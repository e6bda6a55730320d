"""Time until a page shows anything, and until it is complete, in headless Chromium."""

import importlib.util
import os
import shutil
import statistics
from pathlib import Path

OPENINGS = 5

PAINTED = "() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
"""JavaScript for the milliseconds to the paint, which may come long after the load event; nothing
before it."""

DRAWN = "() => document.body.dataset.drawn === 'all' && performance.now()"
"""JavaScript for the milliseconds until a report has drawn all its charts; false before."""

_PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def chromium() -> str | None:
    """Return the path of the system's Chromium; None if there is none."""
    return next(filter(None, map(shutil.which, _PROGRAMS)), None)


def flags() -> list[str]:
    """Return command line flags for Chromium. As root, it refuses to run with a sandbox."""
    sandbox = [] if os.geteuid() else ["--no-sandbox"]
    return ["--disable-gpu", "--disable-background-networking", "--no-first-run", *sandbox]


def first_paint(page: Path, moment: str = PAINTED) -> float | None:
    """Return seconds from opening to first contentful paint (https://www.w3.org/TR/paint-timing).

    With DRAWN as `moment`, return those until a report is complete. The value is the median of
    several openings; None if the system has no Chromium, or if the package playwright is missing,
    which is part of the extra `selftest`.
    """
    program = chromium()
    if program is None or importlib.util.find_spec("playwright") is None:
        return None
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - may not be installed

    times = []
    with (
        sync_playwright() as driver,
        driver.chromium.launch(executable_path=program, args=flags()) as browser,
    ):
        for _ in range(OPENINGS):
            opened = browser.new_page()
            opened.goto(page.resolve().as_uri())
            seen = opened.wait_for_function(moment, polling=10)
            times.append(float(seen.json_value()) / 1e3)
            opened.close()
    return statistics.median(times)
