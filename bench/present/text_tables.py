"""Tables of text, where each has figures of its own; the others are bench.present.columns.Table."""

from __future__ import annotations

from dataclasses import dataclass, field

from bench.present.columns import Figure


@dataclass(frozen=True)
class Row:
    """A line of a table."""

    name: str
    figures: list[Figure]
    note: str = ""
    """Below the name."""


@dataclass(frozen=True)
class Table:
    """A table: the first heading is the names'."""

    title: str
    headings: list[Figure]
    rows: list[Row]
    facts: list[str]
    """What holds for all rows, for the caption."""
    remarks: list[str] = field(default_factory=list)
    """What is said of single rows, below the table."""

    @property
    def left(self) -> list[bool]:
        """Whether each column is aligned left: that of the names is."""
        return [place == 0 for place in range(len(self.headings))]

    @property
    def body(self) -> list[Row]:
        """The rows, by the name that bench.present.columns.Table has for them."""
        return self.rows
