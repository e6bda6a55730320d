"""Proofs and programs that a run keeps for later runs, in the user's cache folder.

An entry has the proof and the compile times of a cell that ended as ok in a first launch, and its
compiled programs; one more entry for each block has the programs of the gate. Programs are copied
between entries and the run's own compilation cache, which no other run changes.
"""

import contextlib
import io
import json
import platform
import sys
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, cast

from bench.measure.environment import relevant_variables, worker_environment
from bench.plan.content_keys import Contents, digest
from bench.records import user_cache
from bench.records.cells import Block, Cell
from bench.records.messages import GATE, Catalogue
from bench.records.paths import ROOT
from bench.records.rows import CellRow
from bench.records.variants import Variant

ACCOUNTED = {
    *("__future__", "abc", "collections", "contextlib", "contextvars", "copy", "dataclasses"),
    *("enum", "functools", "itertools", "math", "numbers", "operator", "pydoc_data", "re"),
    *("string", "types", "typing", "jax", "jaxlib", "flax", "optax", "numpy", "equinox"),
}
"""What the files of a cell may import from elsewhere if it is to be kept. Other modules may read
files and variables, and a package that is installed for editing changes without a new version."""

Keys = dict[str, str | None]
"""Of a launch's entries, by implementation and GATE; None where nothing may be kept."""
Known = dict[str, dict[str, Any]]
"""What entries say, by the same names: `run`, `proof`, and `compile` if it was cold; or nothing."""


def entry_keys(
    contents: Contents,
    catalogue: Catalogue,
    variants: Iterable[Variant],
    block: Block,
    arms: Sequence[str],
) -> Keys:
    """Hash all that the proofs and programs of a block's arms depend on.

    That is a cell's content key and the names of its files, the files of workers, the variables
    that change how XLA and its libraries run, the versions of installed packages, the processor.

    Raises:
      BadInput: a file cannot be read.
    """
    processes = block.options.processes
    environment = worker_environment(catalogue["platform"], block.mesh.size // processes, processes)
    for variant in variants:
        if variant.name == block.options.variant:
            environment = variant.applied(environment)
    shared = [relevant_variables(environment), _workers(), _machine()]
    keys: Keys = {}
    for name in [*arms, *([GATE] if arms else [])]:
        cell = Cell(block, name if name in arms else "")
        parts = json.dumps([contents.key(cell), contents.sources(cell), shared], sort_keys=True)
        accounted = contents.elsewhere(cell) <= ACCOUNTED
        keys[name] = digest(parts.encode(), 32) if accounted else None
    return keys


def recall(keys: Keys, folder: Path) -> Known:
    """Unpack the programs of entries into a compilation cache, and return what else they say."""
    known: Known = {}
    for name, key in keys.items():
        content = user_cache.read(f"cells/{key}.zip")
        if content is not None:  # where programs cannot be unpacked, everything is done again
            with zipfile.ZipFile(io.BytesIO(content)) as archive, contextlib.suppress(OSError):
                archive.extractall(folder / name)
                known[name] = json.loads(archive.comment)
    return known


def completed(row: CellRow, known: Known) -> CellRow:
    """Add to a first launch's row the proof and the cold compile times that it took as known."""
    entry = known.get(row["implementation"])
    if entry is None or row["status"] != "ok":
        return row
    more: dict[str, Any] = {}
    own = {check["name"] for check in row["proof"]}
    if proof := [check for check in entry["proof"] if check["name"] not in own]:
        more |= {"proof": proof + row["proof"], "proved_in": entry["run"]}
    if "compile" in entry and row["compile"]["cache_hits"]:
        more |= {"compile": entry["compile"], "compiled_in": entry["run"]}
    return cast("CellRow", {**row, **more})


def remember(rows: Iterable[CellRow], keys: Keys, known: Known, folder: Path, run: str) -> None:
    """Keep what a run's launch has proved and compiled in a folder, of cells that are ok."""
    entries: Known = {}
    for row in rows:
        # What another file's settings have changed belongs to no key.
        if row["status"] == "ok" and "proof" in row and "jax_config" not in row:
            entries[row["implementation"]] = {"run": run, "proof": row["proof"]}
            if not row["compile"]["cache_hits"]:  # no worker has died and left programs
                entries[row["implementation"]]["compile"] = row["compile"]
    for name, entry in [*entries.items(), *([(GATE, {})] if entries else [])]:
        if (key := keys.get(name)) is not None and name not in known:
            packed = io.BytesIO()
            with contextlib.suppress(OSError), zipfile.ZipFile(packed, "w") as archive:
                archive.comment = json.dumps(entry).encode()
                for path in sorted((folder / name).rglob("*")):
                    archive.write(path, path.relative_to(folder / name))
            user_cache.write(f"cells/{key}.zip", packed.getvalue())


def _workers() -> str:
    """Hash the files that prove, and this one."""
    rooms = [ROOT / "bench" / room for room in ("worker", "records")]
    files = [path for room in rooms for path in sorted(room.rglob("*.py"))]
    files += [*sorted((ROOT / "bench/contract").glob("*.py")), Path(__file__)]
    return digest(b"\0".join(path.read_bytes() for path in files))


def _machine() -> list[str]:
    """List the installed packages with their versions, and what the processor can do."""
    found = {path.name for folder in sys.path for path in Path(folder).glob("*.dist-info")}
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        found |= {line for line in lines if line.startswith(("model name", "flags", "Features"))}
    return sorted({*found, platform.machine()})
