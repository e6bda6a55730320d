"""The folder of a run is checked before anything is measured."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench.measure.run_folder import folder_faults
from bench.plan.options import Options


@pytest.mark.parametrize("closed", ["r", "r/launches"])
def test_a_run_that_became_read_only_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed: str
) -> None:
    run = tmp_path / "r"
    (run / "launches").mkdir(parents=True)
    options = Options(resume=str(run))
    assert folder_faults(options, measures=True) == []
    # Root may write anywhere, whatever the mode.
    monkeypatch.setattr(os, "access", lambda path, _mode: Path(path) != tmp_path / closed)
    (fault,) = folder_faults(options, measures=True)
    assert fault == f"nothing can be stored in {tmp_path / closed}: it is read-only here"
    assert folder_faults(options, measures=False) == []


def test_a_run_without_launches_can_be_resumed(tmp_path: Path) -> None:
    assert folder_faults(Options(resume=str(tmp_path)), measures=True) == []


def test_reports_that_are_a_file_are_refused_beside_a_wrong_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("reports").touch()
    name, place = folder_faults(Options(run="a/b"), measures=True)
    assert name.startswith("--run: 'a/b' is not a folder's name")
    assert place == f"nothing can be stored in {tmp_path / 'reports'}: it is a file"
