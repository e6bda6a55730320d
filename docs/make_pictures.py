"""Make the pictures of README.md from a published run: `nox -s pictures`."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.records.paths import ROOT
from bench.trials.selftest.first_paint import chromium, flags

RUN = ROOT / "reports" / "gpt2-nano-and-mlp-base_2-core-cpu_2026-11-22"
PLOT = "strong-gpt2-nano-fp32-dataN-b16.png"
IMAGES = ROOT / "docs" / "images"
SIZE = "1280,900"
"""Pixels of the report's first screen: width and height."""


def main() -> None:
    """Screenshot the first screen of the report, and copy its scaling plot.

    Raises:
      SystemExit: no Chromium is on the PATH, or it took no screenshot.
    """
    browser = chromium()
    if browser is None:
        sys.exit("Chromium is needed; on Debian: apt-get install chromium")
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as profile:
        command = [
            *(browser, *flags(), "--headless", "--hide-scrollbars"),
            *(f"--user-data-dir={profile}", f"--window-size={SIZE}", "--virtual-time-budget=9000"),
            *(f"--screenshot={IMAGES / 'report.png'}", (RUN / "report.html").as_uri()),
        ]
        subprocess.run(command, check=True, capture_output=True, timeout=120)  # noqa: S603
    shutil.copyfile(RUN / "plots" / PLOT, IMAGES / "scaling.png")


if __name__ == "__main__":
    main()
