"""The implementations that a gate compares with their own earlier revisions, checked out by git."""

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.plan.matrix import Plan
from bench.plan.option_values import BadInput
from bench.plan.options import Options
from bench.records.cells import base_of
from bench.records.git_files import RevisionError, git
from bench.records.messages import BaseFile, Catalogue
from bench.records.paths import ROOT
from bench.records.temporary_folders import temporary_folder


@dataclass(frozen=True)
class Repository:
    """A git repository and the two states of it that are compared."""

    root: Path
    base: str
    """Full hash of the base commit."""
    head: str
    """Full hash of the checked-out commit."""
    dirty: bool
    """Whether the working tree, which is measured, differs from `head`."""

    def relative(self, path: Path) -> str:
        """Return a file's path in the repository, as git writes it."""
        return path.resolve().relative_to(self.root).as_posix()

    def python_files(self, folder: Path) -> list[str]:
        """Return the stems of the Python files that the base has directly in a folder."""
        listed = git(folder, "ls-tree", "-z", "--name-only", self.base).split("\0")
        return [Path(name).stem for name in listed if name.endswith(".py")]


def find_repository(folder: Path, revision: str) -> Repository:
    """Find the repository that contains a folder; raises RevisionError if it lacks the revision."""
    try:
        root = Path(git(folder, "rev-parse", "--show-toplevel").strip())
    except RevisionError as error:
        installed = folder == ROOT / "implementations"
        own = "; name a file of your own with --implementation-path" if installed else ""
        raise RevisionError(f"{folder}: git reads no repository there{own} ({error})") from error
    wanted = ("rev-parse", "--verify", "--end-of-options")
    try:
        base = git(root, *wanted, f"{revision}^{{commit}}").strip()
    except RevisionError as error:
        raise RevisionError(f"{revision!r} is not a revision of {root}{_hint(root)}") from error
    head = git(root, *wanted, "HEAD^{commit}").strip()
    status = ("--no-optional-locks", "status", "--porcelain", "-z", "--untracked-files=all")
    changes = git(root, *status).split("\0")
    # New files count only if they are Python: others are output, such as the run's own folder.
    dirty = any(not line.startswith("??") or line.endswith(".py") for line in changes if line)
    return Repository(root, base, head, dirty)


@contextlib.contextmanager
def checkouts(repositories: Collection[Repository]) -> Iterator[dict[Path, Path]]:
    """Check the bases out into temporary folders; yield each repository's by its root.

    Each checkout has its own index, so the repository is not touched. Raises RevisionError.
    """
    with temporary_folder() as temporary:
        # Resolved, because imported modules are recognized by their resolved folder.
        places = {r.root: temporary.resolve() / str(n) for n, r in enumerate(repositories)}
        for one in repositories:
            place = places[one.root]
            index = {"GIT_INDEX_FILE": f"{place}.index"}
            git(one.root, "read-tree", "--no-sparse-checkout", one.base, variables=index)
            git(one.root, "checkout-index", "--all", f"--prefix={place}/", variables=index)
            (place / ".git").mkdir(parents=True)  # marks a checkout for bench.worker.file_loader
        yield places


def _hint(root: Path) -> str:
    with contextlib.suppress(RevisionError):
        if git(root, "rev-parse", "--is-shallow-repository").strip() == "true":
            return ", which is a shallow clone: fetch the revision, or clone with the whole history"
    return ""


@dataclass(frozen=True)
class Bases:
    """The comparisons of a gate: implementations and their bases."""

    revision: str
    origins: Mapping[str, Path]
    """By name, the files of the compared implementations, which exist at the base."""
    repositories: Mapping[Path, Repository]
    """The repository of each folder with such files."""
    new: tuple[str, ...]
    removed: tuple[str, ...]

    def opponents(self, arms: Collection[str]) -> dict[str, str]:
        """Map each of these arms to its base, if the base is among them."""
        return {name: base_of(name) for name in self.origins if {name, base_of(name)} <= set(arms)}

    def paired(self, arms: Sequence[str]) -> list[str]:
        """Return the arms whose opponent is also among the given arms."""
        opponents = self.opponents(arms)
        return [name for name in arms if name in {*opponents, *opponents.values()}]

    def reduced(self, plan: Plan) -> Plan:
        """Return the plan, restricted to implementations that can be compared."""
        names = tuple(name for name in plan.implementations if name in self.origins)
        baseline = plan.baseline if plan.baseline in names else names[0]
        return replace(plan, implementations=names, baseline=baseline)

    @contextlib.contextmanager
    def checked_out(self) -> Iterator[dict[str, BaseFile]]:
        """Check out the files of the bases while the context is open; raises RevisionError."""
        with checkouts({*self.repositories.values()}) as places:
            files = {}
            for name, file in self.origins.items():
                repository = self.repositories[file.parent]
                root, worktree = str(repository.root), places[repository.root]
                path = str(worktree / repository.relative(file))
                files[base_of(name)] = BaseFile(path=path, worktree=str(worktree), repository=root)
            yield files

    def record(self) -> dict[str, Any]:
        """Return the manifest's entry, without paths except those within a repository."""
        repositories = []
        for one in dict.fromkeys(self.repositories.values()):
            own_files = (f for f in self.origins.values() if self.repositories[f.parent] == one)
            files = [one.relative(file) for file in own_files]
            state = {"base": one.base, "head": one.head, "dirty": one.dirty}
            repositories.append({**state, "files": files})
        own = {"revision": self.revision, "repositories": repositories}
        return {**own, "new": list(self.new), "removed": list(self.removed)}


def find_bases(options: Options, catalogue: Catalogue, selected: Sequence[str]) -> Bases:
    """Look up the selected implementations at the base; raises BadInput if it cannot be found."""
    revision, faults = options.base_revision or "", list[str]()
    if options.isolate:
        faults.append("--isolate: in a gate of revisions, both steps have to run in the worker")
    files = {e["name"]: Path(e["path"]).resolve() for e in catalogue["implementations"]}
    folders: dict[Path, Repository] = {}
    then: dict[Path, list[str]] = {}
    for folder in dict.fromkeys(files[name].parent for name in selected):
        try:
            folders[folder] = find_repository(folder, revision)
            then[folder] = folders[folder].python_files(folder)
        except RevisionError as error:
            faults.append(str(error))
    if faults:
        raise BadInput(list(dict.fromkeys(faults)))  # folders of a repository share a fault
    paths = {name: files[name] for name in selected}
    origins = {name: path for name, path in paths.items() if path.stem in then[path.parent]}
    new = tuple(name for name in paths if name not in origins)
    if not origins:
        raise BadInput([f"there is nothing to compare: {revision} has no {', '.join(new)}"])
    # Implementations that these folders had at the base and that no folder has now.
    removed = tuple(
        name
        for names in then.values()
        for name in names
        if not (options.implementations or name in files or name.startswith("_"))
    )
    compared = {path.parent: folders[path.parent] for path in origins.values()}
    return Bases(revision, origins, compared, new, removed)
