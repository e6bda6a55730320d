"""What is said where the disk is full."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from bench.records.files import NotStoredError, storing


def test_a_full_disk_names_the_folder_and_the_way_out() -> None:
    with pytest.raises(NotStoredError) as caught, storing(Path("reports/r"), resume="r"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert str(caught.value) == (
        "cannot write into reports/r: No space left on device; "
        "free space there, then continue: python -m bench run --resume r"
    )


def test_whatever_else_the_system_refuses_passes_through() -> None:
    with pytest.raises(NotADirectoryError), storing(Path("reports")):
        raise NotADirectoryError(errno.ENOTDIR, "Not a directory")


def test_a_run_that_was_deleted_while_it_was_measured_is_named(tmp_path: Path) -> None:
    gone = tmp_path / "r"
    with pytest.raises(NotStoredError, match=r"r was deleted while"), storing(gone, resume="r"):
        (gone / "launches").mkdir()
    (tmp_path / "r").mkdir()
    with pytest.raises(FileNotFoundError), storing(gone):
        (gone / "launches").rmdir()
