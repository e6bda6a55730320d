"""The implementations that were shipped with Lockstep, by their files' contents."""

import base64
import hashlib
from importlib.metadata import distributions
from pathlib import Path, PurePath

from bench.records.git_files import read_git
from bench.records.paths import CHECKOUT, ROOT

_FOLDER = "implementations"


def shipped_implementations(root: Path = ROOT, *, checkout: bool = CHECKOUT) -> set[str]:
    """Return the names of files in implementations/ that are as they were shipped.

    In a checkout, these are the files that git tracks and that are as in HEAD; elsewhere, those
    whose hashes the installed distribution's RECORD lists. Where neither tells, there are none.

    Args:
      root: the checkout, or site-packages.
      checkout: whether it is a checkout.
    """
    paths = _committed(root) if checkout else _installed(root)
    return {path.stem for path in map(PurePath, paths) if path.suffix == ".py"}


def _committed(root: Path) -> set[str]:
    tracked = read_git(root, "ls-files", "-z", "--", _FOLDER)
    changed = read_git(root, "diff", "-z", "--name-only", "--relative", "HEAD", "--", _FOLDER)
    if tracked is None or changed is None:
        return set()
    return set(tracked.split("\0")) - set(changed.split("\0"))


def _installed(root: Path) -> set[str]:
    found = set()
    for distribution in distributions(name="lockstep", path=[str(root)]):
        for file in distribution.files or ():
            if file.parts[0] != _FOLDER or file.hash is None:
                continue
            try:
                digest = hashlib.new(file.hash.mode, (root / file).read_bytes()).digest()
            except OSError:
                continue
            if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == file.hash.value:
                found.add(str(file))
    return found
