"""Settings of workers for tests: a few short rounds, unless a test says otherwise."""

from __future__ import annotations

from typing import Any

from bench.records.messages import WorkerSettings


def worker_settings(**changed: Any) -> WorkerSettings:
    settings: WorkerSettings = {
        "rounds": 4,
        "seconds": 0.1,
        "inputs": [],
        "ablations": [],
        "phases": {},
        "implementation_paths": [],
        "workload_paths": [],
        "base_files": {},
        "isolated": [],
    }
    return settings | changed
