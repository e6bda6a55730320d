"""The folder of traces: one folder a run, as TensorBoard's log directory. Imports no jax."""

from __future__ import annotations

import shutil
from pathlib import Path

TRACE = "*.xplane.pb"


def traced_runs(profiles: Path) -> list[Path]:
    """Folders of runs with traces, the newest first."""
    newest = {
        folder: max(path.stat().st_mtime for path in traces)
        for folder in profiles.glob("*/")
        if not folder.is_symlink() and (traces := list(folder.rglob(TRACE)))
    }
    return sorted(newest, key=lambda folder: newest[folder], reverse=True)


def prune(profiles: Path, keep: int) -> list[Path]:
    """Delete the traces of all runs but the newest, and return their former folders."""
    old = traced_runs(profiles)[keep:]
    for folder in old:
        shutil.rmtree(folder)
    return old
