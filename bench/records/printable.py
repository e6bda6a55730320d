"""Texts for people: untrusted text is sanitized, and misspelt names get suggestions."""

import difflib
import re
import signal
from collections.abc import Iterable

HEAD, TAIL = 300, 200
LINES = 30
"""Characters kept of a long line, which may end with a diagnosis' numbers; lines of a text."""
SHOWN = 500
"""Most characters of a reason that the terminal and the page show."""

_ESCAPES = re.compile(r"\x1b\][^\x07\x1b\n]*\x07?|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|\x1b[ -/]*[0-~]")
"""Control sequences of a terminal (ECMA-48), with their parameters."""
_SPACES = "\N{NO-BREAK SPACE}\N{NARROW NO-BREAK SPACE}"
"""The spaces before units, which Python calls unprintable."""
_TRACE = re.compile(r"(PC: )?\s*@ +0x|\*\*\* .*stack trace")  # as absl prints one


def shortened(text: str, most: int = SHOWN) -> str:
    """Make a reason safe and short enough to be shown."""
    shown = readable(text)
    return shown if len(shown) <= most else f"{shown[: most - 4]} ..."


def readable(text: str) -> str:
    """Remove control sequences and empty lines, replace unprintable characters, and truncate."""
    lines = [line for line in _ESCAPES.sub("", text).splitlines() if line.strip()]
    shown = [_line(line) for line in lines[:LINES]]
    if len(lines) > LINES:
        shown.append(f"... ({len(lines) - LINES} more lines)")
    return "\n".join(shown)


def _line(line: str) -> str:
    more = f"... ({len(line) - HEAD - TAIL} more characters) ..."
    cut = line if len(line) <= HEAD + TAIL + len(more) else f"{line[:HEAD]}{more}{line[-TAIL:]}"
    return "".join(
        c if c.isprintable() or c in _SPACES else " " if c == "\t" else "\N{REPLACEMENT CHARACTER}"
        for c in cut
    )


def is_telling(line: str) -> bool:
    """Whether a line of stderr can be a reason: it is neither empty nor of a native stack trace."""
    return bool(line.strip()) and not _TRACE.match(line)


def ending(code: int) -> str:
    """Describe how a process ended, from its exit code: `was killed by SIGSEGV`."""
    if code >= 0:
        return f"ended with exit code {code}"
    named = {each.value: each.name for each in signal.Signals}
    return f"was killed by {named.get(-code, f'signal {-code}')}"


FEW = 12
"""Most names that are listed beside the closest ones."""


def closest(word: str, known: Iterable[str]) -> str:
    """Suggest the known names that an unknown word may stand for, and list the others if few."""
    names, small = list(known), word.lower()
    longer = [name for name in names if word and name.lower().startswith(small)]
    in_lower = {name.lower(): name for name in names}
    near = longer or [in_lower[one] for one in difflib.get_close_matches(small, in_lower, 3, 0.5)]
    if near:
        others = [name for name in names if name not in near]
        more = f" (also: {', '.join(others)})" if 0 < len(others) <= FEW else ""
        return f"did you mean {' or '.join(near)}?{more}"
    return f"choose from: {', '.join(names)}" if names else "there are none"
