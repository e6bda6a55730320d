"""What a projection is asked for, read from the command line. Imports no jax."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench.plan.matrix import BadInput
from bench.project.hardware import Hardware, UnknownHardwareError, hardware
from bench.project.link_placement import PlacementError, place
from bench.records.cells import PRECISIONS
from bench.records.mesh import MeshShape

MOST_CHIPS = 65_536


def sheets(text: str) -> list[Hardware]:
    """Hardware by its names, `h100-sxm,tpu-v5p`, each once.

    Raises:
      BadInput: there is no such sheet; names those that there are.
    """
    found, faults = [], []
    for name in dict.fromkeys(_words(text)):
        try:
            found.append(hardware(name))
        except UnknownHardwareError as error:
            faults.append(f"--hardware: {error}")
    if faults or not found:
        raise BadInput(faults or ["--hardware: name at least one chip"])
    return found


def chip_counts(text: str, most: int = MOST_CHIPS) -> list[int]:
    """Numbers of chips, `8,16,24` or `8..65536`, which doubles; in order, each once.

    Raises:
      BadInput: it is no such list, or a number is not from 1 to `most`.
    """
    found: set[int] = set()
    faults = []
    for word in _words(text):
        first, dots, last = word.partition("..")
        ends = (first, last) if dots else (first, first)
        if not all(end.isascii() and end.isdigit() for end in ends):
            faults.append(f"--chips: {word!r} is not a number, nor a range such as 8..65536")
            continue
        low, high = map(int, ends)
        if not 1 <= low <= high <= most:
            order = ", the smaller first" if dots else ""
            faults.append(f"--chips: {word!r} is not within 1 to {most:,}{order}")
            continue
        while low <= high:
            found.add(low)
            low *= 2
    if faults or not found:
        raise BadInput(faults or ["--chips: name at least one number"])
    return sorted(found)


def unavailable(wanted: Sequence[Hardware], chips: Sequence[int]) -> Iterator[str]:
    """Which hardware has no slice, or no links, for which numbers of chips."""
    for sheet in wanted:
        for count in chips:
            try:
                place(sheet, MeshShape((("data", count),)))
            except PlacementError as error:
                yield f"--chips {count}: {error}"


def without_peak(wanted: Sequence[Hardware], precisions: Sequence[str]) -> Iterator[str]:
    """Which hardware has no published peak for which precisions."""
    for sheet in wanted:
        for precision in precisions:
            if sheet.peak(precision) is None:
                has = ", ".join(one for one in PRECISIONS if sheet.peak(one)) or "none"
                yield (
                    f"--precision: {sheet.name} has no published peak for {precision}; it has {has}"
                )


def _words(text: str) -> list[str]:
    return [word for word in text.replace(",", " ").split() if word]
