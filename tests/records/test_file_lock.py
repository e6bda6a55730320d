"""A file has one owner, who loses it by dying."""

from __future__ import annotations

import errno
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from bench.records import files
from bench.records.paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path

OWNER = """
import pathlib, sys, time
from bench.records import files
assert files.lock_until_exit(pathlib.Path(sys.argv[1])) == ""
print("mine", flush=True)
time.sleep(60)
"""


def test_the_owner_is_the_only_one_until_it_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    path.write_text("{}")
    command = [sys.executable, "-c", OWNER, str(path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout
        assert owner.stdout.readline() == "mine\n"
        with pytest.raises(files.LockedError, match=r"manifest\.json"):
            files.lock_until_exit(path)
        owner.kill()
    assert files.lock_until_exit(path) == ""
    assert path.read_text() == "{}"


def test_where_there_are_no_locks_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "manifest.json"
    path.write_text("{}")

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(files.fcntl, "flock", refuse)
    assert "does not lock manifest.json: Function not implemented" in files.lock_until_exit(path)
