"""Errors that end a run before or while it measures, and their messages."""

from collections.abc import Sequence
from difflib import get_close_matches

import _pytest.outcomes

from bench.measure.cluster.membership import ClusterError
from bench.measure.processes.guarded import ChildError
from bench.plan.distributed_config import DistributedConfigError
from bench.plan.option_values import BadInput
from bench.plan.options import READERS, flag
from bench.records import store

REFUSED = (BadInput, ChildError, ClusterError, DistributedConfigError, store.StoreError)
"""Errors in the request, or in the environment in which it should run."""


class Ended(_pytest.outcomes.Exit):
    """The end of a run; pytest prints the full name of its type before the message."""

    __module__, __qualname__ = "builtins", "lockstep"

    def __init__(self, message: str, returncode: int) -> None:
        super().__init__(message, returncode)


def message(error: Exception) -> str:
    """Return the text of one fault, or a list of several."""
    faults: Sequence[str] = (str(error),)
    if isinstance(error, BadInput | DistributedConfigError):
        faults = error.faults
    if len(faults) == 1:
        return faults[0]
    return "\n".join([f"{len(faults)} things are wrong:", *(f"  - {fault}" for fault in faults)])


def strange_words(unknown: Sequence[str], places: Sequence[str]) -> list[str]:
    """Return the faults of words that are not options.

    Args:
      unknown: words, with their values, that pytest does not know as options.
      places: words that pytest would take for files.
    """
    words = [word for word in (text.partition("=")[0] for text in unknown) if word[:1] == "-"]
    if words:  # the words after them are probably theirs
        near = {word: get_close_matches(word, map(flag, READERS), 1, 0.7) for word in words}
        return [
            f"{word} is no option; " + (f"did you mean {one[0]}?" if one else "see --help")
            for word, one in near.items()
        ]
    return [f"{word!r} stands where an option belongs, such as --workloads" for word in places]
