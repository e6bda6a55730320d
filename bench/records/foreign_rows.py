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
