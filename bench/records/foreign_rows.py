"""Stored rows about arms that run in their own processes."""

from typing import NotRequired, TypedDict


class ForeignArms(TypedDict):
    """Differences between an arm in its own processes and arms in the worker."""

    versions: dict[str, str]
    """Versions of Python and of the packages that the file names, in the arm's processes."""
    processes: int
    threads: int
    """Threads of each process."""
    float64: NotRequired[bool]
    """False if it was not proved in float64, because its framework lacks that."""
    isolated: NotRequired[bool]
    """Whether it has its own processes because the run's options isolate it."""
    asking_ns: int
    """Round trip of a request, which is subtracted from a span's time."""


class Isolation(TypedDict):
    """The second measurement of a suspicious winner: see bench.measure.suspicious_winner."""

    why: str
    """Why it is suspicious."""
    beside: str
    """The arm beside which it was measured; empty if it was alone."""
    ratio: float
    """Its step time over that of the other arm, both in the worker; without one, seconds."""
    isolated_ratio: float | None
    """The same in processes of their own; None if there are no such times."""
    reason: str
    """Why there are none; empty if there are."""
