"""The user's cache: what is whole is found, and nothing about it is an error."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from bench.records import user_cache


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(user_cache, "user_cache_path", lambda name: tmp_path / name)
    return tmp_path / "lockstep"


def test_what_is_written_is_read() -> None:
    assert user_cache.read("cells/a") is None
    user_cache.write("cells/a", b"")
    user_cache.write("cells/b", b"two")
    assert (user_cache.read("cells/a"), user_cache.read("cells/b")) == (b"", b"two")


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b[:5], lambda b: b"x" + b[1:]])
def test_what_is_damaged_is_missing_and_can_be_written_again(folder: Path, damage) -> None:
    user_cache.write("a", b"content")
    (folder / "a").write_bytes(damage((folder / "a").read_bytes()))
    assert user_cache.read("a") is None
    user_cache.write("a", b"content")
    assert user_cache.read("a") == b"content"


def test_a_folder_that_cannot_be_written_keeps_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user_cache.write("a", b"kept")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "read-only file system")

    # Not by its mode, which does not stop root.
    for method in ("mkdir", "write_bytes", "unlink"):
        monkeypatch.setattr(Path, method, refuse)
    monkeypatch.setattr(os, "utime", refuse)
    user_cache.write("b", b"not kept")
    monkeypatch.setattr(user_cache, "MOST_BYTES", 0)
    user_cache.prune()
    assert (user_cache.read("a"), user_cache.read("b")) == (b"kept", None)


def test_what_nobody_uses_goes_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    user_cache.prune()  # of a folder that is not there
    ages = {"cells/new": 1, "cells/used": 50, "programs/old": 20, "cells/forgotten": 40}
    for name, days in ages.items():
        user_cache.write(name, bytes(1000))
        os.utime(folder / name, times=(0, time.time() - days * 24 * 3600))
    user_cache.read("cells/used")
    user_cache.prune()
    assert {n for n in ages if user_cache.read(n) is None} == {"cells/forgotten"}
    os.utime(folder / "programs/old", times=(0, 1e9))
    monkeypatch.setattr(user_cache, "MOST_UNUSED_S", 1e12)
    monkeypatch.setattr(user_cache, "MOST_BYTES", 2500)
    user_cache.prune()
    assert {n for n in ages if user_cache.read(n) is None} == {"cells/forgotten", "programs/old"}
