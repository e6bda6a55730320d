"""Process-wide settings that users' files may change: jax's, Python's, the environment."""

import gc
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import jax

_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)

_PYTHONS: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "gc.callbacks": (
        lambda: list(gc.callbacks),
        lambda old: gc.callbacks.__setitem__(slice(None), old),
    ),
    "gc.set_threshold": (gc.get_threshold, lambda old: gc.set_threshold(*old)),
    "signal.setitimer": (
        lambda: [timer for timer in _TIMERS if any(signal.getitimer(timer))],
        lambda old: [signal.setitimer(timer, 0.0) for timer in _TIMERS if timer not in old],
    ),
    "sys.setprofile": (sys.getprofile, sys.setprofile),
    "sys.setswitchinterval": (sys.getswitchinterval, sys.setswitchinterval),
    "sys.settrace": (sys.gettrace, sys.settrace),
}
"""Getter and setter of each of Python's own settings, by its name in messages."""


class ProcessSettings:
    """A snapshot of the settings, taken before any implementation is loaded."""

    def __init__(self) -> None:
        self._config: dict[str, Any] = dict(jax.config.values)
        self._environment = dict(os.environ)
        self._pythons = {name: read() for name, (read, _) in _PYTHONS.items()}

    def put_back(self) -> set[str]:
        """Undo all changes since the snapshot, so that no file affects other arms.

        Returns:
          Names of the settings and variables that had changed.
        """
        changed = self.put_back_quickly()
        variables = {name for name, _ in os.environ.items() ^ self._environment.items()}
        for name in variables:
            os.environ.pop(name, None)
        os.environ |= {n: value for n, value in self._environment.items() if n in variables}
        return changed | variables

    def put_back_quickly(self) -> set[str]:
        """Do the same except for the environment, which programs read when they start."""
        changed = {
            name
            for name, value in jax.config.values.items()
            if name in self._config and value != self._config[name]
        }
        for name in changed:
            jax.config.update(name, self._config[name])
        for name, (read, write) in _PYTHONS.items():
            if read() != self._pythons[name]:
                write(self._pythons[name])
                changed.add(name)
        return changed
