"""Files that commands add to a run's folder besides its launches, and checks for damage to them."""

import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from bench.records import files, largest_batches

PROJECTION = "projection"
"""Folder of the predictions for other hardware, and name of the page in it."""
SEALS = "checksums.json"
"""A file with the CRC-32 of all others in its folder, which belong together."""


def checksums(folder: Path, names: Iterable[str]) -> dict[str, int]:
    """Return the CRC-32 of each of these files of a folder."""
    return {name: zlib.crc32((folder / name).read_bytes()) for name in names}


def differing(folder: Path, stored: Mapping[str, int]) -> dict[str, str]:
    """Return the files that are missing or differ from their stored CRC-32, and which it is."""
    found = {}
    for name, checksum in stored.items():
        if not (folder / name).is_file():
            found[name] = "the file is missing"
        elif zlib.crc32((folder / name).read_bytes()) != checksum:
            found[name] = files.CHANGED
    return found


def seal(folder: Path) -> None:
    """Seal all files of a folder."""
    found = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    sums = checksums(folder, (path.as_posix() for path in found if path.name != SEALS))
    files.write_sealed(folder / SEALS, sums)


def broken(folder: Path) -> dict[str, str]:
    """Return what has changed in a folder since it was sealed; nothing if it never was."""
    if not (folder / SEALS).is_file():
        return {}
    sums = files.unsealed((folder / SEALS).read_bytes())
    return {SEALS: files.CHANGED} if sums is None else differing(folder, sums)


def find_projection(run_dir: Path) -> str:
    """Return the path of a run's projection from its folder; empty if it is missing or damaged."""
    page = f"{PROJECTION}/{PROJECTION}.html"
    damaged = broken(run_dir / PROJECTION).keys()
    known = (run_dir / page).is_file() and not damaged & {SEALS, f"{PROJECTION}.html"}
    return page if known else ""


def damage(folder: Path) -> list[str]:
    """List the changes to the derived files in a run's folder since they were stored."""
    projected = broken(folder / PROJECTION).items()
    again = [f"{PROJECTION}/{name}: {reason}" for name, reason in projected]
    return [*largest_batches.damage(folder), *again]
