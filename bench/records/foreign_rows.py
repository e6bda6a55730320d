"""What a run stores of arms in processes of their own."""

from typing import NotRequired, TypedDict


class ForeignArms(TypedDict):
    """What differs between an arm in processes of its own and those in the worker."""

    versions: dict[str, str]
    """Of Python and the packages that the file names, in its processes."""
    processes: int
    threads: int
    """Threads of each process."""
    float64: NotRequired[bool]
    """False if it was not proved in float64, which its framework lacks."""
    isolated: NotRequired[bool]
    """Whether it is there because the run's options keep it apart."""
    asking_ns: int
    """What asking for a span costs, which is left out of its time."""
