"""Reasons can be read, whatever was raised or printed."""

from __future__ import annotations

from bench.records import numbers
from bench.records.printable import HEAD, LINES, SHOWN, TAIL, closest, readable, shortened


def test_plain_text_stays() -> None:
    text = "RESOURCE_EXHAUSTED: 1 GiB\n  at µ = 3"
    assert readable(text) == text
    assert readable(f"\n{text}\n\n \n".replace("\n", "\n\n")) == text


def test_numbers_keep_the_spaces_before_their_units() -> None:
    text = f"{numbers.si(0.0518, 's')}, 4\N{NO-BREAK SPACE}%"
    assert readable(text) == text
    assert "\N{NARROW NO-BREAK SPACE}" in text


def test_what_cannot_be_printed_is_replaced() -> None:
    assert readable("\x00a\tb\udcff\x1b") == "\ufffda b\ufffd\ufffd"


def test_control_sequences_leave_nothing() -> None:
    title, clear, colour, link = "\x1b]0;owned\x07", "\x1b[2J", "\x9b31m", "\x1b]8;;x\x1b\\"
    assert readable(f"a{title}b{clear}c{colour}d{link}e") == "abcde"


def test_a_reason_is_shown_in_so_many_characters() -> None:
    assert len(shortened("\n".join(9 * ["x" * 99]))) == SHOWN
    assert shortened("short") == "short"


def test_long_lines_and_many_lines_are_cut() -> None:
    line = "x" * HEAD + "-" * 50 + "z" * TAIL
    assert readable(line) == "x" * HEAD + "... (50 more characters) ..." + "z" * TAIL
    longer = "x" * (HEAD + TAIL + 28)
    assert readable(longer) == longer, "a cut would save nothing"
    lines = readable("\n".join("y" * (LINES + 2))).splitlines()
    assert lines == ["y"] * LINES + ["... (2 more lines)"]


def test_a_name_in_another_case_is_recognized() -> None:
    names = ["jit_spmd", "pmap", "mlp-tiny", "vae-tiny", "moe-tiny", "RunA"]
    assert closest("JIT_SPMD", names).startswith("did you mean jit_spmd?")
    assert closest("MLP-tiny", names).startswith("did you mean mlp-tiny?")
    assert closest("Jit_Smpd", names).startswith("did you mean jit_spmd?")
    assert closest("runa", names).startswith("did you mean RunA?")
    assert closest("NIGHTLY_2", ["NIGHTLY_1", *names]).startswith("did you mean NIGHTLY_1?")
