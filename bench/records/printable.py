"""Text of unknown origin, made fit for a reason, a terminal and a page."""

from __future__ import annotations

LINE = 400
LINES = 30
"""Most characters of a line, and lines, of a reason."""


def readable(text: str) -> str:
    """The text with what cannot be printed replaced, and what is too long cut."""
    lines = text.splitlines()
    kept = [_line(line) for line in lines[:LINES]]
    if len(lines) > LINES:
        kept.append(f"... ({len(lines) - LINES} more lines)")
    return "\n".join(kept)


def _line(line: str) -> str:
    cut = line if len(line) <= LINE else f"{line[:LINE]}... ({len(line) - LINE} more characters)"
    return "".join(
        c if c.isprintable() else " " if c == "\t" else "\N{REPLACEMENT CHARACTER}" for c in cut
    )
