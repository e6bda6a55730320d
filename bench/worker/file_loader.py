"""Import of implementations and workloads, named after their files, also from another revision."""

import importlib
import importlib.util
import sys
import sysconfig
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Self

import bench.contract.workloads
import implementations
from bench.worker.foreign.foreign_module import foreign_module


def python_files(package: ModuleType, outside: list[str]) -> dict[str, Path]:
    """Return files by name: the package's, with its subfolder `foreign`, and those from outside."""
    folder = Path(package.__path__[0])
    own = [*sorted(folder.glob("*.py")), *sorted(folder.glob("foreign/*.py"))]
    paths = [path for path in own if not path.stem.startswith("_")]
    return {path.stem: path for path in [*paths, *map(Path, outside)]}


implementation_files = partial(python_files, implementations)
workload_files = partial(python_files, bench.contract.workloads)
"""Return the files of implementations/ or bench/contract/workloads/, and those from outside."""

_loaded: dict[str, ModuleType] = {}
"""Modules that `load` has imported, by name: a file could change `sys.modules`."""


def load(path: Path) -> ModuleType:
    """Import a file as a module, once per process; a foreign file is not executed here.

    An implementation that another file has imported, and perhaps changed, is imported anew.
    """
    if foreign := foreign_module(path.resolve(), isolated=False):
        return foreign
    if path.parent.resolve() == Path(bench.contract.workloads.__path__[0]).resolve():
        return importlib.import_module(f"{bench.contract.workloads.__name__}.{path.stem}")
    if path.parent.resolve() == Path(implementations.__path__[0]).resolve():
        if (name := f"{implementations.__name__}.{path.stem}") not in _loaded:
            sys.modules.pop(name, None)
            _loaded[name] = importlib.import_module(name)
        return _loaded[name]
    # A unique name keeps a file called json.py from replacing the module json.
    name = f"lockstep_outside_{path.stem}_{abs(hash(path.resolve()))}"
    if name in _loaded:
        return _loaded[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    _loaded[name] = module
    return module


_INSTALLED = {"site-packages", "dist-packages"}
_STANDARD = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")]


class BaseModules:
    """A context in which imports find a checkout of another revision, `worktree`.

    On entry, modules of the `repository` are removed from `sys.modules`, and its entries of
    `sys.path` are replaced by the same folders of the checkout. Code that already refers to such
    modules, as the harness does, continues to use them. On exit everything is restored. Modules
    imported meanwhile are kept for the next entry, but are not in `sys.modules` outside the
    context, so that a function that imports when called finds the working tree's modules there.

    Both paths are resolved. What is installed inside the repository (a virtual environment) or
    cloned into it does not count as part of it.

    Raises:
      ImportError: on exit, if a finder that ignores `sys.path` has imported modules of the working
        tree, which would have been measured instead of the base's.
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
        _replace(self._aside, self._own)
        sys.path[:] = [self._counterpart(entry) for entry in sys.path]
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._own = modules_of(self._worktree)
        strays = modules_of(self._repository)
        _replace(self._own | strays, self._aside)
        sys.path[:] = self._path
        if strays and error is None:
            raise ImportError(
                f"the base revision imported {', '.join(sorted(strays))} from the working tree, by "
                "an import hook that ignores sys.path, so that the two cannot be compared"
            )

    def _counterpart(self, entry: str) -> str:
        """Map an entry of `sys.path` in the repository to the checkout; keep other entries."""
        path = Path(entry).resolve()  # an empty entry is the working directory
        own = is_of(path, self._repository)
        return str(self._worktree / path.relative_to(self._repository)) if own else entry


def _replace(modules: Mapping[str, ModuleType], by: Mapping[str, ModuleType]) -> None:
    for name in modules:
        del sys.modules[name]
    sys.modules.update(by)


def modules_of(repository: Path) -> dict[str, ModuleType]:
    """Return the imported modules that belong to a repository, except the main program."""
    modules = {}
    for name, module in list(sys.modules.items()):
        # getattr would make some modules import others.
        names = getattr(module, "__dict__", {})
        place = names.get("__file__") or next(iter(names.get("__path__") or ()), None)
        if name != "__main__" and isinstance(place, str) and _is_inside(place, repository):
            modules[name] = module
    return modules


@cache
def _is_inside(place: str, repository: Path) -> bool:
    return is_of(Path(place).resolve(), repository)


def is_of(path: Path, repository: Path) -> bool:
    """Whether a resolved path belongs to a repository, and is not installed or cloned inside it."""
    other = any(path.is_relative_to(folder) for folder in _STANDARD) or _INSTALLED & {*path.parts}
    if other or not path.is_relative_to(repository):
        return False
    return next((p for p in (path, *path.parents) if (p / ".git").exists()), None) == repository
