"""Discovery and import of implementations and workloads, each named after its file."""

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import bench.contract.workloads
import implementations
from bench.worker.foreign.foreign_module import foreign_module


def implementation_files(outside: list[str]) -> dict[str, Path]:
    """Return implementations by name: those in implementations/, and files from the command line.

    Foreign implementations are in the subfolder `foreign`.
    """
    return python_files(implementations, outside)


def workload_files(outside: list[str]) -> dict[str, Path]:
    """Return workloads by name: those of bench/contract/workloads/ and of the command line."""
    return python_files(bench.contract.workloads, outside)


def python_files(package: ModuleType, outside: list[str]) -> dict[str, Path]:
    """Return files by name: the package's own, sorted, and then those from outside."""
    folder = Path(package.__path__[0])
    own = [*sorted(folder.glob("*.py")), *sorted(folder.glob("foreign/*.py"))]
    paths = [path for path in own if not path.stem.startswith("_")]
    return {path.stem: path for path in [*paths, *map(Path, outside)]}


def load(path: Path) -> ModuleType:
    """Import a file as a module, once per process.

    Raises:
      ImportError: there is no such Python file.
      Exception: whatever the file raises; a foreign file is not executed here.
    """
    if (module := foreign_module(path.resolve())) is not None:
        return module
    for package in (implementations, bench.contract.workloads):
        if path.parent.resolve() == Path(package.__path__[0]).resolve():
            return importlib.import_module(f"{package.__name__}.{path.stem}")
    # A unique name keeps a file called json.py from replacing the module json.
    name = f"lockstep_outside_{path.stem}_{abs(hash(path.resolve()))}"
    if name in sys.modules:
        return sys.modules[name]
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
    return module
