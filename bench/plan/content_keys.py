"""Content keys: hashes of everything that the figures of a cell depend on.

A key covers the files of the implementation and the workload, everything they import from the
project or from their own folders, the workload's size, the mesh, the global batch, the step options
with the variables of their variant, package versions, platform and device. It covers neither
installed packages' files, nor the names of the first two (a renamed file keeps its key), nor the
harness, whose commit is in the manifest.
"""

import ast
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from bench.plan.option_values import BadInput
from bench.records.cells import Cell
from bench.records.files import digest
from bench.records.messages import BaseFile, Catalogue
from bench.records.paths import CHECKOUT, ROOT
from bench.records.rows import Sources
from bench.records.variants import Variant

BY_OPTIONS = "bench.contract.clipping"
"""A module that step options may add to a workload that does not import it."""

_INSTALLED = {"site-packages", "dist-packages"}
"""Names of the folders into which packages are installed by default."""

_OWN = {"bench", "implementations"}
"""Packages of Lockstep, which may be installed beside others."""


class Files(NamedTuple):
    """Hashes of files, and the packages and modules that they import from elsewhere."""

    hashes: dict[str, str]
    elsewhere: set[str]


class Contents:
    """The current contents of cells. A file is read once, on first use; BadInput if it cannot be.

    `bases` are files of arms from another revision, whose imports come from that revision as well.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        variants: Sequence[Variant] = (),
        bases: Mapping[str, BaseFile] | None = None,
    ) -> None:
        self.catalogue = catalogue
        self.variants = {variant.name: variant for variant in variants}
        self._bases = bases or {}
        self._entries = {entry["name"]: entry for entry in catalogue["implementations"]}
        workloads = {entry["name"]: Path(entry["path"]) for entry in catalogue["workloads"]}
        self._implementation = cache(self._files_of_implementation)
        self._workload = cache(lambda name: read_files(workloads[name], BY_OPTIONS))

    def sources(self, cell: Cell) -> Sources:
        """Return the hashes of a cell's files; without an implementation, that part is empty."""
        return {
            "implementation": self._implementation(cell.implementation).hashes,
            "workload": self._workload(cell.block.workload).hashes,
        }

    def elsewhere(self, cell: Cell) -> set[str]:
        """Return the packages that a cell's files import from folders that are not hashed."""
        files = self._implementation(cell.implementation), self._workload(cell.block.workload)
        return files[0].elsewhere | files[1].elsewhere

    def key(self, cell: Cell) -> str:
        """Return the cell's key."""
        block, catalogue = cell.block, self.catalogue
        variant = self.variants.get(block.options.variant)
        entry = self._entries.get(cell.implementation)
        own = {f"{name.partition('@')[0]}.py": "" for name in (cell.implementation, block.workload)}
        parts = [
            {
                part: sorted((own.get(file, file), hashed) for file, hashed in files.items())
                for part, files in self.sources(cell).items()
            },
            *(block.size, str(block.mesh), block.batch),
            *(str(block.options), variant and dict(variant.variables)),
            *(catalogue["versions"], catalogue["platform"], catalogue["device_kind"]),
            *filter(None, [entry and entry.get("foreign")]),
        ]
        return digest(json.dumps(parts, sort_keys=True).encode())

    def _files_of_implementation(self, name: str) -> Files:
        if not name:
            return Files({}, set())
        base = self._bases.get(name)
        if base is None:
            return read_files(Path(self._entries[name]["path"]))
        # As bench.worker.file_loader does, import from the base's worktree.
        own, there = Path(base["repository"]), Path(base["worktree"])
        roots = [there / r.relative_to(own) if r.is_relative_to(own) else r for r in _roots()]
        return read_files(Path(base["path"]), roots=roots)


def changed(cell: Cell, then: Sources, now: Sources) -> Iterator[str]:
    """Yield the files of a cell that differ: its own by name, others by path."""
    own = {"implementation": cell.implementation, "workload": cell.block.workload}
    for part, before in then.items():
        name, after = own[part], now[part]
        for file in dict.fromkeys([*before, *after]):
            if before.get(file) != after.get(file):
                yield f"{part} {name}" if file == f"{name}.py" else file


def read_files(path: Path, *modules: str, roots: Sequence[Path] | None = None) -> Files:
    """Hash a file, further modules, and everything they import, directly or indirectly.

    Imports under computed names are not found. `modules` are full names, and `roots` are the
    folders to import from; None means those of a worker. Raises BadInput if a file cannot be read.
    """
    roots = _roots() if roots is None else roots
    text = _read(path)
    found = {path.name: digest(text)}
    names = [*modules, *_imported(text, "")]
    elsewhere = set[str]()
    while names:
        name = names.pop()
        for root in roots:
            file = _file(root, name)
            if file is None:
                continue
            label = file.relative_to(root).as_posix()
            if label not in found:
                text = _read(file)
                found[label] = digest(text)
                package = name if file.name == "__init__.py" else name.rpartition(".")[0]
                names += _imported(text, package)
            break
        else:
            if "." not in name:  # submodules are covered by their package
                elsewhere.add(name)
    return Files(dict(sorted(found.items())), elsewhere)


def _roots() -> list[Path]:
    """Return the folders from which a worker imports, Lockstep's first, but no installed ones."""
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    folders = [ROOT, Path.cwd(), *(Path(entry).resolve() for entry in inherited if entry)]
    return [
        one
        for one in dict.fromkeys(folders)
        # Packages are also installed by `pip install --target`.
        if one == ROOT or not (_INSTALLED & set(one.parts) or any(one.glob("*.dist-info")))
    ]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadInput([f"{path} cannot be read: {error.strerror}"]) from error


def _file(root: Path, name: str) -> Path | None:
    """Return a module's file below a folder, if there is one."""
    if root == ROOT and not CHECKOUT and name.partition(".")[0] not in _OWN:
        return None
    place = root.joinpath(*name.split("."))
    files = (place / "__init__.py", place.with_name(f"{place.name}.py"))
    return next((file for file in files if file.is_file()), None)


@cache  # many cells share files
def _imported(text: bytes, package: str) -> tuple[str, ...]:
    """Return the full names of all modules and packages that a file may import, at any depth."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):  # importing it will report that
        return ()
    found = dict[str, None]()
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) + 1 - node.level]
            module = ".".join(filter(None, [*(base if node.level else ()), node.module]))
            # A name imported from a package may be a module.
            names = [module, *(f"{module}.{alias.name}" for alias in node.names)]
        for name in names:
            parts = name.split(".")
            found |= dict.fromkeys(".".join(parts[: count + 1]) for count in range(len(parts)))
    return tuple(found)
