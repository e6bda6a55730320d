"""Make what README.md shows of a published run, its pictures and output: `nox -s pictures`."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console

from bench.present.closing_summary import print_answers
from bench.records import store
from bench.records.paths import ROOT
from bench.trials.selftest.first_paint import chromium, flags

RUN = ROOT / "reports" / "gpt2-nano-and-mlp-base_2-core-cpu_2026-11-27"
PLOT = "strong-gpt2-nano-fp32-dataN-b16.png"
IMAGES = ROOT / "docs" / "images"
SIZE = "1280,900"
"""Pixels of the report's first screen: width and height."""
COLUMNS = 80
"""Width of the terminal in README.md."""


def main() -> None:
    """Screenshot the report's first screen, copy its scaling plot, and quote the terminal.

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
    page = ROOT / "README.md"
    page.write_text(quoting(page.read_text(encoding="utf-8"), answers()), encoding="utf-8")


def answers() -> str:
    """Return what the published run says on a terminal."""
    console = Console(width=COLUMNS, color_system=None)
    with console.capture() as printed:
        print_answers(console, store.load(RUN))
    return "\n".join(map(str.rstrip, printed.get().splitlines()))


def quoting(page: str, text: str) -> str:
    """Return the page with this text as its block of output."""
    return re.sub(r"(?s)(```text\n).*?(```)", lambda found: f"{found[1]}{text}\n{found[2]}", page)


if __name__ == "__main__":
    main()
