"""Lockstep as a library: race your own functions, and load stored runs as frames."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from bench import __version__ as __version__

if TYPE_CHECKING:
    from lockstep.function_race import compare
    from lockstep.stored_results import COLUMNS, Results, load

_HOMES = {
    "compare": "lockstep.function_race",
    **dict.fromkeys(("COLUMNS", "Results", "load"), "lockstep.stored_results"),
}

__all__ = ["COLUMNS", "Results", "compare", "load"]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    """Import a name on first use: pytest loads the plugin, and so this package, at every start."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
