"""Who sent SIGKILL, as far as the kernel's counter tells."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.measure.processes import oom_kills
from bench.measure.processes.oom_kills import count_kills, killed_by_kernel


@pytest.fixture
def vmstat(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(oom_kills, "VMSTAT", tmp_path / "vmstat")
    (tmp_path / "vmstat").write_text("nr_free_pages 17\noom_kill 5\nthp_fault_alloc 1\n")
    return tmp_path / "vmstat"


@pytest.mark.usefixtures("vmstat")
@pytest.mark.parametrize(("before", "found"), [(5, False), (4, True), (None, None)])
def test_a_counter_that_rises_is_the_kernels_word(before: int | None, found: bool | None) -> None:
    assert killed_by_kernel(before) is found


@pytest.mark.parametrize("text", [None, "nr_free_pages 17\n"])
def test_no_counter_is_no_fault(vmstat: Path, text: str | None) -> None:
    assert count_kills() == 5
    vmstat.unlink() if text is None else vmstat.write_text(text)
    assert count_kills() is None
    assert killed_by_kernel(5) is None
