"""File systems that can be filled without harming the machine's own."""

import contextlib
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from bench.trials.faults.observed_run import Lab, UnavailableError


@contextmanager
def small_disk(lab: Lab, name: str, size: str) -> Iterator[Lab]:
    """Mount a tmpfs on a folder, in a user and mount namespace that needs no privileges.

    Args:
      lab: the trial.
      name: the folder, which is created in the trial's own.
      size: size in the syntax of tmpfs, for example `32m`.

    Yields:
      The trial, with its runs in the namespace.

    Raises:
      UnavailableError: this system does not allow the mount.
    """
    mount_point = lab.folder / name
    mount_point.mkdir()
    mount = f'mount -t tmpfs -o size={size} none "$1" && echo mounted && read _'
    try:
        holder = subprocess.Popen(  # noqa: S603 (our own command)
            ["unshare", "-rm", "sh", "-c", mount, "sh", str(mount_point)],  # noqa: S607
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    except OSError as error:
        raise UnavailableError(f"unshare cannot be run: {error}") from error
    with holder:
        assert holder.stdout is not None  # noqa: S101 - pipes, both
        assert holder.stderr is not None  # noqa: S101
        if holder.stdout.readline().strip() != "mounted":
            raise UnavailableError(f"no file system can be mounted: {holder.stderr.read().strip()}")
        try:
            enter = ("nsenter", f"--target={holder.pid}", "--user", "--mount")
            # A working directory entered outside the namespace would still lead outside.
            inside = ("sh", "-c", 'cd "$0" && exec "$@"', str(mount_point.parent))
            prefix = (*enter, "--preserve-credentials", *inside)
            yield replace(lab, prefix=prefix, root=Path(f"/proc/{holder.pid}/root"))
        finally:
            holder.kill()


def fill(folder: Path) -> Path:
    """Fill the file system of a folder to its last byte; return the file that fills it."""
    path = folder / "filler"
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 10))
    return path
