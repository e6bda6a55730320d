"""Old traces can be deleted, and nothing else is."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from bench.commands.tensorboard import prune, traced_runs

if TYPE_CHECKING:
    from pathlib import Path


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
