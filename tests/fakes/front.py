"""`python -m bench` with the fake worker and catalogue beside it, and no report to draw.

It kills itself where FAKE_KILL says: `1 0.6` is after 0.6 of the file of the second launch. With
FAKE_INTERRUPT, the report is interrupted.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
from pathlib import Path
from types import ModuleType

from bench.__main__ import main
from bench.measure import catalogue
from bench.measure.processes import group
from bench.records import files, store


def build(run: store.Run, _tables: object) -> Path:
    if "FAKE_INTERRUPT" in os.environ:
        raise KeyboardInterrupt
    page = run.directory / "report.html"
    page.write_text("a report")
    return page


def write(path: Path, text: str | bytes, *, durable: bool = False, whole=files.write):
    if path.parent.name == store.LAUNCHES and next(launches) == int(number):
        with files.replacing(path) as draft:
            draft.write_bytes(text[: int(float(share) * len(text))])
            os.kill(os.getpid(), signal.SIGKILL)
    whole(path, text, durable=durable)


# Shells start background jobs with it ignored, and tests may run in one.
signal.signal(signal.SIGINT, signal.default_int_handler)
HERE = Path(__file__).parent
catalogue.COMMAND = (sys.executable, str(HERE / "catalogue.py"))
catalogue.SUPPORT_COMMAND = (sys.executable, "-c", "")
group.COMMAND = (sys.executable, str(HERE / "worker.py"))
number, share = os.environ.get("FAKE_KILL", "-1 0").split()
launches = itertools.count()
files.write = write
report = ModuleType("bench.present.report_files")
report.build = build
sys.modules["bench.present.report_files"] = report
main()
