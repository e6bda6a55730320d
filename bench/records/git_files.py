"""Queries of git, and the implementations that were shipped with Lockstep."""

import base64
import contextlib
import hashlib
import os
import subprocess
from collections.abc import Mapping
from importlib.metadata import distributions
from pathlib import Path, PurePath

from bench.records.paths import CHECKOUT, ROOT

TIMEOUT_S = 600.0
"""Limit for one git command, long enough to check out a large repository."""

_PLACE = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_PREFIX")
"""Variables that git sets in hooks; they would redirect every command to the hook's repository."""

_FOLDER = "implementations"


class RevisionError(Exception):
    """An unknown repository or revision, or a failure of git; the message says which and why."""


def git(folder: Path, *arguments: str, variables: Mapping[str, str] | None = None) -> str:
    """Return the output of a git command that runs in a folder, with these variables.

    Raises RevisionError with git's last error and advice, or the reason why git did not run.
    """
    environment = {name: value for name, value in os.environ.items() if name not in _PLACE}
    try:
        done = subprocess.run(  # noqa: S603
            ["git", "-C", str(folder), *arguments],  # noqa: S607 (the git on the path is wanted)
            env={**environment, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C", **(variables or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            check=False,
            # Ctrl-C must not reach git, which the run needs for cleaning up.
            start_new_session=True,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RevisionError(str(error)) from error
    if done.returncode:
        said = " ".join("".join(done.stderr.rpartition("fatal: ")[1:]).split())
        raise RevisionError(said or f"git ended with {done.returncode}")
    return done.stdout


def tracked_folders(parent: Path) -> set[str] | None:
    """List folders in `parent` with tracked files; None outside of git; may raise RevisionError."""
    try:
        listed = git(parent, "ls-files", "-z").split("\0")
    except RevisionError as error:
        if "dubious ownership" in str(error):  # there is a repository, which git refuses to read
            raise
        return None
    return {name.partition("/")[0] for name in listed if "/" in name}


def shipped_implementations(root: Path = ROOT, *, checkout: bool = CHECKOUT) -> set[str]:
    """Return the names of files in implementations/ that are as they were shipped.

    In a checkout, these are the files that git tracks and that are as in HEAD; elsewhere, those
    whose hashes the installed distribution's RECORD lists. Where neither tells, there are none.
    """
    paths = _committed(root) if checkout else _installed(root)
    return {path.stem for path in map(PurePath, paths) if path.suffix == ".py"}


def _committed(root: Path) -> set[str]:
    with contextlib.suppress(RevisionError):
        tracked = git(root, "ls-files", "-z", "--", _FOLDER)
        changed = git(root, "diff", "-z", "--name-only", "--relative", "HEAD", "--", _FOLDER)
        return set(tracked.split("\0")) - set(changed.split("\0"))
    return set()


def _installed(root: Path) -> set[str]:
    found = set()
    for distribution in distributions(name="lockstep", path=[str(root)]):
        for file in distribution.files or ():
            if file.parts[0] == _FOLDER and file.hash and (root / file).is_file():
                digest = hashlib.new(file.hash.mode, (root / file).read_bytes()).digest()
                if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == file.hash.value:
                    found.add(str(file))
    return found
