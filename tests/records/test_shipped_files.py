"""A file in implementations/ counts as shipped only if it is as it was shipped."""

from __future__ import annotations

import base64
import hashlib
import subprocess
from pathlib import Path

import pytest

from bench.records.git_files import shipped_implementations


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "implementations/foreign").mkdir(parents=True)
    for name in ("as_shipped", "changed", "foreign/far", "removed"):
        (tmp_path / f"implementations/{name}.py").write_text(f"'''{name}'''\n")
    return tmp_path


def users_changes(root: Path) -> None:
    folder = root / "implementations"
    (folder / "changed.py").write_text("faster = True\n")
    (folder / "added.py").write_text("added = True\n")
    (folder / "ignored.py").write_text("ignored = True\n")
    (folder / "removed.py").unlink()


def git(root: Path, *words: str) -> None:
    names = ["-c", "user.name=nobody", "-c", "user.email=nobody@example.invalid"]
    command = ["git", "-C", root, *names, "-c", "commit.gpgsign=false", *words]
    subprocess.run(command, check=True, capture_output=True)


def test_in_a_checkout_files_are_shipped_that_git_has_and_nobody_changed(root):
    git(root, "init")
    (root / ".gitignore").write_text("ignored.py\n")
    git(root, "add", ".")
    git(root, "commit", "-m", "Files")
    users_changes(root)
    assert shipped_implementations(root, checkout=True) == {"as_shipped", "far"}
    git(root, "add", ".")  # nothing is shipped by being staged
    assert shipped_implementations(root, checkout=True) == {"as_shipped", "far"}


def test_in_a_package_files_are_shipped_whose_hashes_its_record_lists(root):
    info = root / "lockstep-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lockstep\nVersion: 1.0\n")
    lines = ["lockstep-1.0.dist-info/RECORD,,"]
    for path in sorted(root.rglob("implementations/**/*.py")):
        digest = hashlib.sha256(path.read_bytes()).digest()
        value = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        lines.append(f"{path.relative_to(root).as_posix()},sha256={value},{path.stat().st_size}")
    (info / "RECORD").write_text("\n".join(lines) + "\n")
    users_changes(root)
    assert shipped_implementations(root, checkout=False) == {"as_shipped", "far"}


def test_where_nothing_tells_no_file_is_shipped(root):
    assert shipped_implementations(root, checkout=False) == set()
