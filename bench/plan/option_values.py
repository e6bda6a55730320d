"""Readers of option values: each raises ValueError, which becomes one of several faults."""

import math
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from bench.records.cells import FULL, REMAT
from bench.records.messages import PACKAGES, Catalogue
from bench.records.paths import CHECKOUT
from bench.records.printable import closest

T = TypeVar("T")


class BadInput(Exception):  # noqa: N818 (it is the user's error, not the program's)
    """The input cannot be run. The message lists every fault."""

    def __init__(self, faults: Sequence[str]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(faults))


def collected(faults: list[str], read: Callable[[str], T], text: str, option: str = "") -> T | None:
    """Read a text; if `read` refuses it, append the message to `faults` and return None.

    `read` raises BadInput, or ValueError with a message that does not name the option; an option,
    such as `--precision`, then prefixes the message.
    """
    try:
        return read(text)
    except BadInput as error:
        faults += error.faults
    except ValueError as error:
        faults.append(f"{option}: {error}" if option else str(error))
    return None


def whole(text: str, least: int = 1, most: int = 10**9) -> int:
    """Read a positive whole number; its multiples must fit into 64 bits, as they are stored."""
    if not (text.isascii() and text.isdigit() and int(text) >= least):
        raise ValueError(f"{text!r} is not a {'positive ' * (least > 0)}whole number")
    if int(text) > most:
        raise ValueError(f"{text} is too large; at most {most:,}")
    return int(text)


def positive(what: str) -> Callable[[str], float]:
    """Return a reader of positive numbers, such as a `number of seconds`."""

    def read(text: str) -> float:
        value = _number(text)
        if value > 0 and math.isfinite(value):
            return value
        raise ValueError(f"{text!r} is not a positive {what}")

    return read


def share(text: str) -> float:
    """Read a percentage between 0 and 100, both excluded, as a fraction."""
    value = _number(text) / 100
    if 0 < value < 1:
        return value
    raise ValueError(f"{text!r} is not a percentage above 0 and below 100")


def choice(known: Collection[str]) -> Callable[[str], str]:
    """Return a reader that accepts only the known words."""

    def read(text: str) -> str:
        if text in known:
            return text
        raise ValueError(f"unknown {text!r}; {closest(text, known)}")

    return read


def remat_policy(text: str) -> str:
    """Read a rematerialization policy; `full` and `nothing` both mean to keep no activations."""
    known = {"none": "", **{word: word for word in REMAT}, "nothing": FULL}
    return known[choice(known)(text)]


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


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
