"""Folders that git tracks."""

from __future__ import annotations

import subprocess
from pathlib import Path


def tracked_folders(parent: Path) -> set[str] | None:
    """List the folders in `parent` that contain tracked files; None outside of git."""
    command = ["git", "-C", str(parent), "ls-files", "-z"]
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=60)  # noqa: S603
    except FileNotFoundError:  # git is not installed
        return None
    if done.returncode:
        return None
    return {name.partition("/")[0] for name in done.stdout.decode().split("\0") if "/" in name}
