"""Other tools that judge whether two programs are equally fast: one file a tool."""

import importlib
import pkgutil
from typing import cast

from bench.trials.selftest.peer_protocol import Peer


def peer_names() -> list[str]:
    """Names of all tools. Imports none of them, since some load large libraries."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def find_peers() -> dict[str, Peer]:
    """All tools by name, available or not."""
    return {
        name: cast("Peer", importlib.import_module(f"{__name__}.{name}")) for name in peer_names()
    }
