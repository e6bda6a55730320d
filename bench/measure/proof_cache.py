"""Proofs and compiled programs that are cached for later runs, in the user's cache folder.

An entry holds the proof, the compile times, the compiled programs, and the figures read from them,
of a cell that was ok in a first launch; one more entry per block holds the gate's programs.
Programs are copied between entries and the run's own compilation cache, which no other run
modifies.
"""

import contextlib
import io
import json
import platform
import shutil
import sys
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, cast

from bench.measure.environment import relevant_variables, worker_environment
from bench.plan.content_keys import Contents
from bench.records import user_cache
from bench.records.cells import Block, Cell
from bench.records.files import digest
from bench.records.host import shown
from bench.records.messages import GATE
from bench.records.paths import ROOT
from bench.records.rows import CellRow
from bench.records.step_programs import figures_of

ACCOUNTED = {
    *("__future__", "abc", "collections", "contextlib", "contextvars", "copy", "dataclasses"),
    *("enum", "functools", "itertools", "math", "numbers", "operator", "pydoc_data", "re"),
    *("string", "types", "typing", "jax", "jaxlib", "flax", "optax", "numpy", "equinox"),
}
"""Modules outside the project that the files of a cached cell may import. Any other may read files
or variables, or be an editable install, which changes without a new version."""

Keys = dict[str, str]
"""Names of entries in the user's cache, by implementation and GATE, of what may be cached."""
Known = dict[str, dict[str, Any]]
"""Contents of entries by the same names: `run`, `proof`, `figures`, and `compile` if cold."""
ROOM = 64 << 20
"""Free bytes beside a run's programs below which it caches none: jax may have truncated some, which
it would neither read nor replace."""

CONTENT = "content.json"
"""Name of a cell's content among the programs of its entry."""


def entry_keys(contents: Contents, block: Block, arms: Sequence[str]) -> Keys:
    """Name the entries by hashes of all on which the proofs and programs of a block's arms depend.

    These are the cell's content key, the names of its files, the worker's files, the variables that
    change how XLA and its libraries run, the versions of installed packages, and the processor.
    Raises BadInput if a file cannot be read.
    """
    processes = block.options.processes
    devices = block.mesh.size // processes
    environment = worker_environment(contents.catalogue["platform"], devices, processes)
    if variant := contents.variants.get(block.options.variant):
        environment = variant.applied(environment)
    shared = [relevant_variables(environment), _workers(), _machine()]
    keys: Keys = {}
    for name in [*arms, *([GATE] if arms else [])]:
        cell = Cell(block, name if name in arms else "")
        parts = json.dumps([contents.key(cell), contents.sources(cell), shared], sort_keys=True)
        if contents.elsewhere(cell) <= ACCOUNTED:
            keys[name] = f"cells/{digest(parts.encode(), 32)}.zip"
    return keys


def recall(keys: Keys, folder: Path) -> Known:
    """Unpack the programs of entries into a compilation cache; return the entries' contents."""
    known: Known = {}
    for name, key in keys.items():
        packed = user_cache.read(key)
        if packed is not None:  # if programs cannot be unpacked, nothing is reused
            with zipfile.ZipFile(io.BytesIO(packed)) as archive, contextlib.suppress(OSError):
                content = json.loads(archive.read(CONTENT))
                archive.extractall(folder / name, set(archive.namelist()) - {CONTENT})
                known[name] = content
    return known


def completed(row: CellRow, known: Known) -> CellRow:
    """Add to a first launch's row the proof and the cold compile times that it reused."""
    entry = known.get(row["implementation"])
    if entry is None or row["status"] != "ok":
        return row
    more: dict[str, Any] = {}
    own = {check["name"] for check in row["proof"]}
    if proof := [check for check in entry["proof"] if check["name"] not in own]:
        more |= {"proof": proof + row["proof"], "proved_in": entry["run"]}
    if "compile" in entry and (times := row.get("compile")) and times["cache_hits"]:
        more |= {"compile": entry["compile"], "compiled_in": entry["run"]}
    return cast("CellRow", {**row, **more})


def remember(rows: Iterable[CellRow], keys: Keys, known: Known, folder: Path, run: str) -> None:
    """Cache the proofs of a launch's ok cells, and their programs from a folder."""
    entries: Known = {}
    free = 0
    with contextlib.suppress(OSError):
        free = shutil.disk_usage(folder.parent).free
    if free < ROOM:
        return
    for row in rows:
        # Settings that a file has changed are part of no key.
        if row["status"] == "ok" and "proof" in row and "jax_config" not in row:
            entry = {"run": run, "proof": row["proof"], "figures": figures_of(row, 0)}
            times = row.get("compile")
            if times and not times["cache_hits"]:  # else a worker that died had filled the cache
                entry["compile"] = times
            entries[row["implementation"]] = entry
    for name, entry in [*entries.items(), *([(GATE, {})] if entries else [])]:
        if name in keys and name not in known:
            packed = io.BytesIO()
            with contextlib.suppress(OSError), zipfile.ZipFile(packed, "w") as archive:
                archive.writestr(CONTENT, json.dumps(entry))
                for path in sorted((folder / name).rglob("*")):
                    archive.write(path, path.relative_to(folder / name))
            user_cache.write(keys[name], packed.getvalue())


def _workers() -> str:
    """Hash the files that produce proofs, and this file."""
    rooms = [ROOT / "bench" / room for room in ("worker", "records")]
    files = [path for room in rooms for path in sorted(room.rglob("*.py"))]
    files += [*sorted((ROOT / "bench/contract").glob("*.py")), Path(__file__)]
    return digest(b"\0".join(path.read_bytes() for path in files))


def _machine() -> list[str]:
    """List the installed packages with their versions, and the processor's features."""
    found = {path.name for folder in sys.path for path in Path(folder).glob("*.dist-info")}
    lines = shown("/proc/cpuinfo").splitlines()
    found |= {line for line in lines if line.startswith(("model name", "flags", "Features"))}
    return sorted({*found, platform.machine()})
