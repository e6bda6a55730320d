"""Files are whole or not there, and sealed text tells of every change."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from bench.records import files

if TYPE_CHECKING:
    from pathlib import Path


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    files.write(path, "one\n")

    def fail_half_way() -> None:
        with files.replacing(path) as draft:
            draft.write_text("tw")
            assert path.read_bytes() == b"one\n"
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_half_way()
    assert [file.name for file in tmp_path.iterdir()] == ["page.html"]
    assert path.read_bytes() == b"one\n"
    files.write(path, b"two\r\n")
    assert path.read_bytes() == b"two\r\n"


@pytest.mark.parametrize("indent", [None, 2])
def test_a_seal_tells_of_every_change(indent: int | None) -> None:
    row = {"a": [1, {"b": "x, y}"}], "c": None}
    text = files.sealed(json.dumps(row, indent=indent))
    assert files.unsealed(text) == row
    assert json.loads(text).keys() == {"a", "c", "crc32"}
    for place in range(len(text)):
        for bit in range(8):
            changed = bytearray(text)
            changed[place] ^= 1 << bit
            assert files.unsealed(bytes(changed)) is None
        assert files.unsealed(text[:place]) is None
    assert files.unsealed(text + b"\n") is None
    assert files.unsealed(json.dumps(row).encode()) is None
