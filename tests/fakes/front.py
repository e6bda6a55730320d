"""`python -m bench` with the fake worker and catalogue beside it, and no report to draw."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import ModuleType

import bench.catalogue
import bench.processes
from bench.__main__ import app


def build(directory: Path) -> Path:
    page = directory / "report.html"
    page.write_text("a report")
    return page


# Shells start background jobs with it ignored, and tests may run in one.
signal.signal(signal.SIGINT, signal.default_int_handler)
HERE = Path(__file__).parent
bench.catalogue.COMMAND = (sys.executable, str(HERE / "catalogue.py"))
bench.processes.COMMAND = (sys.executable, str(HERE / "worker.py"))
report = ModuleType("bench.report")
report.build = build
# Its tables are real: the closing lines are made from them. Only drawing is left out.
report.__path__ = [str(HERE.parents[1] / "bench" / "report")]
sys.modules["bench.report"] = report
app()
