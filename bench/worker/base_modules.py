"""Another revision's modules in the place of the working tree's, in the same process."""

from __future__ import annotations

import sys
import sysconfig
from functools import cache
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Self

_INSTALLED = {"site-packages", "dist-packages"}
_STANDARD = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")]


class BaseModules:
    """A checkout of another revision, whose modules are imported while it is entered.

    Modules that lie in the repository are set aside from `sys.modules`, and entries of `sys.path`
    in the repository lead to the same folder of the checkout. Whoever holds the modules set aside,
    as the harness does, goes on using them. What is imported meanwhile is kept with the checkout
    and is there again when it is entered again; outside, no name leads to it. A function that
    imports whenever it is called therefore finds the working tree's modules when it is called
    outside.

    What is installed in a folder of the repository (a virtual environment) or cloned into one is
    not of the repository.

    Args:
      worktree: the checkout, resolved.
      repository: whose working tree it stands in for, resolved.

    Raises:
      ImportError: when it is left, if modules of the working tree were imported meanwhile, by a
        finder that does not go by `sys.path`: they would have been measured in place of the base's.
    """

    def __init__(self, worktree: Path, repository: Path) -> None:
        self._worktree = worktree
        self._repository = repository
        self._own: dict[str, ModuleType] = {}
        self._aside: dict[str, ModuleType] = {}
        self._path: list[str] = []

    def __enter__(self) -> Self:
        self._aside = modules_of(self._repository)
        self._path = list(sys.path)
        _take_out(self._aside)
        sys.modules.update(self._own)
        sys.path[:] = [self._counterpart(entry) for entry in sys.path]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._own = modules_of(self._worktree)
        strays = modules_of(self._repository)
        _take_out(self._own)
        _take_out(strays)
        sys.modules.update(self._aside)
        sys.path[:] = self._path
        if strays and error is None:
            raise ImportError(
                f"the base cannot be told from the working tree: {', '.join(sorted(strays))} "
                "came from there, by a way to import that is not sys.path"
            )

    def _counterpart(self, entry: str) -> str:
        """Where an entry of `sys.path` leads in the checkout; the entry itself if it is no part."""
        path = Path(entry).resolve()  # the empty one is the working directory
        if not is_of(path, self._repository):
            return entry
        return str(self._worktree / path.relative_to(self._repository))


def modules_of(repository: Path) -> dict[str, ModuleType]:
    """Imported modules that lie in a repository, but for the program that runs."""
    found = {}
    for name, module in list(sys.modules.items()):
        # Not getattr: some modules import others when they are asked.
        names = getattr(module, "__dict__", {})
        place = names.get("__file__") or next(iter(names.get("__path__") or ()), None)
        if name != "__main__" and isinstance(place, str) and _lies_in(place, repository):
            found[name] = module
    return found


@cache
def _lies_in(place: str, repository: Path) -> bool:
    return is_of(Path(place).resolve(), repository)


def is_of(path: Path, repository: Path) -> bool:
    """Whether a resolved path is a repository's own, rather than installed or cloned inside of it.

    Args:
      path: of a file or folder.
      repository: its root, resolved.
    """
    if not path.is_relative_to(repository) or _INSTALLED & set(path.parts):
        return False
    if any(path.is_relative_to(folder) for folder in _STANDARD):
        return False
    return next((p for p in (path, *path.parents) if (p / ".git").exists()), None) == repository


def _take_out(modules: dict[str, ModuleType]) -> None:
    for name in modules:
        del sys.modules[name]
