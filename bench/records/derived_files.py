"""Files that commands add to a run's folder beside its launches, and which of them are damaged.

A folder whose files belong together is sealed: SEALS, in it, has the CRC-32 of all of them.
"""

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from bench.records import files, largest_batches
from bench.records.store import Damage

PROJECTION = "projection"
"""Folder of the predictions for other hardware."""
SEALS = "checksums.json"


def checksums(folder: Path, names: Iterable[str]) -> dict[str, int]:
    """Return the CRC-32 of each of these files of a folder."""
    return {name: zlib.crc32((folder / name).read_bytes()) for name in names}


def differing(folder: Path, stored: Mapping[str, int]) -> Iterator[Damage]:
    """Yield those files of a folder that are missing, or have another CRC-32 than was stored."""
    for name, checksum in stored.items():
        if not (folder / name).is_file():
            yield Damage(name, "the file is missing")
        elif zlib.crc32((folder / name).read_bytes()) != checksum:
            yield Damage(name, files.CHANGED)


def seal(folder: Path) -> None:
    """Seal all that a folder holds."""
    found = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    sums = checksums(folder, (path.as_posix() for path in found if path.name != SEALS))
    files.write(folder / SEALS, files.sealed(json.dumps(sums, indent=2)))


def broken(folder: Path) -> list[Damage]:
    """List what has changed in a folder since it was sealed; nothing of one that never was."""
    if not (folder / SEALS).is_file():
        return []
    sums = files.unsealed((folder / SEALS).read_bytes())
    return [Damage(SEALS, files.CHANGED)] if sums is None else list(differing(folder, sums))


def damage(folder: Path) -> list[Damage]:
    """List what has changed in a run's folder, beside its launches, since it was stored."""
    projected = broken(folder / PROJECTION)
    again = [Damage(f"{PROJECTION}/{one.place}", one.reason) for one in projected]
    return [*largest_batches.damage(folder), *again]
