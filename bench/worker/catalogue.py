"""Prints, as JSON, which devices, implementations and workloads there are.

A process of its own: the asking process stays free of jax, and of the device's memory.
"""

from __future__ import annotations

import json
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import cast

import jax

from bench.host import usable_cores
from bench.protocol import Catalogue, CatalogueRequest, ImplementationEntry, WorkloadEntry
from bench.worker.discover import implementation_files, load, workload_files


def catalogue(request: CatalogueRequest) -> Catalogue:
    """Import everything that can be imported, and say why where it cannot."""
    device = jax.devices()[0]
    memory = (device.memory_stats() or {}).get("bytes_limit")
    packages = ("jax", "jaxlib", "flax", "optax", "numpy")
    return Catalogue(
        platform=device.platform,
        device_kind=device.device_kind,
        device_count=1 if device.platform == "cpu" else jax.device_count(),
        device_memory_bytes=memory,
        usable_cores=usable_cores(),
        processes=1,
        versions={"python": platform.python_version()} | {name: version(name) for name in packages},
        implementations=[
            implementation_entry(name, path)
            for name, path in implementation_files(request["implementation_paths"]).items()
        ],
        workloads=[
            workload_entry(name, path)
            for name, path in workload_files(request["workload_paths"]).items()
        ],
    )


def implementation_entry(name: str, path: Path) -> ImplementationEntry:
    """One file's entry."""
    module, error = try_load(path, "build", "why_unsupported")
    return ImplementationEntry(name=name, path=str(path), summary=summary(module), error=error)


def workload_entry(name: str, path: Path) -> WorkloadEntry:
    """One file's entry."""
    module, error = try_load(path, "SIZES", "DEFAULT_SIZE", "problem")
    return WorkloadEntry(
        name=name,
        path=str(path),
        summary=summary(module),
        sizes=list(module.SIZES) if module and not error else [],
        default=module.DEFAULT_SIZE if module and not error else "",
        error=error,
    )


def try_load(path: Path, *required: str) -> tuple[ModuleType | None, str]:
    """The module and an empty string, or what is wrong with it."""
    try:
        module = load(path)
    except Exception as error:  # noqa: BLE001 - a user's file may raise anything
        return None, f"{type(error).__name__}: {error}"
    missing = [name for name in required if name not in vars(module)]
    return module, f"lacks {', '.join(missing)}" if missing else ""


def summary(module: ModuleType | None) -> str:
    """First line of the docstring."""
    lines = ((module.__doc__ if module else None) or "").strip().splitlines()
    return lines[0] if lines else ""


if __name__ == "__main__":
    request = cast("CatalogueRequest", json.load(sys.stdin))
    answer = sys.stdout
    sys.stdout = sys.stderr  # whatever the files print while imported is not the answer
    json.dump(catalogue(request), answer)
