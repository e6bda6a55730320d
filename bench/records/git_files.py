"""Queries of git about a folder."""

import subprocess
from pathlib import Path


def read_git(folder: Path, *arguments: str) -> str | None:
    """Return the output of a git command in a folder; None if git fails or is not installed."""
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=60)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return None
    return None if done.returncode else done.stdout.decode()


def tracked_folders(parent: Path) -> set[str] | None:
    """List the folders in `parent` that contain tracked files; None outside of git."""
    listed = read_git(parent, "ls-files", "-z")
    if listed is None:
        return None
    return {name.partition("/")[0] for name in listed.split("\0") if "/" in name}
