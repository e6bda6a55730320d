"""Variants: named changes of the environment in which steps are measured again.

XLA, NCCL and libtpu read their variables once per process, so the cells of such a variant cannot
share a worker with others. Another version of jax, and a variant that is to race, run in processes
of their own, which take turns with the worker's arms.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

ADDED_TO = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
"""Variables that hold flags: a variant's flags are appended to those already set, and win."""

OWN = {"JAX_PLATFORMS", "JAX_NUM_CPU_DEVICES", "NPROC", "PYTHONPATH"}
"""Variables that Lockstep itself sets to create the devices of a mesh."""

_DEVICES = "--xla_force_host_platform_device_count"
_PLATFORM = re.compile(r"--xla_(cpu|gpu|tpu)_")
_VARIABLE = re.compile(r"(?:^|\s)([A-Za-z_]\w*)=")


def is_requirement(text: str) -> bool:
    """Whether a text names packages, as `jax==0.10.2`, a requirements file or a wheel does."""
    named = re.match(r"[A-Za-z][\w.-]*(\[[\w,-]*\])?(==|~=|[<>]=?)", text)
    return bool(named or (required_file(text) and not _VARIABLE.match(text)))


def required_file(requirement: str) -> Path | None:
    """Return the requirements file or wheel that a requirement names; None if it names packages."""
    return Path(requirement) if Path(requirement).suffix in (".txt", ".whl") else None


@dataclass(frozen=True)
class Variant:
    """A named change of the environment: variables, or other versions of packages."""

    name: str
    variables: Mapping[str, str]
    requirement: str = ""
    """Packages of the variant's own Python environment; empty if only variables change."""
    raced: bool = False
    """Whether changed variables apply to processes that take turns with the worker's arms, round by
    round, instead of to workers of their own."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `[@]NAME=VARIABLE=VALUE [VARIABLE=VALUE ...]` or `NAME=REQUIREMENT`.

        With `@`, the variant is raced. A value may hold several flags: it ends before the next word
        that has the form `VARIABLE=`. ValueError if the text has another form, or sets a variable
        that Lockstep sets itself.
        """
        raced = text.startswith("@")
        name, _, rest = text.removeprefix("@").partition("=")
        packages = is_requirement(rest)
        named = re.fullmatch(r"[A-Za-z0-9][\w.-]{0,59}", name)
        if not named or not (packages or _VARIABLE.match(rest)):
            raise ValueError(
                f"{text!r} is neither NAME=VARIABLE=VALUE, such as "
                "lhs=XLA_FLAGS=--xla_gpu_enable_latency_hiding_scheduler=true, nor "
                "NAME=REQUIREMENT: one such as old=jax==0.10.2, a requirements file or a wheel"
            )
        if name == "base" and (packages or raced):
            raise ValueError("'base' names the other side of a gate; choose another name")
        if packages:
            return cls(name, {}, rest)
        _, *parts = _VARIABLE.split(rest)
        variables = dict(zip(parts[::2], map(str.strip, parts[1::2]), strict=True))
        if len(variables) < len(parts) // 2:
            raise ValueError(f"{name!r} sets a variable twice; give its values together")
        own = sorted(OWN & variables.keys())
        if own:
            raise ValueError(f"{name!r} sets {', '.join(own)}, which Lockstep sets itself")
        if _DEVICES in variables.get("XLA_FLAGS", ""):
            raise ValueError(f"{name!r} sets {_DEVICES}, which the mesh determines")
        return cls(name, variables, raced=raced)

    def __str__(self) -> str:
        variables = (f"{name}={value}" for name, value in self.variables.items())
        return self.requirement or " ".join(variables)

    @property
    def platforms(self) -> set[str]:
        """Platforms whose flags it sets; XLA accepts another platform's flags and ignores them."""
        set_ = _PLATFORM.findall(" ".join(self.variables.values()))
        return {*set_, *(["tpu"] if "LIBTPU_INIT_ARGS" in self.variables else [])}

    def applied(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the environment with this variant's variables."""
        changed = dict(environment)
        for name, value in self.variables.items():
            before = changed.get(name, "") if name in ADDED_TO else ""
            changed[name] = f"{before} {value}".strip()
        return changed
