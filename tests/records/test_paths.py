"""Commands in texts, as they are typed in a checkout and with an installed package."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from bench.records import paths

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("text", "installed"),
    [
        ("nox -s bench -- --workloads mlp", "lockstep run --workloads mlp"),
        ("`nox -s report -- RUN --all-plots` draws", "`lockstep report RUN --all-plots` draws"),
        ("`nox -s tensorboard` serves them", "`lockstep tensorboard` serves them"),
    ],
)
def test_an_installed_package_has_no_sessions_of_nox(monkeypatch, text, installed):
    monkeypatch.setattr(paths, "CHECKOUT", True)
    assert paths.adapt_commands(text) == text
    monkeypatch.setattr(paths, "CHECKOUT", False)
    assert paths.adapt_commands(text) == installed


def test_processes_import_lockstep_and_not_the_users_bench(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bench.py").write_text("raise SystemExit(7)")
    monkeypatch.setenv("PYTHONPATH", str(paths.ROOT))
    assert subprocess.run(paths.module_command("bench.records.paths"), check=False).returncode == 0
    monkeypatch.chdir(tmp_path)
    assert subprocess.run(paths.module_command("bench.records.paths"), check=False).returncode == 0
