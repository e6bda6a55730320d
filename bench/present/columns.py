"""Tables, each described once for all outputs: Markdown, HTML, the page's script, a terminal.

A `Column` has a heading, a number format and a value; a `Table` has columns and rows of any type.
Text renderers use `Table.shown` and `Table.body`. The report's page gets `Table.for_page`: raw
values with the names of their formats, which bench/present/web/format.js also implements, so that
generic code can sort, filter and search every table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any, Literal

from bench.records import numbers
from bench.records.statuses import STATUSES

if TYPE_CHECKING:
    from bench.analyse.ratio_intervals import Ratio


def excess(share: float) -> str:
    """Format how much longer something takes: `12.3 %`, or from a factor of 2 on, `5.20x`."""
    return numbers.percent(share) if share < 1 else numbers.significant(1 + share) + numbers.TIMES


FORMATS: dict[str, Callable[[Any], str]] = {
    "text": str,
    "status": lambda value: STATUSES[value].label,
    "count": lambda value: f"{value:.0f}",
    "bytes": numbers.bytes_,
    "percent": numbers.percent,
    "excess": excess,
    "ratio": numbers.ratio,
    "scientific": numbers.scientific,
    "significant": numbers.significant,
}
"""Number formats by name. Any other name is an SI unit, `s` or `FLOP/s`, written with a prefix;
`si` means no unit. With a plus before any name, `+s`, positive values get a sign as well."""

DIGITS = 7
"""Significant digits of numbers in the page's data. The page shows three or four: with fewer here,
rounding twice could change the last one."""


@dataclass(frozen=True)
class Figure:
    """A value as text, with a qualifier that is shown smaller."""

    main: str
    note: str = ""


def missing(value: Any) -> bool:
    """Return whether there is no value: None, NaN or infinity."""
    return value is None or (isinstance(value, float) and not isfinite(value))


def where_known(key: str, text: Callable[[Any], str]) -> Callable[[Mapping[str, Any]], str]:
    """Return a formatter of a row's item; empty where the item is missing."""
    return lambda row: "" if missing(row[key]) else text(row[key])


def formatted(value: Any, name: str) -> str:
    """Return a value in the format of this name; a dash where there is no value."""
    if missing(value):
        return numbers.MISSING
    own = name.removeprefix("+")
    if own in FORMATS:
        text = FORMATS[own](value)
    else:
        text = numbers.si(value, "" if own == "si" else own).strip(numbers.NARROW)
    return f"+{text}" if name[0] == "+" and value > 0 else text


def between(low: Any, high: Any, name: str) -> str:
    """Return `1.20-1.31 ms` with an en dash, or `-2 % to 3 %`; empty if either end is missing."""
    if missing(low) or missing(high):
        return ""
    if name in FORMATS:
        to = " to " if low < 0 else "\N{EN DASH}"
        return f"{formatted(low, name)}{to}{formatted(high, name)}"
    return numbers.range_si(low, high, name)


def ratio_figure(ratio: Ratio | None, *notes: str) -> Figure | None:
    """Return a ratio with its interval, followed by notes."""
    if ratio is None:
        return None
    interval = between(ratio.low, ratio.high, "ratio") or "no interval"
    return Figure(numbers.ratio(ratio.value), ", ".join([interval, *notes]))


def shortened(values: Iterable[Any], digits: int = DIGITS) -> list[Any]:
    """Return values for JSON: numbers rounded to significant digits, None where there is none."""
    spec = f".{digits}g"  # made once: a large page has a million numbers
    return [
        one if not isinstance(one, float) else float(format(one, spec)) if isfinite(one) else None
        for one in values
    ]


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    key: str
    """Its name in files. By default, the value is the row's item or attribute of that name."""
    title: str
    note: str = ""
    """Qualifier of the title."""
    format: str = "text"
    value: Callable[[Any], Any] | None = None
    """Computes a row's value; may return None where there is none, or a `Figure`."""
    detail: Callable[[Any], str] | None = None
    """Computes a qualifier of a row's value; shown smaller."""
    span: tuple[str, str] | None = None
    """Names of two items of a row, the ends of an interval, to show as the detail."""
    filter: bool = False
    """Whether a page offers a filter on the column's values."""
    long: bool = False
    """Whether a page may fold the text."""
    optional: bool = False
    """Whether to omit the column from a table in which it has no value."""
    only: Literal["", "page", "cell", "text"] = ""
    """The only place that shows it, if not everywhere: the page, the description of a single cell
    there, or texts (Markdown, terminal)."""

    @property
    def left(self) -> bool:
        """Whether its texts are left-aligned (words) or right-aligned (numbers)."""
        return self.format in ("text", "status")

    def of(self, row: Any) -> Any:
        """Return the value in a row; None where there is none."""
        value = self.value(row) if self.value else item(row, self.key)
        return None if missing(value) else value

    def figure(self, row: Any) -> Figure:
        """Return the text in a row."""
        value = self.of(row)
        if isinstance(value, Figure):
            return value
        return Figure(formatted(value, self.format), self.detail_of(row))

    def detail_of(self, row: Any) -> str:
        """Return the smaller text in a row; empty if there is none."""
        if self.detail:
            return self.detail(row)
        if self.span:
            low, high = (item(row, key) for key in self.span)
            return between(low, high, self.format)
        return ""

    def for_page(self) -> dict[str, Any]:
        """Return the column's description for the page's script, without what is empty."""
        names = "key", "title", "note", "format", "filter", "long", "only"
        return {name: value for name in names if (value := getattr(self, name))}


def item(row: Any, key: str) -> Any:
    """Return a row's item or attribute."""
    return row[key] if isinstance(row, dict) else getattr(row, key)


@dataclass(frozen=True)
class Table:
    """Columns and rows. The first column names the row. A table without rows is not shown."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Any]
    facts: Sequence[str] = ()
    """Facts about all rows, for the caption."""
    remarks: Sequence[str] = ()
    """Remarks on single rows, below the table."""
    name: str = ""
    """Name of its section on the page, and of the file that the page offers for download."""
    cell: Callable[[Any], str] | None = None
    """Returns the name of a row's cell, to which its first column links on a page."""

    def __bool__(self) -> bool:
        return bool(self.rows)

    def shown(self, *places: str) -> list[Column]:
        """Return the columns for these places (see `Column.only`) that are not empty."""
        return [
            column
            for column in self.columns
            if column.only in ("", *places)
            and not (column.optional and all(column.of(row) is None for row in self.rows))
        ]

    @property
    def body(self) -> list[list[Figure]]:
        """The rows of a text."""
        shown = self.shown("text")
        return [[column.figure(row) for column in shown] for row in self.rows]

    def for_page(self, cells: Mapping[str, int]) -> dict[str, Any]:
        """Return columns and values, column by column, as bench/present/web/table.js shows them.

        `cells` are the numbers of cells on the page, by name.
        """
        shown = self.shown("page", "cell")
        details = {column.key: [*map(column.detail_of, self.rows)] for column in shown}
        return {
            "title": self.title,
            "name": self.name,
            "facts": [*self.facts, *self.remarks],
            "columns": [column.for_page() for column in shown],
            "values": {column.key: shortened(map(column.of, self.rows)) for column in shown},
            "details": {key: shortened(texts) for key, texts in details.items() if any(texts)},
            "cell": [cells[self.cell(row)] for row in self.rows] if self.cell else [],
        }
