"""Command lines that reproduce a run, or measure some of its cells again."""

import shlex
from collections.abc import Collection, Sequence
from itertools import pairwise

from bench.records.paths import PROGRAM
from bench.records.rows import Manifest, is_race

LIBRARY = "lockstep.compare(...)"
"""The call that made a run of functions, in a user's own program."""


def of_run(manifest: Manifest) -> str:
    """Return the command line that made the run, without its name, which the run has taken."""
    return LIBRARY if is_race(manifest) else of_words(manifest["argv"])


def of_cells(manifest: Manifest, names: Collection[str]) -> str:
    """Return the command that measures some of a run's cells again, with all of its options."""
    if is_race(manifest):
        return LIBRARY
    return of_words([*_without("-k", manifest["argv"]), "-k", " or ".join(names)])


def of_words(words: Sequence[str]) -> str:
    """Return a command line of these words, without `--run NAME`."""
    return f"{PROGRAM} {shlex.join(_without('--run', words))}"


def _without(option: str, words: Sequence[str]) -> list[str]:
    both = pairwise(("", *words))
    return [word for before, word in both if option not in (before, word.partition("=")[0])]
