"""Tables, each described once, whoever shows it: Markdown, HTML, the page's script, a terminal.

A `Column` has a heading, a number format and a value; a `Table` has columns and rows of any type.
Text renderers read `Table.headings` and `Table.body`. The report's page gets `Table.for_page`: raw
values with the names of their formats, which bench/present/web/format.js knows too, so that it can
sort, filter and search any table without knowing which it is.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from bench.records import numbers
from bench.records.statuses import STATUSES

FORMATS: dict[str, Callable[[Any], str]] = {
    "text": str,
    "command": str,
    "status": lambda value: STATUSES[value].label,
    "count": lambda value: f"{value:.0f}",
    "bytes": numbers.bytes_,
    "percent": numbers.percent,
    "ratio": numbers.ratio,
    "scientific": numbers.scientific,
    "seconds": numbers.seconds,
    "significant": numbers.significant,
}
"""Ways to write a value. Any other name is an SI unit, `s` or `FLOP/s`, written with a prefix;
with a plus before it, `+s`, positive values get one too. `si` stands for no unit."""

DIGITS = 7
"""Significant digits of numbers on a page, which shows three or four: rounding twice must not show
another last digit than rounding once does."""


def missing(value: Any) -> bool:
    """Whether there is no value: None, NaN or infinity."""
    return value is None or (isinstance(value, float) and not math.isfinite(value))


def formatted(value: Any, name: str) -> str:
    """A value in the format of this name; a dash where there is no value."""
    if missing(value):
        return numbers.MISSING
    if name in FORMATS:
        return FORMATS[name](value)
    unit = "" if name == "si" else name.removeprefix("+")
    text = numbers.si(value, unit).strip(numbers.NARROW)
    return numbers.signed(value, text) if name[0] == "+" else text


def between(low: Any, high: Any, name: str) -> str:
    """`1.20-1.31 ms` with an en dash; empty where either end is missing."""
    if missing(low) or missing(high):
        return ""
    if name in FORMATS:
        return f"{formatted(low, name)}\N{EN DASH}{formatted(high, name)}"
    return numbers.range_si(low, high, name)


def shortened(values: Iterable[float | None], digits: int = DIGITS) -> list[float | None]:
    """Numbers rounded to so many significant digits for JSON; None where there is no value."""
    return [
        None if value is None or missing(value) else float(f"{value:.{digits}g}")
        for value in values
    ]


@dataclass(frozen=True)
class Figure:
    """A value as text, and what qualifies it, shown smaller."""

    main: str
    note: str = ""


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    key: str
    """Its name in files. The value is the row's item or attribute of that name, unless given."""
    title: str
    note: str = ""
    """Qualifies the title."""
    format: str = "text"
    value: Callable[[Any], Any] | None = None
    """Computes a row's value; may return None where there is none, or a `Figure`."""
    detail: Callable[[Any], str] | None = None
    """Qualifies a row's value; shown smaller."""
    span: tuple[str, str] | None = None
    """Names of two items of a row that are the ends of an interval, for the detail."""
    filter: bool = False
    """Whether a page offers the column's values to choose from."""
    long: bool = False
    """Whether a page may fold the text."""
    optional: bool = False
    """Whether to leave the column out of a table in which it has no value."""
    only: Literal["", "page", "cell", "text"] = ""
    """Where it is shown, if not everywhere: on the page, there in the description of a single cell
    alone, or in texts (Markdown, terminal)."""

    def of(self, row: Any) -> Any:
        """The value in a row; None where there is none."""
        value = self.value(row) if self.value else item(row, self.key)
        return None if missing(value) else value

    def figure(self, row: Any) -> Figure:
        """The text in a row."""
        value = self.of(row)
        if isinstance(value, Figure):
            return value
        return Figure(formatted(value, self.format), self.detail_of(row))

    def detail_of(self, row: Any) -> str:
        """The smaller text in a row; empty if there is none."""
        if self.detail:
            return self.detail(row)
        if self.span:
            low, high = (item(row, key) for key in self.span)
            return between(low, high, self.format)
        return ""

    def for_page(self) -> dict[str, Any]:
        """How the page's script is to show it."""
        described = {
            "key": self.key, "title": self.title, "note": self.note, "filter": self.filter,
            "format": self.format if self.format != "text" else "",
            "long": self.long, "only": self.only,
        }  # fmt: skip
        return {name: value for name, value in described.items() if value}


def item(row: Any, key: str) -> Any:
    """A row's item or attribute."""
    return row[key] if isinstance(row, Mapping) else getattr(row, key)


@dataclass(frozen=True)
class Line:
    """A row as text: its first column, and the others."""

    name: str
    note: str
    figures: list[Figure]


@dataclass(frozen=True)
class Table:
    """Columns and rows. The first column names the row. Without rows, there is nothing to show."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Any]
    facts: Sequence[str] = ()
    """What holds for all rows, for the caption."""
    remarks: Sequence[str] = ()
    """What is said of single rows, below the table."""
    name: str = ""
    """Name of its section on the page, and of the file that the page offers for download."""
    cell: Callable[[Any], str] | None = None
    """Name of the cell that a row is about, to which its first column leads on a page."""

    def __bool__(self) -> bool:
        return bool(self.rows)

    def shown(self, *places: str) -> list[Column]:
        """The columns for these places, as of `Column.only`, that have something to show."""
        return [
            column
            for column in self.columns
            if column.only in ("", *places)
            and not (column.optional and all(column.of(row) is None for row in self.rows))
        ]

    @property
    def headings(self) -> list[Figure]:
        """Return the headings of the columns that a text shows."""
        return [Figure(column.title, column.note) for column in self.shown("text")]

    @property
    def left(self) -> list[bool]:
        """Whether each column of a text is aligned left, as words are, or right, as numbers are."""
        texts = ("text", "command", "status")
        return [column.format in texts for column in self.shown("text")]

    @property
    def body(self) -> list[Line]:
        """The rows of a text."""
        first, *others = self.shown("text")
        return [
            Line(name.main, name.note, [column.figure(row) for column in others])
            for row in self.rows
            for name in [first.figure(row)]
        ]

    def for_page(self, cells: Mapping[str, int]) -> dict[str, Any]:
        """Its columns and values, column by column, as bench/present/web/table.js shows them.

        Args:
          cells: places of cells on the page, by name.
        """
        shown = self.shown("page", "cell")
        details = {c.key: [c.detail_of(row) for row in self.rows] for c in shown}
        return {
            "title": self.title,
            "name": self.name,
            "facts": self.facts,
            "columns": [column.for_page() for column in shown],
            "values": {column.key: packed(map(column.of, self.rows)) for column in shown},
            "details": {key: packed(texts) for key, texts in details.items() if any(texts)},
            "cell": [cells[self.cell(row)] for row in self.rows] if self.cell else [],
        }


def packed(values: Iterable[Any]) -> Any:
    """A column's values; of texts that repeat, each once, and its places."""
    listed = [shortened([value])[0] if isinstance(value, float) else value for value in values]
    texts = list(dict.fromkeys(listed))
    if not any(isinstance(text, str) for text in texts) or 2 * len(texts) > len(listed):
        return listed
    places = {text: place for place, text in enumerate(texts)}
    return {"texts": texts, "at": [places[text] for text in listed]}
