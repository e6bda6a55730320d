"""Variants: the same blocks in workers with other environment variables.

What XLA, NCCL and libtpu read from the environment holds for a whole process, so that it cannot be
an implementation's own: a variant's cells have workers of their own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

ADDED_TO = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
"""Lists of flags: a variant's are added after those that are set already. Later ones win."""

OWN = {"JAX_PLATFORMS", "JAX_NUM_CPU_DEVICES", "NPROC", "PYTHONPATH"}
"""What the suite sets itself to make a mesh's devices."""

_DEVICES = "--xla_force_host_platform_device_count"
_VARIABLE = re.compile(r"(?:^|\s)([A-Za-z_]\w*)=")


@dataclass(frozen=True)
class Variant:
    """A named change of the environment."""

    name: str
    variables: Mapping[str, str]

    @classmethod
    def parse(cls, text: str) -> Variant:
        """Read `NAME=VARIABLE=VALUE [VARIABLE=VALUE ...]`.

        A value goes on until the next word that begins with a variable's name and `=`, so that it
        may be several flags.

        Raises:
          ValueError: it is not of this form, or sets what is not a variant's to set.
        """
        name, _, rest = text.partition("=")
        if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name) or not _VARIABLE.match(rest):
            raise ValueError(
                f"{text!r} is not NAME=VARIABLE=VALUE, such as "
                "lhs=XLA_FLAGS=--xla_gpu_enable_latency_hiding_scheduler=true"
            )
        _, *parts = _VARIABLE.split(rest)
        variables = {
            variable: value.strip() for variable, value in zip(parts[::2], parts[1::2], strict=True)
        }
        if len(variables) < len(parts) // 2:
            raise ValueError(f"{name!r} sets a variable twice; give its values together")
        own = sorted(OWN & variables.keys())
        if own:
            raise ValueError(f"{name!r} sets {', '.join(own)}, which makes the mesh's devices")
        if _DEVICES in variables.get("XLA_FLAGS", ""):
            raise ValueError(f"{name!r} sets {_DEVICES}, which is the mesh's to say")
        return cls(name, variables)

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.variables.items())

    def applied(self, environment: Mapping[str, str]) -> dict[str, str]:
        """The environment of a worker in this variant."""
        changed = dict(environment)
        for name, value in self.variables.items():
            before = changed.get(name, "") if name in ADDED_TO else ""
            changed[name] = f"{before} {value}".strip()
        return changed
