"""Packages that single options need, and that need not be there otherwise."""

from bench.records.messages import Catalogue
from bench.records.paths import CHECKOUT

PACKAGES = {"input": "grain", "checkpoint": "orbax-checkpoint"}
"""By the option, which is also the name of the extra in pyproject.toml."""


def why_missing(option: str, catalogue: Catalogue) -> str:
    """What to do where the package of an option is not installed; empty if it is."""
    package = PACKAGES[option]
    if package in catalogue["optional"]:
        return ""
    install = f"`pip install {package}` installs it"
    if CHECKOUT:
        install = (
            f"`LOCKSTEP_EXTRAS={option} nox -s bench -- ...` installs it, as does "
            f"`pip install --constraint requirements.lock {package}`"
        )
    return f"--{option}: needs the package {package}, which is not installed; {install}"
