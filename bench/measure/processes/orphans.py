"""Daemons that have left their worker's session and cleared their environment.

They carry no mark. On Linux, an orphaned process becomes a child of its nearest ancestor that is a
subreaper (prctl(2)), which this process becomes at its first worker. Its own children have OWN in
their environment, which distinguishes them from daemons.
"""

import contextlib
import ctypes
import os
import sys
import time

import psutil

from bench.measure.processes.guard import GONE_S

OWN = "LOCKSTEP_FRONT"
"""Environment variable of everything that Lockstep starts, which such a daemon lacks."""

_SET_CHILD_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of linux/prctl.h

_adopting: dict[int, set[int]] = {}
"""Children before adoption began, by id of the adopting process, because a fork adopts none."""


def adopt_orphans() -> None:
    """Make this process the subreaper of its descendants, where the system supports it."""
    if os.getpid() not in _adopting and sys.platform == "linux":
        _adopting[os.getpid()] = {child.pid for child in psutil.Process().children()}
        os.environ[OWN] = "1"
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_orphans() -> None:
    """Kill the adopted daemons, and the orphans that this creates."""
    end = time.monotonic() + GONE_S
    while (found := _orphans()) and time.monotonic() < end:
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()
                process.wait(GONE_S)


def _orphans() -> list[psutil.Process]:
    before = _adopting.get(os.getpid())
    if before is None:
        return []
    own, found = psutil.Process(), []
    for child in own.children():
        with contextlib.suppress(psutil.Error, OSError):
            # Between fork and exec, a child is a copy of this process.
            apart = os.getsid(child.pid) != os.getsid(0) and child.cmdline() != own.cmdline()
            alive = child.status() != psutil.STATUS_ZOMBIE
            if child.pid not in before and apart and alive and OWN not in child.environ():
                found.append(child)
    return found
