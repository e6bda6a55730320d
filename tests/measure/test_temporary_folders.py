"""Temporary folders do not outlive their run, however that ends."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from bench.measure.processes.memory_pressure import describe_shortage
from bench.measure.processes.temporary_folders import remove_left, temporary_folder
from bench.records.paths import ROOT

FRONT = """
import time
from bench.measure.processes.guard import Guard
from bench.measure.processes.temporary_folders import temporary_folder
with temporary_folder() as folder:
    (folder / "program").write_text("machine code")
    guard = Guard() if GUARDED else None
    print(folder, flush=True)
    time.sleep(300)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def killed_front(folder, *, guarded):
    command = [sys.executable, "-c", f"GUARDED = {guarded}\n{FRONT}"]
    environment = {**os.environ, "TMPDIR": str(folder)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment
    ) as front:
        made = Path(front.stdout.readline().strip())
        remove_left()
        assert (made / "program").exists(), "its owner lives"
        front.kill()
    return made


def test_the_next_start_removes_what_a_killed_front_left(folder):
    made = killed_front(folder, guarded=False)
    others = [folder / "lockstep-version", folder / "lockstep-0-1-2-x", folder / "other"]
    for other in others:
        other.mkdir()
    assert made.parent == folder
    assert made.exists()
    with temporary_folder() as own:
        assert not made.exists()
        assert own.exists()
        remove_left()
        assert own.exists()
    assert sorted(folder.iterdir()) == sorted(others)


def test_the_guard_of_a_killed_front_removes_its_folder(folder):
    made = killed_front(folder, guarded=True)
    end = time.monotonic() + 20
    while made.exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert not made.exists()


@pytest.mark.parametrize(("stalled", "short"), [("0.00", False), ("35.20", True)])
def test_waiting_for_memory_is_a_shortage(tmp_path, stalled, short):
    file = tmp_path / "memory"
    file.write_text(f"some avg10=0.00 avg60={stalled} avg300=0.00 total=0\nfull avg60=0.00\n")
    assert ("35 % of the last minute" in describe_shortage(file)) == short
    assert describe_shortage(tmp_path / "none") == describe_shortage(tmp_path / "none either")
