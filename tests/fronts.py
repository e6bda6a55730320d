"""Start `python -m bench` with a worker that behaves as told, and keep its output."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import runpy
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from bench.records import store
from bench.records.paths import ROOT

FORKS = multiprocessing.get_context("forkserver")
"""Most fronts are copies of a process that has loaded what takes each of them two seconds."""
FORKS.set_forkserver_preload([
    *("bench.__main__", "bench.analyse.ratio_intervals", "bench.measure.cluster.leader"),
    *("bench.measure.run_setup", "bench.present.progress", "pyarrow", "pytest_benchmark.session"),
])  # fmt: skip
FRONT = Path(__file__).parent / "fakes" / "front.py"
SMALL = ("--workloads", "mlp", "--meshes", "data=1 data=2", "--rounds", "3")


@dataclass
class Done:
    code: int
    out: str
    err: str


class Front:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.calls = itertools.count()
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "COLUMNS": "80",
            "FAKE_WORKER": json.dumps({"log": str(folder / "log")}),
        }

    def told(self, **behaviour) -> Front:
        told = {"log": str(self.folder / "log"), "pids": str(self.folder / "pids"), **behaviour}
        self.environment["FAKE_WORKER"] = json.dumps(told)
        return self

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, str(FRONT), *words],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *words: str) -> Done:
        number = next(self.calls)
        out, err = (self.folder / f"{number}.{stream}" for stream in ("out", "err"))
        arguments = (words, self.folder, self.environment, out, err)
        process = FORKS.Process(target=_front, args=arguments)
        process.start()
        process.join(timeout=60)
        if process.exitcode is None:
            process.kill()
        done = Done(process.exitcode, out.read_text(), err.read_text())
        assert done.code is not None, done
        assert "Traceback" not in done.out + done.err, done
        return done

    def wait_for_hang(self, process: subprocess.Popen[str]) -> Path:
        """Wait until a worker hangs, and return the file with its processes."""
        pids, until = self.folder / "pids", time.monotonic() + 60
        while not pids.exists():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < until, "no worker hangs"
            time.sleep(0.02)
        return pids

    @property
    def jobs(self) -> list[dict]:
        log = self.folder / "log"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    def stored(self, run: str) -> store.Run:
        return store.load(self.folder / "reports" / run)

    def benchmarks(self, run: str) -> dict[str, dict]:
        page = json.loads((self.folder / "reports" / run / "benchmark.json").read_text())
        return {row["name"]: row for row in page["benchmarks"]}


def _front(words, folder, environment, out, err):
    for stream, path in enumerate((os.devnull, out, err)):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), stream)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [str(FRONT), *words]
    runpy.run_path(str(FRONT), run_name="__main__")
