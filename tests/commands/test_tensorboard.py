"""Old traces can be deleted, and nothing else is; the server ends with the command."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
import typer

from bench.commands import tensorboard as command
from bench.commands.tensorboard import prune, traced_runs
from bench.records.paths import ROOT


def trace(profiles: Path, run: str, time: float) -> None:
    path = profiles / run / "mlp-base/data=2/b8/fp32/plugins/profile/pmap/process_0.xplane.pb"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"trace")
    os.utime(path, (time, time))


def test_the_newest_runs_stay(tmp_path: Path) -> None:
    for number, run in enumerate(["middle", "new", "old"]):
        trace(tmp_path, run, [2e9, 3e9, 1e9][number])
    (tmp_path / "README.md").write_text("about this folder")
    (tmp_path / "no traces").mkdir()
    outside = tmp_path.parent / f"{tmp_path.name} outside"
    trace(outside, "elsewhere", 0)
    (tmp_path / "link").symlink_to(outside / "elsewhere")
    assert [folder.name for folder in traced_runs(tmp_path)] == ["new", "middle", "old"]
    assert [folder.name for folder in prune(tmp_path, 1)] == ["middle", "old"]
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"README.md", "no traces", "link", "new"}
    assert list(outside.rglob("*.pb"))
    assert prune(tmp_path, 1) == []


def test_a_refused_command_deletes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, run in enumerate(["old", "new"], 1):
        trace(tmp_path, run, number * 1e9)
    monkeypatch.setattr(command, "PROFILES", tmp_path)
    for installed in (False, True):
        monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
        monkeypatch.setattr("shutil.which", lambda _: "tensorboard" if installed else None)  # noqa: B023
        with pytest.raises(typer.Exit) if not installed else nullcontext():
            command.tensorboard(keep=0)
        assert len(traced_runs(tmp_path)) == (0 if installed else 2)
    assert capsys.readouterr().out.count("deleted ") == 2, "and no server starts without traces"


def test_sigterm_ends_the_server_too(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    server = f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(300)"
    script = (
        "import sys; from bench.commands.tensorboard import serve; "
        f"sys.exit(serve([sys.executable, '-c', {server!r}]))"
    )
    process = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT)
    until = time.monotonic() + 60
    while not (pid.exists() and pid.read_text()):
        assert time.monotonic() < until
        time.sleep(0.02)
    process.terminate()
    assert process.wait(60) == 0
    assert not Path(f"/proc/{pid.read_text()}").exists()
