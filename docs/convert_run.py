"""Converts stored runs of schema 5, with five append-only files, to one file per launch.

    python docs/convert_run.py reports/NAME ...

Damaged launches are left out and named. The old files are removed once everything is written, and
kept if a launch is damaged. A conversion that was interrupted can be started again.
"""

from __future__ import annotations

import json
import shutil
import sys
import zlib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.records import files, store
from bench.records.rows import SCHEMA

KINDS = ("samples", "cells", "traces", "losses")


def convert(directory: Path) -> None:
    """Convert the run in a folder."""
    path = directory / store.MANIFEST
    manifest = files.unsealed(path.read_bytes()) if path.is_file() else None
    if manifest is None or manifest["schema"] != SCHEMA - 1:
        raise SystemExit(f"{directory} is not an undamaged run of schema {SCHEMA - 1}")
    paths = {kind: directory / f"{kind}.jsonl" for kind in KINDS}
    texts = {kind: path.read_bytes() if path.exists() else b"" for kind, path in paths.items()}
    launches, damaged = directory / "launches.jsonl", False
    shutil.rmtree(directory / store.LAUNCHES, ignore_errors=True)
    lines = launches.read_bytes().splitlines(keepends=True) if launches.exists() else []
    for number, line in enumerate(lines, 1):
        launch = files.unsealed(line)
        rows = {} if launch is None else {k: _rows(texts[k], launch, k) for k in KINDS}
        if launch is None or None in rows.values():
            sys.stderr.write(f"{directory}: launch {number} is damaged and left out\n")
            damaged = True
            continue
        store.add_launch(directory, blocks=launch["blocks"], **rows)  # type: ignore[arg-type]
    store.write_manifest(directory, {**manifest, "schema": SCHEMA})  # type: ignore[typeddict-item]
    for path in () if damaged else (*paths.values(), launches):
        path.unlink(missing_ok=True)


def _rows(text: bytes, launch: dict[str, dict], kind: str) -> list[dict] | None:
    """The rows of a launch in one of the old files; None if they are damaged."""
    extent = launch["stored"].get(f"{kind}.jsonl", {"offset": 0, "bytes": 0, "crc32": 0})
    part = text[extent["offset"] : extent["offset"] + extent["bytes"]]
    if len(part) != extent["bytes"] or zlib.crc32(part) != extent["crc32"]:
        return None
    return [json.loads(line) for line in part.splitlines()]


if __name__ == "__main__":
    for name in sys.argv[1:]:
        convert(Path(name))
