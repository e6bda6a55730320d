"""Reasons can be read, whatever was raised or printed."""

from __future__ import annotations

from bench.records.printable import LINE, LINES, readable


def test_plain_text_stays() -> None:
    text = "RESOURCE_EXHAUSTED: 1 GiB\n  at µ = 3"
    assert readable(text) == text


def test_what_cannot_be_printed_is_replaced() -> None:
    assert readable("\x1b[2J\x00a\tb\udcff") == "\ufffd[2J\ufffda b\ufffd"


def test_long_lines_and_many_lines_are_cut() -> None:
    assert readable("x" * (LINE + 5)) == "x" * LINE + "... (5 more characters)"
    lines = readable("\n".join("y" * (LINES + 2))).splitlines()
    assert lines == ["y"] * LINES + ["... (2 more lines)"]
