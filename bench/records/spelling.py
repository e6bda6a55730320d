"""Suggestions for misspelt names."""

import difflib
from collections.abc import Iterable


def closest(word: str, known: Iterable[str]) -> str:
    """Suggest the known names that an unknown word may stand for, the closest first."""
    names = list(known)
    near = difflib.get_close_matches(word, names, n=3, cutoff=0.5)
    if near:
        others = [name for name in names if name not in near]
        more = f" (also: {', '.join(others)})" if others else ""
        return f"did you mean {' or '.join(near)}?{more}"
    return f"choose from: {', '.join(names)}" if names else "there are none"
