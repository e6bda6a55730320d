"""Import of implementations and workloads, named after their files, also from another revision."""

import importlib
import importlib.util
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from types import ModuleType

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

if sys.flags.safe_path:  # the user's files import from here as well, after Lockstep is imported
    sys.path.insert(0, str(Path.cwd()))

_loaded: dict[str, ModuleType] = {}
"""Modules that `load` has imported, by name: a file could change `sys.modules`."""


def load(path: Path) -> ModuleType:
    """Import a file as a module, once per process; a foreign file is not executed here.

    An implementation that another file has imported, and perhaps changed, is imported anew.
    """
    if foreign := foreign_module(path.resolve(), isolated=False):
        return foreign
    folder = path.parent.resolve()
    if folder == Path(bench.contract.workloads.__path__[0]).resolve():
        return importlib.import_module(f"{bench.contract.workloads.__name__}.{path.stem}")
    is_own = folder == Path(implementations.__path__[0]).resolve()
    # A unique name keeps a file called json.py from replacing the module json.
    outside = f"lockstep_outside_{path.stem}_{abs(hash(path.resolve()))}"
    name = f"{implementations.__name__}.{path.stem}" if is_own else outside
    if name not in _loaded:
        sys.modules.pop(name, None)
        _loaded[name] = importlib.import_module(name) if is_own else _execute(name, path)
    return _loaded[name]


def _execute(name: str, path: Path) -> ModuleType:
    """Import a file that no finder knows, under this name."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_INSTALLED = {"site-packages", "dist-packages"}
_STANDARD = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")]


_of_checkouts: dict[Path, dict[str, ModuleType]] = {}
"""The modules that `base_modules` has imported from each checkout."""


@contextmanager
def base_modules(worktree: Path, repository: Path) -> Iterator[None]:
    """Let imports find a checkout of another revision, `worktree`.

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
    aside, path = modules_of(repository), list(sys.path)
    _replace(aside, _of_checkouts.get(worktree, {}))
    places = [Path(entry).resolve() for entry in path]  # an empty entry is the working directory
    sys.path[:] = [
        str(worktree / place.relative_to(repository)) if is_of(str(place), repository) else entry
        for entry, place in zip(path, places, strict=True)
    ]
    try:
        yield
    finally:
        own = _of_checkouts[worktree] = modules_of(worktree)
        strays = modules_of(repository)
        _replace(own | strays, aside)
        sys.path[:] = path
    if strays:
        raise ImportError(
            f"the base revision imported {', '.join(sorted(strays))} from the working tree, by an "
            "import hook that ignores sys.path, so that the two cannot be compared"
        )


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
        if name != "__main__" and isinstance(place, str) and is_of(place, repository):
            modules[name] = module
    return modules


@cache
def is_of(place: str, repository: Path) -> bool:
    """Whether a file or folder belongs to a repository, and is not installed or cloned inside."""
    path = Path(place).resolve()
    other = any(path.is_relative_to(folder) for folder in _STANDARD) or _INSTALLED & {*path.parts}
    if other or not path.is_relative_to(repository):
        return False
    return next((p for p in (path, *path.parents) if (p / ".git").exists()), None) == repository
