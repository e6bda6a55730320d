"""Daemons that have left their worker's session and cleared their environment.

No mark leads to them. On Linux, a process that is left alone becomes a child of the nearest
ancestor that takes such children (a subreaper, see prctl(2)), as this process does from its first
worker on. It tells them from children of its own, all of which have OWN in their environment.
"""

import contextlib
import ctypes
import os
import sys
import time

import psutil

from bench.measure.processes.guard import GONE_S

OWN = "LOCKSTEP_FRONT"
"""Environment variable of everything that Lockstep starts, which a daemon has lost."""

_SET_CHILD_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of linux/prctl.h

_adopting: dict[int, set[int]] = {}
"""By process, because a fork takes no orphans yet: the children that it had before."""


def adopt_orphans() -> None:
    """Let orphans of this process's descendants become its children, where the system can."""
    if os.getpid() not in _adopting and sys.platform == "linux":
        _adopting[os.getpid()] = {child.pid for child in psutil.Process().children()}
        os.environ[OWN] = "1"
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_orphans() -> None:
    """Kill the adopted daemons, and what becomes an orphan by that."""
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
            # A child of this process is a copy of it until it has called exec.
            apart = os.getsid(child.pid) != os.getsid(0) and child.cmdline() != own.cmdline()
            alive = child.status() != psutil.STATUS_ZOMBIE
            if child.pid not in before and apart and alive and OWN not in child.environ():
                found.append(child)
    return found
