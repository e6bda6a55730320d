"""Other tools that tell whether two programs are equally fast: one file a tool, its name."""

from __future__ import annotations

import importlib
import pkgutil
from typing import cast

from bench.selftest.peer import Peer


def find_peers() -> dict[str, Peer]:
    """All tools by name, whether they can be used here or not."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return {name: cast("Peer", importlib.import_module(f"{__name__}.{name}")) for name in names}
