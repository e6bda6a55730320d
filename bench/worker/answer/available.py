"""Prints the available devices, implementations and workloads as JSON.

Before it imports a file it prints the file's path, because a file may end the process.
"""

import json
import platform
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO, cast

import jax

from bench.records import messages
from bench.records.host import installed, usable_cores
from bench.records.printable import readable
from bench.worker import event_stream
from bench.worker.file_loader import implementation_files, load, workload_files
from bench.worker.prove.failures import WrongStepError, approximation, name_and_text
from bench.worker.read.device_memory import memory_count

_encode = json.JSONEncoder().encode
"""Bound before any file is imported, because a file could replace the functions of `json`."""


def catalogue(
    request: messages.CatalogueRequest, importing: Callable[[Path], None]
) -> messages.Catalogue:
    """Import every file, calling `importing` with its path before; list each with its error."""
    device = jax.devices()[0]
    packages = ("jax", "jaxlib", "flax", "optax", "numpy")
    paths, more = request["implementation_paths"], request["workload_paths"]
    listed = partial(entries, request["fatal"], importing)
    steps = listed(implementation_files(paths), ("build", "why_unsupported"))
    workloads = listed(workload_files(more), ("SIZES", "DEFAULT_SIZE", "problem"))
    return messages.Catalogue(
        platform=device.platform,
        device_kind=device.device_kind,
        device_count=1 if device.platform == "cpu" else jax.device_count(),
        device_memory_bytes=memory_count(device, "bytes_limit"),
        usable_cores=usable_cores(),
        processes=1,
        versions={"python": platform.python_version()} | installed(packages),
        optional=installed(messages.PACKAGES.values()),
        implementations=[implementation_entry(*found) for found in steps],
        workloads=[workload_entry(*found) for found in workloads],
        implementation_paths=paths,
        workload_paths=more,
    )


def entries(
    fatal: Mapping[str, str],
    importing: Callable[[Path], None],
    files: Mapping[str, Path],
    required: Sequence[str],
) -> Iterator[tuple[messages.FileEntry, ModuleType | None]]:
    """Import files, except those that ended an earlier process; yield entries and modules."""
    for name, path in files.items():
        module, error = None, fatal.get(str(path), "")
        if not error:
            importing(path)
            try:
                module = load(path)
                missing = [one for one in required if not hasattr(module, one)]
                error = f"lacks {', '.join(missing)}" if missing else ""
            except BaseException as raised:  # noqa: BLE001 - a user's file may raise anything
                error = readable(name_and_text(raised))
                beside = path.parent / f"{getattr(raised, 'name', '')}.py"
                if isinstance(raised, ModuleNotFoundError) and beside.is_file():
                    error += f"; to import {beside.name}, add its folder to PYTHONPATH"
        yield messages.FileEntry(name=name, path=str(path), error=error), module


def implementation_entry(entry: messages.FileEntry, module: Any) -> messages.ImplementationEntry:
    """Add the versions of a foreign file's packages, or how an approximate step differs."""
    found = messages.ImplementationEntry(**entry)
    try:
        if not entry["error"] and (why := approximation(module)):
            found["approximate"] = why
    except WrongStepError as fault:
        found["error"] = str(fault)
    if (traits := getattr(module, "FOREIGN", None)) is not None:
        packages = traits.get("packages", [])
        found["foreign"] = dict.fromkeys(packages, "") | installed(packages)
    return found


def workload_entry(entry: messages.FileEntry, module: Any) -> messages.WorkloadEntry:
    """Add a workload's sizes."""
    found = messages.WorkloadEntry(**entry, sizes=[], default="", scans=False)
    if not entry["error"] and not (isinstance(module.SIZES, Mapping) and module.SIZES):
        found["error"] = "SIZES is not a non-empty dict of functions that return a configuration"
    if found["error"]:
        return found
    found["sizes"], found["default"] = [*map(str, module.SIZES)], str(module.DEFAULT_SIZE)
    if strange := [size for size in module.SIZES if not re.fullmatch(r"[\w.-]+", str(size))]:
        found["error"] = f"SIZES: {strange[0]!r} is not made of letters, digits, _, - and ."
    elif found["default"] not in found["sizes"]:
        sizes = ", ".join(found["sizes"])
        found["error"] = f"DEFAULT_SIZE is {found['default']!r}, which is none of {sizes}"
    elif not callable(module.problem) or not all(isinstance(n, str) for n in module.SIZES):
        found["error"] = "problem must be a function, and the names in SIZES must be text"
    else:
        found["scans"] = "scan_layers" in signature(module.problem).parameters
    return found


def main(stdout: TextIO) -> None:
    """Answer the request on stdin."""
    request = cast("messages.CatalogueRequest", json.load(sys.stdin))
    answer = catalogue(request, lambda path: print(_encode(str(path)), file=stdout))
    print(_encode(answer), file=stdout)


if __name__ == "__main__":
    event_stream.run(main)
