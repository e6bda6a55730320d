"""A drawn figure, as it is written into a report."""

from dataclasses import dataclass
from pathlib import Path

from bench.records import files


@dataclass(frozen=True)
class Plot:
    """One figure, drawn."""

    slug: str
    """File name under plots/ without its suffix; unique in the report."""
    svg: str
    png: bytes

    def write(self, folder: Path) -> None:
        """Write `<slug>.svg` and `<slug>.png`."""
        files.write(folder / f"{self.slug}.svg", self.svg)
        files.write(folder / f"{self.slug}.png", self.png)
