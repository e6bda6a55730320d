"""`python -m bench` with the fake worker and catalogue beside it, and no report to draw.

It kills itself where FAKE_KILL says: `cells.jsonl 1 0.6` is after 0.6 of what it appends to that
file for the second time.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
from collections import defaultdict
from pathlib import Path
from types import ModuleType

from bench.__main__ import main
from bench.measure import catalogue
from bench.measure.processes import group
from bench.records import store


def build(run: store.Run) -> Path:
    page = run.directory / "report.html"
    page.write_text("a report")
    return page


def append(path: Path, text: bytes, whole=store._append):
    if (path.name, next(appends[path.name])) == (file, int(number)):
        with path.open("ab") as half:
            half.write(text[: int(float(share) * len(text))])
        os.kill(os.getpid(), signal.SIGKILL)
    return whole(path, text)


# Shells start background jobs with it ignored, and tests may run in one.
signal.signal(signal.SIGINT, signal.default_int_handler)
HERE = Path(__file__).parent
catalogue.COMMAND = (sys.executable, str(HERE / "catalogue.py"))
group.COMMAND = (sys.executable, str(HERE / "worker.py"))
file, number, share = os.environ.get("FAKE_KILL", "nothing 0 0").split()
appends = defaultdict(itertools.count)
store._append = append
report = ModuleType("bench.present.report_files")
report.build = build
sys.modules["bench.present.report_files"] = report
main()
