"""Errors that end a run before or while it measures, and their messages."""

import sys
from argparse import Namespace
from collections.abc import Generator, Sequence
from difflib import get_close_matches
from typing import Any

import _pytest.outcomes
import pytest

from bench.commands.exits import plain
from bench.measure.cluster.membership import ClusterError
from bench.measure.processes.guarded import ChildError
from bench.plan.option_values import BadInput
from bench.plan.options import READERS, flag
from bench.records import store

REFUSED = (BadInput, ChildError, ClusterError, store.StoreError, OSError)
"""Errors in the request, or in the environment in which it should run."""

RunEnd = type("lockstep", (_pytest.outcomes.Exit,), {"__module__": "builtins"})
"""The end of a run; pytest prints the name of its type before the message."""


@pytest.hookimpl(wrapper=True)
def pytest_cmdline_parse() -> Generator[None, Any, Any]:
    """Print an error as all commands do; pytest prints one line for each argument of the error."""
    try:
        return (yield)
    except pytest.UsageError as error:
        for text in map(str, error.args):
            if text.startswith("usage:"):  # about an option of pytest; files follow
                text = plain(text.partition(": error: ")[2].partition("\n")[0])  # noqa: PLW2901
            sys.stderr.write(f"error: {text}\n")
        raise pytest.UsageError from None


pytest_cmdline_main = pytest_cmdline_parse


def unknown_word_faults(known: Namespace, unknown: Sequence[str]) -> list[str]:
    """Return the faults of words that are not options: those of pytest's parser, and its files.

    `known` holds the options that this command has; `unknown` are other words, with their values.
    """
    words = [word for word in (text.partition("=")[0] for text in unknown) if word[:1] == "-"]
    if words:  # the words after them are probably theirs
        flags = [flag(name) for name in READERS if hasattr(known, f"lockstep_{name}")]
        near = {word: get_close_matches(word, flags, 1, 0.7) for word in words}
        return [
            f"{word} is not an option; " + (f"did you mean {one[0]}?" if one else "see --help")
            for word, one in near.items()
        ]
    places = [word for word in known.file_or_dir if not word.endswith(".cells_test")]
    hint = "options start with --"
    if any(word.endswith(".py") for word in places):
        hint = "name each file with its own --implementation-path"
    return [f"unexpected argument {word!r}; {hint}" for word in places]
