"""Settings of the whole process that users' files may change: jax's, and the environment."""

from __future__ import annotations

import os
from typing import Any

import jax


class ProcessSettings:
    """The settings before any implementation is loaded."""

    def __init__(self) -> None:
        self._config: dict[str, Any] = dict(jax.config.values)
        self._environment = dict(os.environ)

    def put_back(self) -> set[str]:
        """Undo what has changed since, so that no file sets anything for the others' arms.

        Returns:
          Names of the settings and variables that had changed.
        """
        changed = {
            name
            for name, value in jax.config.values.items()
            if name in self._config and value != self._config[name]
        }
        for name in changed:
            jax.config.update(name, self._config[name])
        variables = {name for name, _ in os.environ.items() ^ self._environment.items()}
        for name in variables:
            os.environ.pop(name, None)
        os.environ |= {n: value for n, value in self._environment.items() if n in variables}
        return changed | variables
