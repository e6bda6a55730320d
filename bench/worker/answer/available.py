"""Prints as JSON which devices, implementations and workloads there are.

This is a process of its own, so that the calling process needs neither jax nor device memory.
Before it imports a file it prints the file's path, because a file may end the process.
"""

from __future__ import annotations

import contextlib
import json
import platform
import sys
from collections.abc import Callable, Iterable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import TextIO, cast

import jax

from bench.records.host import usable_cores
from bench.records.messages import Catalogue, CatalogueRequest, ImplementationEntry, WorkloadEntry
from bench.records.optional_packages import PACKAGES
from bench.records.printable import readable
from bench.worker import event_stream
from bench.worker.file_loader import implementation_files, load, workload_files
from bench.worker.prove.failures import name_and_text


def catalogue(request: CatalogueRequest, importing: Callable[[Path], None]) -> Catalogue:
    """Import every file, and list each with what it is for or why it cannot be imported.

    Args:
      request: names further files.
      importing: is called with each file before it is imported.
    """
    read = partial(try_load, request, importing)
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
        optional=installed(PACKAGES.values()),
        implementations=[
            implementation_entry(name, path, *read(path, "build", "why_unsupported"))
            for name, path in implementation_files(request["implementation_paths"]).items()
        ],
        workloads=[
            workload_entry(name, path, *read(path, "SIZES", "DEFAULT_SIZE", "problem"))
            for name, path in workload_files(request["workload_paths"]).items()
        ],
    )


def installed(packages: Iterable[str]) -> dict[str, str]:
    """Versions of the packages that are installed; none of them is imported."""
    versions = {}
    for name in packages:
        with contextlib.suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


def try_load(
    request: CatalogueRequest, importing: Callable[[Path], None], path: Path, *required: str
) -> tuple[ModuleType | None, str]:
    """Import a file, unless it ended an earlier process: the module if any, and what is wrong."""
    if str(path) in request["fatal"]:
        return None, request["fatal"][str(path)]
    importing(path)
    try:
        module = load(path)
    except BaseException as error:  # noqa: BLE001 - a user's file may raise anything
        return None, readable(name_and_text(error))
    missing = [name for name in required if name not in vars(module)]
    return module, f"lacks {', '.join(missing)}" if missing else ""


def implementation_entry(
    name: str, path: Path, module: ModuleType | None, error: str
) -> ImplementationEntry:
    """Describe an implementation's file."""
    return ImplementationEntry(name=name, path=str(path), summary=summary(module), error=error)


def workload_entry(name: str, path: Path, module: ModuleType | None, error: str) -> WorkloadEntry:
    """Describe a workload's file."""
    sizes: list[str] = []
    default = ""
    if module is not None and not error:
        try:
            sizes, default = list(module.SIZES), str(module.DEFAULT_SIZE)
        except TypeError as fault:
            error = f"SIZES: {fault}"
    return WorkloadEntry(
        name=name,
        path=str(path),
        summary=summary(module),
        sizes=sizes,
        default=default,
        error=error,
    )


def summary(module: ModuleType | None) -> str:
    """First line of a module's docstring."""
    lines = str((module.__doc__ if module else None) or "").strip().splitlines()
    return lines[0] if lines else ""


def main(stdout: TextIO) -> None:
    """Answer the request on stdin."""
    request = cast("CatalogueRequest", json.load(sys.stdin))
    answer = catalogue(request, lambda path: print(json.dumps(str(path)), file=stdout))
    print(json.dumps(answer), file=stdout)


if __name__ == "__main__":
    event_stream.run(main)
