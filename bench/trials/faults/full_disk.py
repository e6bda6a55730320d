"""File systems that can be filled without harming the machine's own."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.trials.faults.observed_run import UnavailableError


@contextmanager
def small_disk(mount_point: Path, size: str) -> Iterator[tuple[Sequence[str], Path]]:
    """Mount a tmpfs on a folder, in a user and mount namespace that needs no privileges.

    Args:
      mount_point: the folder.
      size: size in the syntax of tmpfs, for example `32m`.

    Yields:
      The prefix of a command that enters the namespace, and the path under which the namespace's
      root is visible from this process.

    Raises:
      UnavailableError: this system does not allow the mount.
    """
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
            yield (*enter, "--preserve-credentials", *inside), Path(f"/proc/{holder.pid}/root")
        finally:
            holder.kill()


def fill(folder: Path) -> Path:
    """Fill the file system of a folder to its last byte; return the file that fills it."""
    path = folder / "filler"
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        for size in (1 << 20, 1 << 10, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))
    return path
