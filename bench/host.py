"""The host and the code, as a manifest describes them. No names of hosts or people, no paths."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import cpuinfo
import psutil

from bench.environment import ROOT


def usable_cores() -> int:
    """Cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def host_id() -> str:
    """Tells one running kernel from another, whose cores and counters are others. Never stored."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return boot.read_text(encoding="ascii").strip() if boot.exists() else platform.node()


def load_average() -> float:
    """Load of the host over the last minute; 0 where the system keeps none."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def describe_host() -> dict[str, Any]:
    """Operating system, processor, cores, memory and load."""
    cpu = cpuinfo.get_cpu_info()
    return {
        "os": f"{platform.system()} {platform.release()}",
        "cpu": cpu.get("brand_raw") or platform.machine(),
        "physical_cores": psutil.cpu_count(logical=False),
        "usable_cores": usable_cores(),
        "memory_bytes": psutil.virtual_memory().total,
        "load": load_average(),
    }


def describe_code() -> dict[str, Any]:
    """Commit of the checkout, and whether files differ from it; None outside of git."""
    commit = _git("rev-parse", "HEAD")
    changes = _git("status", "--porcelain")
    return {"commit": commit or None, "dirty": bool(changes)}


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603
            ["git", "-C", str(ROOT), *arguments],  # noqa: S607 (the git on the path is wanted)
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
