"""Temporary folders do not outlive their run, however that ends."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from bench.plan.base_revisions import checkouts, find_repository
from bench.records import temporary_folders
from bench.records.paths import ROOT
from bench.records.temporary_folders import remove_left, temporary_folder

FRONT = """
import sys, time
from bench.records.temporary_folders import temporary_folder
with temporary_folder() as folder:
    (folder / "program").write_text("machine code")
    print(folder, flush=True)
    time.sleep(300)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def killed_front(folder):
    command = [sys.executable, "-c", FRONT]
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
    made = killed_front(folder)
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


def test_a_killed_gate_leaves_neither_its_checkout_nor_a_record(folder, tmp_path_factory):
    repository = tmp_path_factory.mktemp("repository")

    def git(*words):
        person = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        command = ["git", "-C", str(repository), *person, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    git("init", "--quiet")
    (repository / "step.py").touch()
    git("add", "step.py")
    git("commit", "--quiet", "--message", "a")
    (repository / "step.py").unlink()
    script = (
        "import pathlib, sys, time\n"
        "from bench.plan.base_revisions import checkouts, find_repository\n"
        "with checkouts([find_repository(pathlib.Path(sys.argv[1]), 'HEAD')]) as places:\n"
        "    print(*places.values(), flush=True)\n"
        "    time.sleep(300)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(repository)],
        stdout=subprocess.PIPE, text=True, cwd=ROOT, env={**os.environ, "TMPDIR": str(folder)},
    ) as front:  # fmt: skip
        place = Path(front.stdout.readline().strip())
        assert (place / "step.py").exists()
        front.kill()
    with checkouts([find_repository(repository, "HEAD")]) as places:
        assert not place.parent.exists()
        assert all((one / "step.py").exists() for one in places.values())
    assert git("worktree", "list").count("\n") == 1
    assert git("status", "--porcelain") == " D step.py\n", "the index is as it was"


def test_folders_in_shared_memory_are_removed_too(folder, monkeypatch):
    memory = folder / "memory"
    memory.mkdir()
    monkeypatch.setattr(temporary_folders, "SHARED_MEMORY", memory)
    with temporary_folder(shared=True) as made:
        left = made.with_name(made.name.replace(f"-{os.getpid()}-", f"-{2**22 + 1}-"))
        left.mkdir()
        assert made.parent == memory
    remove_left()
    assert not list(memory.iterdir())
