"""Revisions of a gate: resolving them, listing their files, temporary worktrees."""

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.records.git_files import RevisionError, git
from bench.records.temporary_folders import temporary_folder


@dataclass(frozen=True)
class Repository:
    """A git repository and the two states of it that are compared."""

    root: Path
    base: str
    """Full hash of the base commit."""
    head: str
    """Full hash of the checked-out commit; empty before the first commit."""
    dirty: bool
    """Whether the working tree, which is measured, differs from `head`."""

    def relative(self, path: Path) -> str:
        """Return a file's path in the repository, as git writes it."""
        return path.resolve().relative_to(self.root).as_posix()

    def had(self, path: Path) -> bool:
        """Return whether the base has this file."""
        return self.relative(path) in self._listed(self.relative(path))

    def python_files(self, folder: Path) -> list[str]:
        """Return the stems of the Python files that the base has directly in a folder."""
        inside = Path(self.relative(folder))
        found = map(Path, self._listed(f"{inside.as_posix()}/"))
        return [path.stem for path in found if path.suffix == ".py" and path.parent == inside]

    def _listed(self, path: str) -> list[str]:
        # A file name may contain pattern characters.
        command = ("--literal-pathspecs", "ls-tree", "-z", "--name-only", "--full-tree")
        return git(self.root, *command, self.base, "--", path).split("\0")[:-1]


def find_repository(folder: Path, revision: str) -> Repository:
    """Find the repository that contains a folder, and resolve a revision in it.

    Raises RevisionError if there is no repository, or if the revision is none of its commits.
    """
    try:
        root = Path(git(folder, "rev-parse", "--show-toplevel").strip())
    except RevisionError as error:
        raise RevisionError(f"{folder} is not in a git repository ({error})") from error
    wanted = ("rev-parse", "--verify", "--end-of-options")
    try:
        base = git(root, *wanted, f"{revision}^{{commit}}").strip()
    except RevisionError as error:
        raise RevisionError(f"{revision!r} is not a revision of {root}{_hint(root)}") from error
    head = ""
    with contextlib.suppress(RevisionError):
        head = git(root, *wanted, "HEAD^{commit}").strip()
    return Repository(root, base, head, dirty=_changed(root))


@contextlib.contextmanager
def worktrees(repositories: Sequence[Repository]) -> Iterator[dict[Path, Path]]:
    """Check the bases out into temporary worktrees; maps each repository's root to its worktree.

    The worktrees and git's records of them are removed on any exit. Raises RevisionError.
    """
    with temporary_folder() as temporary:
        # Resolved, because imported modules are recognized by their resolved folder.
        top = temporary.resolve()
        places = {r.root: top / str(number) for number, r in enumerate(repositories)}
        try:
            for one in repositories:
                _forget_left(one.root)
                # Hooks do not expect this checkout.
                add = ("-c", f"core.hooksPath={os.devnull}", "worktree", "add", "--quiet")
                git(one.root, *add, "--detach", str(places[one.root]), one.base)
            yield places
        finally:
            for root, place in places.items():
                _remove(root, place)


def _remove(root: Path, place: Path) -> None:
    """Undo `worktree add`, even an interrupted one."""
    # Git refuses a folder that it no longer recognizes, but accepts a missing one.
    shutil.rmtree(place, ignore_errors=True)
    # Fails if there is nothing to undo. `--force` twice, since an unfinished worktree is locked.
    with contextlib.suppress(RevisionError):
        git(root, "worktree", "remove", "--force", "--force", str(place))


def _forget_left(root: Path) -> None:
    """Remove git's records of worktrees whose folders are gone because their runs were killed."""
    for line in git(root, "worktree", "list", "--porcelain").splitlines():
        place = Path(line.removeprefix("worktree "))
        if place.parent.name.startswith("lockstep-") and not place.exists():
            _remove(root, place)


def _changed(root: Path) -> bool:
    """Return whether a tracked file differs from the commit or there is an untracked Python file.

    Other new files are output, such as the run's own folder.
    """
    status = ("--no-optional-locks", "status", "--porcelain", "-z", "--untracked-files=all")
    changes = git(root, *status).split("\0")
    return any(not line.startswith("??") or line.endswith(".py") for line in changes if line)


def _hint(root: Path) -> str:
    with contextlib.suppress(RevisionError):
        if git(root, "rev-parse", "--is-shallow-repository").strip() == "true":
            return ", which is a shallow clone: fetch the revision, or clone with the whole history"
    return ""
