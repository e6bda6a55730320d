"""What two runs were measured on, and how: everything in it that differs. Imports no jax."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, cast

from bench.records import numbers

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd

    from bench.records.rows import Manifest
    from bench.records.store import Run

Kind = Literal["machine", "versions", "environment", "code", "sources", "options"]

OPTIONS = {
    "baseline": "Baseline",
    "launches": "Launches",
    "rounds": "Rounds",
    "seconds": "Seconds a launch",
    "margin": "Margin",
    "target_ci": "Target interval",
    "budget": "Budget in seconds",
}
"""Those of the resolved options that change how a cell is measured or judged. What is measured
(workloads, meshes, batches, precisions, implementations) is in the name of every cell."""

SHARE = 0.01
"""Memories that differ by no more are the same."""

UNKNOWN = "unknown"
NOT_SET = "not set"
NOT_THERE = "not used"


@dataclass(frozen=True)
class Difference:
    """One thing that was not the same in both runs."""

    kind: Kind
    name: str
    a: str
    b: str


def differences(a: Manifest, b: Manifest) -> list[Difference]:
    """What differs between two runs, machines first."""
    return [
        *_differing("machine", _machine(a), _machine(b), UNKNOWN),
        *_memory(a, b),
        *_differing("versions", a["versions"], b["versions"], UNKNOWN),
        *_differing("environment", a["environment"], b["environment"], NOT_SET),
        *_differing("code", _code(a), _code(b), UNKNOWN),
        *_differing("options", _options(a), _options(b), NOT_SET),
    ]


def contents(a: Run, b: Run) -> dict[str, list[Difference]]:
    """Files that differ, of the implementations and workloads that both runs have.

    Returns:
      By `implementation pmap` or `workload mlp`, those of which any file differs: their own under
      that name, and what they import under its path.
    """
    files_a, files_b = _files(a.cells), _files(b.cells)
    found = {
        name: [
            replace(difference, name=name if difference.name == f"{own}.py" else difference.name)
            for difference in _differing("sources", files_a[name], files_b[name], NOT_THERE)
        ]
        for name in files_a
        if name in files_b
        for own in [name.partition(" ")[2]]
    }
    return {name: differ for name, differ in found.items() if differ}


def _files(cells: pd.DataFrame) -> dict[str, dict[str, str]]:
    """Hashes of files by what they are of."""
    return {
        f"{part} {row[part]}": hashes
        for row in cast("list[dict[str, Any]]", cells.to_dict("records"))
        for part, hashes in row["sources"].items()
    }


def _differing(
    kind: Kind, a: Mapping[str, str], b: Mapping[str, str], absent: str
) -> list[Difference]:
    found = []
    for name in dict.fromkeys([*a, *b]):
        values = str(a.get(name, absent)), str(b.get(name, absent))
        if values[0] != values[1]:
            found.append(Difference(kind, name, *values))
    return found


def _memory(a: Manifest, b: Manifest) -> list[Difference]:
    """Differences of memory. A few pages more or less, as from one start to the next, are none."""
    sizes = {
        "Device memory": (a["device_memory_bytes"], b["device_memory_bytes"]),
        "Host memory": (a["host"].get("memory_bytes"), b["host"].get("memory_bytes")),
    }
    return [
        Difference("machine", name, *(numbers.bytes_(size) if size else UNKNOWN for size in both))
        for name, both in sizes.items()
        if not math.isclose(*(size or 0 for size in both), rel_tol=SHARE)
    ]


def _machine(manifest: Manifest) -> dict[str, str]:
    host = manifest["host"]
    known: dict[str, Any] = {
        "Platform": manifest["platform"],
        "Device": manifest["device_kind"],
        "Devices": manifest["device_count"],
        "Processor": host.get("cpu"),
        "Physical cores": host.get("physical_cores"),
        "Usable cores": host.get("usable_cores"),
        "Operating system": host.get("os"),
    }
    return {name: str(value) for name, value in known.items() if value is not None}


def _code(manifest: Manifest) -> dict[str, str]:
    git = manifest["git"]
    commit = git.get("commit") or UNKNOWN
    return {"Commit": f"{commit}{' with uncommitted changes' if git.get('dirty') else ''}"}


def _options(manifest: Manifest) -> dict[str, str]:
    config = manifest["config"]
    shares = {"margin", "target_ci"}
    return {
        title: numbers.percent(float(config[key])) if key in shares else str(config[key])
        for key, title in OPTIONS.items()
        if config.get(key) is not None
    }
