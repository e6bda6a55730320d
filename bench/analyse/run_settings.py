"""Settings of two runs, and their differences."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from bench.records import numbers
from bench.records.rows import Manifest
from bench.records.store import Run

Kind = Literal["machine", "versions", "environment", "code", "sources", "options"]

OPTIONS = {
    "baseline": "Baseline",
    "launches": "Launches",
    "rounds": "Rounds",
    "seconds": "Seconds per launch",
    "margin": "Margin",
    "target_ci": "Target interval",
    "budget": "Budget in seconds",
    "inputs": "Input arms",
    "ablations": "Ablated parts",
    "isolated": "Isolated",
    "checkpoints": "Checkpoints",
    "profile_steps": "Profiled steps",
    "train_steps": "Trained steps",
}
"""Resolved options that affect how a cell is measured or judged. Workloads, meshes, batches,
precisions and implementations are part of a cell's name instead."""

SHARE = 0.01
"""Relative difference of memory sizes that is ignored: a few pages, which vary by boot."""

UNKNOWN = "unknown"
NOT_SET = "not set"
NOT_USED = "not used"


@dataclass(frozen=True)
class Difference:
    """One property that differs between two runs."""

    kind: Kind
    name: str
    a: str
    b: str


def differences(a: Manifest, b: Manifest) -> list[Difference]:
    """Return the differences between two runs, machines first."""
    return [
        *_differing("machine", _machine(a), _machine(b), UNKNOWN),
        *_memory(a, b),
        *_differing("versions", a["versions"], b["versions"], UNKNOWN),
        *_differing("environment", a["environment"], b["environment"], NOT_SET),
        *_differing("code", _code(a), _code(b), UNKNOWN),
        *_differing("options", _options(a), _options(b), NOT_SET),
    ]


def contents(a: Run, b: Run) -> dict[str, list[Difference]]:
    """Return the files that differ, of the implementations and workloads that both runs have.

    They are grouped by `implementation pmap` or `workload mlp`: its own file under that name, and
    files that it imports under their paths.
    """
    files_a, files_b = _files(a), _files(b)
    changed = {
        name: [
            replace(each, name=name) if each.name == f"{name.partition(' ')[2]}.py" else each
            for each in _differing("sources", files_a[name], files_b[name], NOT_USED)
        ]
        for name in files_a
        if name in files_b
    }
    return {name: each for name, each in changed.items() if each}


def _files(run: Run) -> dict[str, dict[str, str]]:
    """Return file hashes by the implementation or workload that the files belong to."""
    rows: Sequence[Mapping[str, Any]] = run.last_cell_rows
    return {
        f"{part} {row[part]}": hashes for row in rows for part, hashes in row["sources"].items()
    }


def _differing(
    kind: Kind, a: Mapping[str, Any], b: Mapping[str, Any], absent: str
) -> list[Difference]:
    both = [Difference(kind, k, str(a.get(k, absent)), str(b.get(k, absent))) for k in {**a, **b}]
    return [each for each in both if each.a != each.b]


def _memory(a: Manifest, b: Manifest) -> list[Difference]:
    sizes = {
        "Device memory": (a["device_memory_bytes"], b["device_memory_bytes"]),
        "Host memory": (a["host"].get("memory_bytes"), b["host"].get("memory_bytes")),
    }
    return [
        Difference("machine", name, *(numbers.bytes_(size) if size else UNKNOWN for size in both))
        for name, both in sizes.items()
        if not math.isclose(*(size or 0 for size in both), rel_tol=SHARE)
    ]


def _machine(manifest: Manifest) -> dict[str, Any]:
    os = manifest["host"].get("os")
    return hardware(manifest) | ({} if os is None else {"Operating system": os})


def hardware(manifest: Manifest) -> dict[str, Any]:
    """Return what identifies a run's hardware, as far as it is known, by name."""
    host = manifest["host"]
    known = {
        "Platform": manifest["platform"],
        "Device": manifest["device_kind"],
        "Devices": manifest["device_count"],
        "Processor": host.get("cpu"),
        "Physical cores": host.get("physical_cores"),
        "Usable cores": host.get("usable_cores"),
    }
    return {name: value for name, value in known.items() if value is not None}


def _code(manifest: Manifest) -> dict[str, str]:
    git = manifest["git"]
    changes = " with uncommitted changes" if git.get("dirty") else ""
    return {"Commit": f"{git.get('commit') or UNKNOWN}{changes}"}


def _options(manifest: Manifest) -> dict[str, Any]:
    shares = {"margin", "target_ci"}
    return {
        title: numbers.percent(float(value)) if key in shares else _listed(value)
        for key, title in OPTIONS.items()
        if (value := manifest["config"].get(key)) is not None and (value or key in shares)
    }


def _listed(value: Any) -> Any:
    return ", ".join(value) if isinstance(value, list) else value
