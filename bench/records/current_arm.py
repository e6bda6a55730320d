"""The arm whose turn it is, in a file that worker and supervisor share.

The supervisor needs it to blame an arm for a worker that dies or hangs between two events. An event
per turn would take time from the turn that it announces. A write to this file takes about a
microsecond, and the supervisor reads it only after the worker has ended.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time

VARIABLE = "LOCKSTEP_TURN"
"""Holds the number of the worker's descriptor."""

_BYTES = 4096


class Turns:
    """The supervisor's side. Hand `descriptor` and `environment` to the worker."""

    def __init__(self) -> None:
        if hasattr(os, "memfd_create"):  # a full disk does not matter to it
            self.descriptor = os.memfd_create("lockstep-turn")
        else:
            with tempfile.TemporaryFile() as file:
                self.descriptor = os.dup(file.fileno())

    @property
    def environment(self) -> dict[str, str]:
        """What the environment of the worker needs beside its own."""
        return {VARIABLE: str(self.descriptor)}

    def read(self) -> tuple[str, float]:
        """Who has the turn, and since how many seconds; nobody is an empty string."""
        began, _, name = os.pread(self.descriptor, _BYTES, 0).rstrip(b"\0").partition(b" ")
        return (name.decode(), time.monotonic() - float(began)) if name else ("", 0.0)

    def close(self) -> None:
        """Close the file."""
        os.close(self.descriptor)


class TurnWriter:
    """The worker's side; writes nothing where nobody asked for it."""

    def __init__(self) -> None:
        number = os.environ.get(VARIABLE, "")
        self._descriptor = int(number) if number.isdigit() else None

    def write(self, name: str) -> None:
        """Say who has the turn from now on; an empty name for nobody."""
        if self._descriptor is not None:
            # The clock is the system's: both sides read the same.
            text = f"{time.monotonic()} {name}".encode().ljust(_BYTES, b"\0")
            with contextlib.suppress(OSError):
                os.pwrite(self._descriptor, text, 0)
