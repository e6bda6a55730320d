"""`python -m bench tensorboard`: show recorded traces, and delete old ones."""

import shutil
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from bench.commands.exits import exit_codes, refuse, termination_as_interrupt
from bench.measure.processes.guard import Guard
from bench.records.paths import PROFILES, as_typed

SETTINGS = {"epilog": exit_codes({0: "TensorBoard was stopped", 1: "TensorBoard failed"})}


def tensorboard(
    port: Annotated[int, typer.Option(min=1, max=65535)] = 6006,
    keep: Annotated[int | None, typer.Option(min=0)] = None,
) -> None:
    """Show the recorded traces in TensorBoard, on this machine only.

    Args:
      port: Port of TensorBoard's page.
      keep (N): First delete the traces of all but the N newest runs; 0 deletes all, and shows none.
    """
    if not traced_runs(PROFILES):
        refuse(f"there are no traces in {PROFILES}/; record some: {as_typed('run')} --profile")
    beside_python = Path(sysconfig.get_path("scripts")) / "tensorboard"
    program = str(beside_python) if beside_python.exists() else shutil.which("tensorboard")
    if program is None:
        refuse("tensorboard is not installed; it is part of the extra `profile`")
    if keep is not None:  # only now that nothing else can refuse the command
        for folder in prune(PROFILES, keep):
            typer.echo(f"deleted {folder.as_posix()}/")
    if keep == 0:
        return
    words = ["--logdir", str(PROFILES), "--host", "127.0.0.1", "--port", str(port)]
    raise typer.Exit(serve([program, *words]))


def serve(command: Sequence[str]) -> int:
    """Run a server until it ends, or Ctrl-C or SIGTERM ends it; return its exit code."""
    try:
        with termination_as_interrupt(), Guard(command) as server:
            return server.code() or 0
    except KeyboardInterrupt:
        return 0


def traced_runs(profiles: Path) -> list[Path]:
    """Return the folders of runs with traces, the newest first."""
    newest = {
        folder: max(path.stat().st_mtime for path in traces)
        for folder in profiles.glob("*/")
        if not folder.is_symlink() and (traces := list(folder.rglob("*.xplane.pb")))
    }
    return sorted(newest, key=lambda folder: newest[folder], reverse=True)


def prune(profiles: Path, keep: int) -> list[Path]:
    """Delete the traces of all runs but the `keep` newest, and return their folders."""
    old = traced_runs(profiles)[keep:]
    for folder in old:
        shutil.rmtree(folder)
    return old
