"""A request for predictions, as read from the command line."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from bench.plan.option_values import BadInput
from bench.plan.selection import everything
from bench.project.hardware import Hardware, HardwareError, hardware
from bench.project.link_placement import place
from bench.project.mesh_growth import Scaling
from bench.records.cells import PRECISIONS
from bench.records.mesh import MeshShape

MOST_CHIPS = 65_536


@dataclass(frozen=True)
class Request:
    """The hardware and the numbers of chips to which a run is projected."""

    hardware: tuple[Hardware, ...]
    chips: tuple[int, ...]
    scaling: Scaling = "weak"
    precision: str | None = None
    """None for the run's own."""
    select: Callable[[str], bool] = everything
    """Selects the cells to project by name; all cells of the run serve for calibration."""


def sheets(text: str) -> list[Hardware]:
    """Return the hardware sheets of a list of names such as `h100-sxm,tpu-v5p`, each once.

    Raises:
      BadInput: a sheet does not exist; the message lists those that do.
    """
    found, faults = [], []
    for name in dict.fromkeys(_words(text)):
        try:
            found.append(hardware(name))
        except ValueError as error:
            faults.append(f"--hardware: {error}")
    if faults or not found:
        raise BadInput(faults or ["--hardware: name at least one chip"])
    return found


def chip_counts(text: str, most: int = MOST_CHIPS) -> list[int]:
    """Return the numbers of a list such as `8,16,24` or `8..65536` (doubling), sorted, each once.

    Raises:
      BadInput: the text is no such list, or a number is not from 1 to `most`.
    """
    counts: set[int] = set()
    faults = []
    for word in _words(text):
        ends = re.fullmatch(r"([0-9]+)(?:\.\.([0-9]+))?", word)
        low, high = (int(ends[1]), int(ends[2] or ends[1])) if ends else (0, 0)
        if ends is None:
            faults.append(f"--chips: {word!r} is not a number, nor a range such as 8..65536")
        elif not 1 <= low <= high <= most:
            order = ", the smaller number first" if ends[2] else ""
            faults.append(f"--chips: {word!r} is not within 1 to {most:,}{order}")
        else:
            counts |= {low * 2**power for power in range((high // low).bit_length())}
    if faults or not counts:
        raise BadInput(faults or ["--chips: name at least one number"])
    return sorted(counts)


def unavailable(wanted: Sequence[Hardware], chips: Sequence[int]) -> Iterator[str]:
    """Yield faults of numbers of chips for which hardware has no slice, or no links."""
    for sheet in wanted:
        for count in chips:
            try:
                place(sheet, MeshShape((("data", count),)))
            except HardwareError as error:
                yield f"--chips {count}: {error}"


def without_peak(wanted: Sequence[Hardware], precisions: Sequence[str]) -> Iterator[str]:
    """Yield faults of precisions for which hardware has no published peak."""
    for sheet in wanted:
        has = [one for one in PRECISIONS if sheet.peak(one)]
        listed = f"it has {', '.join(has) or 'none'}"
        for precision in precisions:
            if precision not in has:
                yield f"--precision: {sheet.name} has no published peak for {precision}; {listed}"


def _words(text: str) -> list[str]:
    return text.replace(",", " ").split()
