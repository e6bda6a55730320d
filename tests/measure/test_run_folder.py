"""The folder of a run is checked before anything is measured."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench.measure.run_folder import folder_faults


@pytest.mark.parametrize("closed", ["r", "r/launches"])
def test_a_run_that_became_read_only_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed: str
) -> None:
    run = tmp_path / "r"
    (run / "launches").mkdir(parents=True)
    assert folder_faults(str(run)) == []
    # Root may write anywhere, whatever the mode.
    monkeypatch.setattr(os, "access", lambda path, _mode: Path(path) != tmp_path / closed)
    assert folder_faults(str(run)) == [f"--resume: {tmp_path / closed} is read-only here"]


def test_a_run_without_launches_can_be_resumed(tmp_path: Path) -> None:
    assert folder_faults(str(tmp_path)) == []
