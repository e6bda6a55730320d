"""The classes of implementations: exact, approximate, and foreign."""

from collections.abc import Iterable, Mapping
from typing import Any

EXACT, APPROXIMATE = "exact", "approximate"
"""Names that `--implementations` takes for all implementations of a class."""

Entries = Mapping[str, Any]
"""Implementations of a catalogue by name: see bench.records.messages.ImplementationEntry."""


def is_exact(entry: Mapping[str, Any]) -> bool:
    """Whether a run measures this implementation unless its options name others.

    Foreign ones need packages and start processes that few runs want; approximate ones are another
    step.
    """
    return not entry.keys() & {"foreign", "approximate"}


def expanded(names: Iterable[str], entries: Entries) -> list[str]:
    """Replace the names of classes by those of their implementations."""
    classes = {
        EXACT: [name for name, entry in entries.items() if is_exact(entry)],
        APPROXIMATE: [name for name, entry in entries.items() if "approximate" in entry],
    }
    return [own for name in names for own in classes.get(name, [name])]


def approximate(names: Iterable[str], entries: Entries) -> tuple[str, ...]:
    """Return those of the implementations whose steps are approximate."""
    return tuple(name for name in names if "approximate" in entries.get(name, {}))


def why_not_isolated(entry: Mapping[str, Any]) -> str:
    """Say why an implementation cannot be isolated in a process of its own; empty if it can."""
    if "foreign" in entry:
        return "always runs in processes of its own"
    return "is approximate; such a step runs in the worker" if "approximate" in entry else ""
