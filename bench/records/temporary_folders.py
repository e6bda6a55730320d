"""Temporary folders of a run; those of killed runs are removed when the next one starts.

A folder's name identifies its owner: the host and its PID namespace, the process and its start
time. Folders whose owners are gone are removed when the next one is made.
"""

import contextlib
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import psutil

from bench.records.host import host_id

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - folders in it have names of their own

SAME_S = 2
"""Seconds by which two readings of a process's start time may differ."""


@contextlib.contextmanager
def temporary_folder(*, shared: bool = False) -> Iterator[Path]:
    """Make a folder, in shared memory if wanted, for a context; remove those of killed runs."""
    if not shared:  # shared ones are made for every request, too often to search
        remove_left()
    began = int(psutil.Process().create_time())
    prefix = f"lockstep-{_place()}-{os.getpid()}-{began}-"
    place = SHARED_MEMORY if shared and os.access(SHARED_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix=prefix, dir=place) as name:
        yield Path(name)


def remove_left() -> None:
    """Remove the folders of this host's processes that have ended."""
    name = f"lockstep-{_place()}-*-*-*"
    for folder in (*Path(tempfile.gettempdir()).glob(name), *SHARED_MEMORY.glob(name)):
        process, began, *_ = folder.name.removeprefix(f"lockstep-{_place()}-").split("-")
        if process.isdigit() and began.isdigit() and not _runs(int(process), int(began)):
            shutil.rmtree(folder, ignore_errors=True)


def _runs(process: int, began: int) -> bool:
    try:
        return abs(psutil.Process(process).create_time() - began) <= SAME_S
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:  # another user's process
        return True


def _place() -> str:
    """Identify this host and its PID namespace among those that may share its temporary files."""
    space = Path("/proc/self/ns/pid")
    name = os.readlink(space) if space.exists() else ""  # noqa: PTH115 - it leads to no file
    return f"{zlib.crc32(f'{host_id()} {name}'.encode()):08x}"
