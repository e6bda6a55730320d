"""Stands in for `python -m bench.worker.answer.available`.

Implementations and workloads are those of FAKE_ROOT, and those of the checkout that it lacks.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def implementation(name: str, path: str = "") -> dict[str, str]:
    return {"name": name, "path": path, "error": ""}


def workload(name: str, sizes: list[str], path: str = "") -> dict[str, object]:
    return {
        **implementation(name, path),
        "sizes": sizes,
        "default": sizes[-1],
        "scans": name == "gpt2",
    }


def catalogue(
    platform: str = "cpu", devices: int = 1, request: dict | None = None, cores: int = 8
) -> dict:
    request = request or {"implementation_paths": [], "workload_paths": []}
    return {
        "platform": platform,
        "device_kind": platform,
        "device_count": devices,
        "processes": 1,
        "device_memory_bytes": None,
        "usable_cores": cores,
        "optional": {},
        "implementation_paths": request["implementation_paths"],
        "workload_paths": request["workload_paths"],
        "versions": {"python": "3", "jax": "0"},
        "implementations": [
            *(implementation(name) for name in ("jit_spmd", "pmap", "python_loop")),
            *(implementation(Path(path).stem, path) for path in request["implementation_paths"]),
        ],
        "workloads": [
            workload("linear", ["tiny", "base"]),
            workload("mlp", ["tiny", "base"]),
            workload("gpt2", ["tiny", "nano-512", "deep", "124m", "nano"]),
            workload("gpt2_muon", ["tiny", "nano"]),
            workload("moe", ["tiny", "nano"]),
            *(workload(Path(path).stem, ["tiny"], path) for path in request["workload_paths"]),
        ],
    }


if __name__ == "__main__":
    found = catalogue(request=json.load(sys.stdin))
    for folder, entries in (
        ("implementations", found["implementations"]),
        ("bench/contract/workloads", found["workloads"]),
    ):
        for entry in entries:
            name = Path(folder, f"{entry['name']}.py")
            own = Path(os.environ.get("FAKE_ROOT", ""), name)
            entry["path"] = entry["path"] or str(own if own.is_file() else ROOT / name)
    json.dump(found, sys.stdout)
