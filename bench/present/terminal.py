"""What a terminal can show. Imports no jax."""

from __future__ import annotations

from rich.console import Console


def live(console: Console) -> bool:
    """Whether it can be drawn over.

    FORCE_COLOR makes rich take a pipe for a terminal: good for colours, not for a display.
    """
    return console.is_terminal and not console.is_dumb_terminal and console.file.isatty()
