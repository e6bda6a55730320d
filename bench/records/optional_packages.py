"""Optional packages, each of which a single option needs."""

from bench.records.messages import Catalogue
from bench.records.paths import CHECKOUT

PACKAGES = {"input": "grain", "checkpoint": "orbax-checkpoint"}
"""Package by option; the option is also the name of the extra in pyproject.toml."""


def why_missing(option: str, catalogue: Catalogue) -> str:
    """Return how to install the package of an option; empty if it is installed."""
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
