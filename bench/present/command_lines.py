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
    others = _words(manifest["argv"], "-k", own=False)
    return of_words([*others, "-k", " or ".join(names)])


def resuming(name: str, manifest: Manifest) -> str:
    """Return the options that continue a run, in every process if a launcher started several."""
    return shlex.join(["--resume", name, *_words(manifest["argv"], "--distributed", own=True)])


def of_words(words: Sequence[str]) -> str:
    """Return a command line of these words, without `--run NAME`."""
    return f"{PROGRAM} {shlex.join(_words(words, '--run', own=False))}"


def _words(words: Sequence[str], option: str, *, own: bool) -> list[str]:
    """Return an option's `own` words, its name and value, or all others."""
    both = pairwise(("", *words))
    return [word for before, word in both if own == (option in (before, word.partition("=")[0]))]
