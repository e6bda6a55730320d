"""HTML as tests look at it."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any


class Elements(HTMLParser):
    """Every element of a page, and what stands in scripts and styles.

    Fails on a tag closed in the wrong order.
    """

    VOID = frozenset({"meta", "br", "img", "input", "link", "hr", "wbr"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, dict[str, str | None], str]] = []

    def handle_starttag(self, tag, attrs) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data) -> None:
        if self.open and self.open[-1] in {"script", "style"}:
            self.texts.append((*self.found[-1], data))


def column(data: dict[str, Any], table: str, key: str, part: str = "values") -> list[Any]:
    """A column of a table in a page's data, or its details: see bench/present/columns.py."""
    tables = {each["name"]: each for each in data["tables"]} | {"cells": data["cells"]}
    return tables[table][part][key]
