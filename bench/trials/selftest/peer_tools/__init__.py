"""Other tools that judge whether two programs are equally fast: one file per tool."""

import importlib
import pkgutil
from typing import cast

from bench.trials.selftest.peer_protocol import Peer


def peer_names() -> list[str]:
    """Return the names of all tools without importing them, since some load large libraries."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def find_peers() -> dict[str, Peer]:
    """Return all tools by name, available or not."""
    return {
        name: cast("Peer", importlib.import_module(f"{__name__}.{name}")) for name in peer_names()
    }
