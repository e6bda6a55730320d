"""Descriptions of the host and the code, without host names, users or paths; limits of clocks."""

import contextlib
import os
import platform
import re
import subprocess
from collections.abc import Callable, Iterable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from bench.records.git_files import RevisionError, git
from bench.records.paths import CHECKOUT, ROOT

CPUS = Path("/sys/devices/system/cpu")
_USUAL_CACHE = 32 << 20


def shown(path: str | Path) -> str:
    """Read a file of the system; empty if there is none, as below /proc once its process ended."""
    with contextlib.suppress(OSError):
        return Path(path).read_text("utf-8", "replace")
    return ""


def cores() -> set[int]:
    """Return the numbers of the cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def usable_cores() -> int:
    """Count the cores that this process may run on."""
    return len(cores())


def cache_bytes(threads: int, cpus: Path = CPUS) -> int:
    """Add up the last-level caches that `threads` threads of this process can use together.

    Returns 32 MiB where the system does not show its caches.
    """
    sizes: dict[str, int] = {}
    for core in cores():
        with contextlib.suppress(OSError, ValueError):
            caches = (cpus / f"cpu{core}" / "cache").glob("index*")
            last = max(caches, key=lambda cache: int((cache / "level").read_text()))
            # The size reads `32768K`; cores that share a cache have the same `shared_cpu_list`.
            size = int((last / "size").read_text().strip().removesuffix("K")) << 10
            sizes[(last / "shared_cpu_list").read_text()] = size
    return sum(sorted(sizes.values(), reverse=True)[:threads]) or _USUAL_CACHE


def host_id() -> str:
    """Identify the running kernel, and so a set of cores and counters. The id is never stored."""
    return shown("/proc/sys/kernel/random/boot_id").strip() or platform.node()


def _printed(*command: str) -> str:
    done = subprocess.run(  # noqa: S603 - the commands of _PROCESSOR
        command, env=os.environ | {"LC_ALL": "C"}, capture_output=True, text=True, check=False
    )
    return done.stdout


_PROCESSOR: tuple[Callable[[], str], ...] = (
    Path("/proc/cpuinfo").read_text,
    partial(_printed, "lscpu"),
    partial(_printed, "sysctl", "machdep.cpu.brand_string"),
)
"""Texts that name the processor: on Linux, on Linux on ARM, and on macOS."""

_NAME = re.compile(r"(?im)^ *(?:model name|machdep\.cpu\.brand_string)\s*:[ \t]*(\S.*)")


def processor_name() -> str:
    """Return the processor's name; its architecture where the system does not tell the name."""
    for read in _PROCESSOR:
        with contextlib.suppress(OSError):
            if found := _NAME.search(read()):
                return found[1].strip()
    return platform.processor() or platform.machine()


def describe_host() -> dict[str, Any]:
    """Describe the operating system, processor, cores, memory and load, averaged over a minute."""
    return {
        "os": f"{platform.system()} {platform.release()}",
        "cpu": processor_name(),
        "physical_cores": psutil.cpu_count(logical=False),
        "usable_cores": usable_cores(),
        "memory_bytes": psutil.virtual_memory().total,
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0,
    }


def installed(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of those packages that are installed, without importing them."""
    versions = {}
    for name in packages:
        with contextlib.suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


def describe_code() -> dict[str, Any]:
    """Return the checkout's commit (None outside of git) and whether the work tree is dirty."""
    if not CHECKOUT:  # a repository around it is the user's own
        return {"commit": None, "dirty": False}
    commit, changes = None, ""
    with contextlib.suppress(RevisionError):
        commit = git(ROOT, "rev-parse", "HEAD").strip()
    with contextlib.suppress(RevisionError):
        changes = git(ROOT, "status", "--porcelain")
    return {"commit": commit, "dirty": bool(changes)}
