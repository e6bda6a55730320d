"""The name of the arm whose turn it is, in a file that the worker and the supervisor share.

The supervisor uses it to find the arm to blame for a worker that dies or hangs between two events.
An event per turn would disturb the measurement; a write to this file takes about a microsecond,
and the supervisor reads it only once the worker has ended or is about to be killed.
"""

import contextlib
import os
import tempfile
import time

VARIABLE = "LOCKSTEP_TURN"
"""Environment variable with the number of the worker's file descriptor."""

_BYTES = 4096


class Turns:
    """The supervisor's side. Give `descriptor` to the worker, and `environment` as variables."""

    def __init__(self) -> None:
        self._last: tuple[str, float] | None = None
        if hasattr(os, "memfd_create"):  # needs no space on disk
            self.descriptor = os.memfd_create("lockstep-turn")
        else:
            with tempfile.TemporaryFile() as file:
                self.descriptor = os.dup(file.fileno())
        self.environment = {VARIABLE: str(self.descriptor)}

    def read(self) -> tuple[str, float]:
        """Return the arm whose turn it is and its seconds so far; `("", 0.0)` between turns."""
        if self._last is not None:
            return self._last
        began, _, name = os.pread(self.descriptor, _BYTES, 0).rstrip(b"\0").partition(b" ")
        return (name.decode(), time.monotonic() - float(began)) if name else ("", 0.0)

    def close(self) -> None:
        """Close the file; `read` continues to return its last result."""
        if self._last is None:
            self._last = self.read()
            os.close(self.descriptor)


class TurnWriter:
    """The worker's side; does nothing if the supervisor passed no descriptor."""

    def __init__(self) -> None:
        number = os.environ.get(VARIABLE, "")
        self._descriptor = int(number) if number.isdigit() else None

    def write(self, name: str) -> None:
        """Record the arm whose turn begins; an empty name if none does."""
        if self._descriptor is not None:
            # The monotonic clock is the same in both processes.
            text = f"{time.monotonic()} {name}".encode().ljust(_BYTES, b"\0")
            with contextlib.suppress(OSError):
                os.pwrite(self._descriptor, text, 0)
