"""Variants: named changes of the environment in which blocks are measured again.

XLA, NCCL and libtpu read the environment once per process, so a variant's cells cannot share a
worker with others.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

ADDED_TO = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
"""Variables that hold flags: a variant's flags are appended to those already set, and win."""

OWN = {"JAX_PLATFORMS", "JAX_NUM_CPU_DEVICES", "NPROC", "PYTHONPATH"}
"""Variables that the suite itself sets to create the devices of a mesh."""

_DEVICES = "--xla_force_host_platform_device_count"
_VARIABLE = re.compile(r"(?:^|\s)([A-Za-z_]\w*)=")


@dataclass(frozen=True)
class Variant:
    """A named change of the environment."""

    name: str
    variables: Mapping[str, str]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `NAME=VARIABLE=VALUE [VARIABLE=VALUE ...]`.

        A value may hold several flags: it ends before the next word that has the form `VARIABLE=`.

        Raises:
          ValueError: the text has another form, or sets a variable that the suite sets itself.
        """
        name, _, rest = text.partition("=")
        if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name) or not _VARIABLE.match(rest):
            raise ValueError(
                f"{text!r} is not NAME=VARIABLE=VALUE, such as "
                "lhs=XLA_FLAGS=--xla_gpu_enable_latency_hiding_scheduler=true"
            )
        if re.match(r"[\w.-]+==", rest):
            raise ValueError(
                f"{name!r} names a version, and a variant sets variables; "
                f"`python -m bench upgrade --from {rest}` compares with a version"
            )
        _, *parts = _VARIABLE.split(rest)
        variables = {
            variable: value.strip() for variable, value in zip(parts[::2], parts[1::2], strict=True)
        }
        if len(variables) < len(parts) // 2:
            raise ValueError(f"{name!r} sets a variable twice; give its values together")
        own = sorted(OWN & variables.keys())
        if own:
            raise ValueError(f"{name!r} sets {', '.join(own)}, which the suite sets itself")
        if _DEVICES in variables.get("XLA_FLAGS", ""):
            raise ValueError(f"{name!r} sets {_DEVICES}, which the mesh determines")
        return cls(name, variables)

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.variables.items())

    def applied(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the environment with this variant's variables."""
        changed = dict(environment)
        for name, value in self.variables.items():
            before = changed.get(name, "") if name in ADDED_TO else ""
            changed[name] = f"{before} {value}".strip()
        return changed
