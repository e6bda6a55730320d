"""Sanitizing of untrusted text before it is stored or shown."""

from __future__ import annotations

LINE = 400
LINES = 30
"""Limits on the characters of a line and on the lines of a text."""


def readable(text: str) -> str:
    """Replace unprintable characters, and truncate long lines and texts."""
    lines = text.splitlines()
    shown = [_line(line) for line in lines[:LINES]]
    if len(lines) > LINES:
        shown.append(f"... ({len(lines) - LINES} more lines)")
    return "\n".join(shown)


def _line(line: str) -> str:
    cut = line if len(line) <= LINE else f"{line[:LINE]}... ({len(line) - LINE} more characters)"
    return "".join(
        c if c.isprintable() else " " if c == "\t" else "\N{REPLACEMENT CHARACTER}" for c in cut
    )
