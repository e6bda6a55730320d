"""What the host is made of, read as Linux shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.records import host


def plant(cpus: Path, core: int, shared_by: str, size: str = "16384K") -> None:
    for index, (level, text) in enumerate([("1", "32K"), ("3", size), ("2", "512K")]):
        cache = cpus / f"cpu{core}" / "cache" / f"index{index}"
        cache.mkdir(parents=True)
        (cache / "level").write_text(f"{level}\n")
        (cache / "size").write_text(f"{text}\n")
        (cache / "shared_cpu_list").write_text(f"{shared_by}\n")


@pytest.mark.parametrize(("threads", "mebibytes"), [(1, 32), (2, 48), (8, 48)])
def test_threads_reach_so_many_last_level_caches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int, mebibytes: int
) -> None:
    monkeypatch.setattr(host, "cores", lambda: {0, 1, 2, 3})
    for core in (0, 1):
        plant(tmp_path, core, "0-1")
    for core in (2, 3):
        plant(tmp_path, core, "2-3", "32768K")
    plant(tmp_path, 4, "4")  # not ours
    assert host.cache_bytes(threads, tmp_path) == mebibytes << 20


def test_caches_that_are_not_shown_are_taken_to_be_usual(tmp_path: Path) -> None:
    assert host.cache_bytes(4, tmp_path) == 32 << 20
    cache = tmp_path / f"cpu{min(host.cores())}" / "cache" / "index0"
    cache.mkdir(parents=True)
    (cache / "level").write_text("unknown")
    assert host.cache_bytes(4, tmp_path) == 32 << 20
