"""Statuses of cells, and verdicts: each with its label, colour and order."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "wrong", "implausible", "crashed", "timeout", "oom", "unsupported"]

VerdictWord = Literal["faster", "same", "slower", "undecided"]

MARGIN = 0.02
"""Default of the relative difference of step times that is too small to matter."""


@dataclass(frozen=True)
class StatusDisplay:
    """The display of a status."""

    label: str
    style: str
    """Style in rich's syntax."""
    short: str
    """Label that fits a field of a heatmap."""
    failure: bool = True
    """Whether it makes a run's exit code a failure."""


STATUSES: dict[str, StatusDisplay] = {
    "ok": StatusDisplay("ok", "green", "\N{EN DASH}", failure=False),
    "wrong": StatusDisplay("wrong", "bold red", "wrong"),
    "implausible": StatusDisplay("implausible", "bold red", "?"),
    "crashed": StatusDisplay("crashed", "red", "crashed"),
    "timeout": StatusDisplay("timed out", "red", "timeout"),
    "oom": StatusDisplay("out of memory", "red", "oom"),
    "unsupported": StatusDisplay("unsupported", "yellow", "n/a", failure=False),
}
"""Displays in listing order, failures before `unsupported`.

Only an `ok` cell has a time; every other one has a reason. A cell that is stored as `ok` becomes
`implausible` when it is read, if its time implies more than the device's peak."""

FAILURES = tuple(status for status, display in STATUSES.items() if display.failure)

VERDICT_STYLES = {"faster": "green", "same": "", "slower": "", "undecided": "yellow"}
"""Colours of the verdicts on implementations of one run, in the order in which they are listed."""

CHANGE_STYLES = {
    "broken": "bold red",
    "slower": "bold red",
    "undecided": "yellow",
    "faster": "green",
    "fixed": "green",
    "same": "dim",
    "neither": "dim",
}
"""Colours of the verdicts on a change of an implementation: there, `slower` is bad news."""


def decisive(statuses: Sequence[str]) -> int:
    """Return the index of the decisive launch of a cell, given the statuses of its launches.

    A single `wrong` or `implausible` launch outweighs any number of times. Otherwise, the first
    launch that is ok decides, and without one the first failure.
    """
    for status in ("wrong", "implausible", "ok"):
        if status in statuses:
            return list(statuses).index(status)
    return 0
