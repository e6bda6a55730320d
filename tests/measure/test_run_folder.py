"""The folder of a run is checked before anything is measured."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.measure import run_folder
from bench.measure.run_folder import folder_faults, refuse_other_machine
from bench.plan.option_values import BadInput
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


def test_a_run_of_a_launcher_is_not_resumed_in_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_folder, "recorded_variables", dict)
    devices = {"platform": "cpu", "device_kind": "cpu", "device_count": 1, "versions": {}}
    host = {"cpu": run_folder.processor_name(), "usable_cores": 2}
    run: Any = SimpleNamespace(
        directory=Path("r"), manifest={**devices, "processes": 2, "host": host, "environment": {}}
    )
    here: Any = {**devices, "usable_cores": 2}
    refuse_other_machine(run, {**here, "processes": 2})
    with pytest.raises(BadInput, match="r was measured with processes 2, and here it is 1"):
        refuse_other_machine(run, {**here, "processes": 1})
    del run.manifest["processes"]
    refuse_other_machine(run, {**here, "processes": 1})


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
