"""What the host is made of, read as Linux shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.records import host

X86 = "processor\t: 0\nmodel name\t: AMD EPYC 9B14\nflags\t\t: fpu\n"
ARM = "processor\t: 0\nCPU part\t: 0xd4f\n"
LSCPU = "Vendor ID:   ARM\n  BIOS Model name:  ?\n  Model name:  Neoverse-V2\n"
MACOS = "machdep.cpu.brand_string: Apple M4 Pro\n"


def missing():
    raise FileNotFoundError


@pytest.mark.parametrize(
    ("texts", "name"),
    [
        ([lambda: X86, missing], "AMD EPYC 9B14"),
        ([lambda: ARM, lambda: LSCPU], "Neoverse-V2"),
        ([missing, missing, lambda: MACOS], "Apple M4 Pro"),
        ([lambda: ARM, missing, lambda: ""], "riscv64"),
    ],
)
def test_the_processor_is_named_as_the_system_names_it(monkeypatch, texts, name) -> None:
    monkeypatch.setattr(host, "_PROCESSOR", texts)
    monkeypatch.setattr(host.platform, "processor", lambda: "")
    monkeypatch.setattr(host.platform, "machine", lambda: "riscv64")
    assert host.processor_name() == name
    assert host.describe_host()["cpu"] == name


def test_a_missing_program_is_no_error() -> None:
    with pytest.raises(OSError, match="no-such-program"):
        host._printed("no-such-program")


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
