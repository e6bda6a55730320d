"""What the gate needs of git: which commit is meant, what was there, and a checkout of it."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

TIMEOUT_S = 600.0
"""Most time of one git command: long enough to check out a large repository."""

_PLACE = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_PREFIX")
"""What git sets for its hooks, and what would point every command at the hook's repository."""


class RevisionError(Exception):
    """There is no such repository or revision, or git failed; the message says which and why."""


@dataclass(frozen=True)
class Repository:
    """A git repository, and the two states of it that are compared."""

    root: Path
    base: str
    """Full id of the base's commit."""
    head: str
    """Full id of the commit that is checked out; empty before the first."""
    dirty: bool
    """Whether the working tree, which is what is measured, differs from it."""

    def relative(self, path: Path) -> str:
        """A file's path in the repository, as git writes it."""
        return path.resolve().relative_to(self.root).as_posix()

    def had(self, path: Path) -> bool:
        """Whether the base has this file."""
        return self.relative(path) in self._listed(self.relative(path))

    def python_files(self, folder: Path) -> list[str]:
        """Names, without `.py`, of the Python files that the base has directly in a folder."""
        inside = Path(self.relative(folder))
        found = map(Path, self._listed(f"{inside.as_posix()}/"))
        return [path.stem for path in found if path.suffix == ".py" and path.parent == inside]

    def _listed(self, path: str) -> list[str]:
        # As in a literal path: a name may hold what would be a pattern.
        command = ("--literal-pathspecs", "ls-tree", "-z", "--name-only", "--full-tree")
        return git(self.root, *command, self.base, "--", path).split("\0")[:-1]


def find_repository(folder: Path, revision: str) -> Repository:
    """The repository that holds a folder, with a revision of it.

    Raises:
      RevisionError: the folder is in none, or the revision is none of its commits.
    """
    try:
        root = Path(git(folder, "rev-parse", "--show-toplevel").strip())
    except RevisionError as error:
        raise RevisionError(f"{folder} is not in a git repository ({error})") from error
    wanted = ("rev-parse", "--verify", "--end-of-options")
    try:
        base = git(root, *wanted, f"{revision}^{{commit}}").strip()
    except RevisionError as error:
        raise RevisionError(f"{revision!r} is no revision of {root}{_hint(root)}") from error
    try:
        head = git(root, *wanted, "HEAD^{commit}").strip()
    except RevisionError:
        head = ""
    return Repository(root, base, head, dirty=_changed(root))


@contextlib.contextmanager
def worktrees(repositories: Sequence[Repository]) -> Iterator[dict[Path, Path]]:
    """The bases, checked out into temporary folders: repository's root to folder.

    Folders, and what git notes of them, are gone afterwards, however this ends.

    Raises:
      RevisionError: git cannot check one out.
    """
    with TemporaryDirectory(prefix="lockstep-base-") as temporary:
        # Resolved as the paths of imported modules are, which are told apart by their folder.
        top = Path(temporary).resolve()
        places = {r.root: top / str(number) for number, r in enumerate(repositories)}
        try:
            for repository in repositories:
                place = str(places[repository.root])
                # A hook could do anything, and none expects this checkout.
                git(
                    repository.root,
                    *("-c", f"core.hooksPath={os.devnull}", "worktree", "add", "--quiet"),
                    *("--detach", place, repository.base),
                )
            yield places
        finally:
            for repository in repositories:
                _remove(repository.root, places[repository.root])


def git(folder: Path, *arguments: str) -> str:
    """What a git command in a folder writes.

    Raises:
      RevisionError: with the last line that git wrote, or why it did not run.
    """
    environment = {name: value for name, value in os.environ.items() if name not in _PLACE}
    try:
        done = subprocess.run(  # noqa: S603
            ["git", "-C", str(folder), *arguments],  # noqa: S607 (the git on the path is wanted)
            env={**environment, "GIT_TERMINAL_PROMPT": "0"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            check=False,
            # Ctrl-C is for the run, which still needs git to clean up.
            start_new_session=True,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RevisionError(str(error)) from error
    if done.returncode:
        *_, last = done.stderr.strip().splitlines() or [f"git ended with {done.returncode}"]
        raise RevisionError(last)
    return done.stdout


def _remove(root: Path, place: Path) -> None:
    """Undo `worktree add`, also one that was cut off."""
    # Git refuses a folder that it does not recognize any more, and takes one that is gone.
    shutil.rmtree(place, ignore_errors=True)
    # It fails where there is nothing to undo. Twice `--force`: a worktree in the making is locked.
    with contextlib.suppress(RevisionError):
        git(root, "worktree", "remove", "--force", "--force", str(place))


def _changed(root: Path) -> bool:
    """Whether a tracked file differs from the commit, or a Python file is not in it.

    Other new files are output: a run's own folder is one.
    """
    changes = git(
        *(root, "--no-optional-locks", "status", "--porcelain", "-z", "--untracked-files=all")
    ).split("\0")
    return any(not line.startswith("??") or line.endswith(".py") for line in changes if line)


def _hint(root: Path) -> str:
    try:
        shallow = git(root, "rev-parse", "--is-shallow-repository").strip() == "true"
    except RevisionError:
        shallow = False
    if not shallow:
        return ""
    return ", which is a shallow clone: fetch the revision, or clone with the whole history"
