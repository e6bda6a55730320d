"""What a cell's numbers are of, as a hash of contents. Imports no jax.

A key is of the files of the implementation and of the workload, and of what these import: of the
project, or from beside them, but nothing that is installed. It is also of the workload's size, the
mesh, the global batch, the step's options with the variables of their variant, the versions of the
packages, the platform and the device. It is not of names, so that a file that is only renamed keeps
its key, and not of the harness: gate and clock belong to the commit that the manifest tells.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from bench.plan.option_values import BadInput
from bench.records.cells import Cell
from bench.records.messages import BaseFile, Catalogue
from bench.records.paths import ROOT
from bench.records.rows import Sources
from bench.records.variants import Variant

DIGITS = 16
"""Of a hash, in hexadecimal."""

BY_OPTIONS = "bench.contract.clipping"
"""What the step's options may bring into a workload that does not import it."""

_INSTALLED = {"site-packages", "dist-packages"}


class Contents:
    """What cells are made of now. Every file is read once, when it is first asked for.

    Args:
      catalogue: where implementations and workloads lie, and what runs them.
      variants: other environments that blocks are measured in.
      bases: files of arms that are another revision. What they import comes from there as well.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        variants: Sequence[Variant] = (),
        bases: Mapping[str, BaseFile] | None = None,
    ) -> None:
        self._catalogue = catalogue
        self._variants = {variant.name: dict(variant.variables) for variant in variants}
        self._bases = bases or {}
        self._implementations = {e["name"]: e["path"] for e in catalogue["implementations"]}
        self._workloads = {e["name"]: e["path"] for e in catalogue["workloads"]}
        self._implementation = cache(self._files_of_implementation)
        self._workload = cache(self._files_of_workload)

    def sources(self, cell: Cell) -> Sources:
        """Hashes of a cell's files.

        Raises:
          BadInput: one cannot be read.
        """
        return {
            "implementation": self._implementation(cell.implementation),
            "workload": self._workload(cell.block.workload),
        }

    def key(self, cell: Cell) -> str:
        """The cell's key.

        Raises:
          BadInput: one of its files cannot be read.
        """
        block, catalogue = cell.block, self._catalogue
        parts = [
            {part: sorted(files.values()) for part, files in self.sources(cell).items()},
            *(block.size, str(block.mesh), block.batch),
            *(str(block.options), self._variants.get(block.options.variant)),
            *(catalogue["versions"], catalogue["platform"], catalogue["device_kind"]),
        ]
        return _hash(json.dumps(parts, sort_keys=True).encode())

    def _files_of_implementation(self, name: str) -> dict[str, str]:
        base = self._bases.get(name)
        if base is None:
            return hashes(Path(self._implementations[name]))
        return hashes(Path(base["path"]), roots=[_counterpart(root, base) for root in _roots()])

    def _files_of_workload(self, name: str) -> dict[str, str]:
        return hashes(Path(self._workloads[name]), BY_OPTIONS)


def changed(cell: Cell, then: Sources, now: Sources) -> Iterator[str]:
    """Which files of a cell differ: its own by their names, others by their paths."""
    own = {"implementation": cell.implementation, "workload": cell.block.workload}
    for part, before in then.items():
        name, after = own[part], now[part]
        for file in dict.fromkeys([*before, *after]):
            if before.get(file) != after.get(file):
                yield f"{part} {name}" if file == f"{name}.py" else file


def hashes(path: Path, *modules: str, roots: Sequence[Path] | None = None) -> dict[str, str]:
    """Hashes of a file, of these modules, and of what all of them import, directly or not.

    What is imported under a name that the program computes is not seen.

    Args:
      path: of the file.
      modules: full names.
      roots: folders that are imported from; where a worker imports from if None.

    Raises:
      BadInput: a file cannot be read.
    """
    roots = _roots() if roots is None else roots
    text = _read(path)
    found = {path.name: _hash(text)}
    names = [*modules, *_imported(text, "")]
    while names:
        name = names.pop()
        for root in roots:
            file = _file(root, name)
            if file is None:
                continue
            label = file.relative_to(root).as_posix()
            if label not in found:
                text = _read(file)
                found[label] = _hash(text)
                package = name if file.name == "__init__.py" else name.rpartition(".")[0]
                names += _imported(text, package)
            break
    return dict(sorted(found.items()))


def _roots() -> list[Path]:
    """Where a worker imports from, but for what is installed."""
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    folders = [Path.cwd(), ROOT, *(Path(entry).resolve() for entry in inherited if entry)]
    return [folder for folder in dict.fromkeys(folders) if not _INSTALLED & set(folder.parts)]


def _counterpart(root: Path, base: BaseFile) -> Path:
    """Where another revision has this folder, if it is of its repository: as bench.worker.base_modules."""
    repository = Path(base["repository"])
    if not root.is_relative_to(repository):
        return root
    return Path(base["worktree"]) / root.relative_to(repository)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadInput([f"{path} cannot be read: {error.strerror}"]) from error


def _file(root: Path, name: str) -> Path | None:
    """A module's file below a folder."""
    place = root.joinpath(*name.split("."))
    files = (place / "__init__.py", place.with_name(f"{place.name}.py"))
    return next((file for file in files if file.is_file()), None)


@cache  # files that many share are read again and again, and are the same nearly always
def _imported(text: bytes, package: str) -> tuple[str, ...]:
    """Full names of modules that a file may import, wherever in the file, and of their packages."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):  # its import will say so
        return ()
    found = dict[str, None]()
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) + 1 - node.level]
            module = ".".join(filter(None, [*(base if node.level else ()), node.module]))
            # What is imported from a package may be a module of it.
            names = [module, *(f"{module}.{alias.name}" for alias in node.names)]
        for name in names:
            parts = name.split(".")
            found |= dict.fromkeys(".".join(parts[: count + 1]) for count in range(len(parts)))
    return tuple(found)


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:DIGITS]
