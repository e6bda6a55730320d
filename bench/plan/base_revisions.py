"""The implementations that a gate compares with their own earlier revisions."""

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.plan.git_revisions import Repository, find_repository, worktrees
from bench.plan.matrix import Plan, name_of
from bench.plan.option_values import BadInput, collected, undecided
from bench.plan.options import Options
from bench.records.cells import base_of
from bench.records.git_files import RevisionError
from bench.records.messages import BaseFile, Catalogue


@dataclass(frozen=True)
class Origin:
    """The file and the repository of an implementation."""

    path: Path
    """The resolved path."""
    repository: Repository


@dataclass(frozen=True)
class Bases:
    """The comparisons of a gate: implementations and their bases."""

    revision: str
    """The revision as typed."""
    allow_undecided: int
    origins: Mapping[str, Origin]
    """By name, the compared implementations that exist at the base."""
    new: tuple[str, ...]
    removed: tuple[str, ...]

    def arms(self, implementation: str) -> list[str]:
        """Return the arms that are measured for an implementation: itself and its base."""
        return [implementation, base_of(implementation)]

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
        with worktrees(self._repositories()) as places:
            files = {}
            for name, origin in self.origins.items():
                repository = origin.repository
                worktree = places[repository.root]
                files[base_of(name)] = BaseFile(
                    path=str(worktree / repository.relative(origin.path)),
                    worktree=str(worktree),
                    repository=str(repository.root),
                )
            yield files

    def record(self) -> dict[str, Any]:
        """Return the manifest's entry, without paths except those within a repository."""
        return {
            "revision": self.revision,
            "allow_undecided": self.allow_undecided,
            "new": list(self.new),
            "removed": list(self.removed),
            "repositories": [
                {"base": one.base, "head": one.head, "dirty": one.dirty, "files": self._files(one)}
                for one in self._repositories()
            ],
        }

    def _files(self, repository: Repository) -> list[str]:
        own = (origin for origin in self.origins.values() if origin.repository == repository)
        return [repository.relative(origin.path) for origin in own]

    def _repositories(self) -> list[Repository]:
        return list(dict.fromkeys(origin.repository for origin in self.origins.values()))


def gated(options: Options) -> Options:
    """Restrict the implementations to files given by path, unless others are named."""
    named = options.implementations or tuple(map(name_of, options.implementation_path))
    return replace(options, implementations=named)


def find_bases(options: Options, catalogue: Catalogue, selected: Sequence[str]) -> Bases:
    """Look up the selected implementations at the base.

    Raises:
      BadInput: a file is in no repository, the revision is unknown or has none of the files, or
        `--allow-undecided` is not a number.
    """
    revision, faults = options.base_revision or "", list[str]()
    allowed = collected(faults, undecided, options.allow_undecided or "0", "--allow-undecided")
    if options.isolate:
        faults.append("--isolate: in a gate of revisions, both steps have to run in the worker")
    files = {e["name"]: Path(e["path"]).resolve() for e in catalogue["implementations"]}
    folders: dict[Path, Repository] = {}
    origins, new = {}, []
    for name in selected:
        folder = files[name].parent
        try:
            if folder not in folders:
                folders[folder] = find_repository(folder, revision)
            if folders[folder].had(files[name]):
                origins[name] = Origin(files[name], folders[folder])
            else:
                new.append(name)
        except RevisionError as error:
            faults.append(str(error))
    if not faults and not origins:
        faults.append(f"there is nothing to compare: {revision} has no {', '.join(new)}")
    if faults:
        raise BadInput(list(dict.fromkeys(faults)))  # files of a folder share a fault
    had: list[str] = []
    if not options.implementations:
        had = [name for folder, one in folders.items() for name in one.python_files(folder)]
    # Implementations that these folders had at the base and that no folder has now.
    removed = tuple(name for name in had if name not in files and not name.startswith("_"))
    return Bases(revision, allowed or 0, origins, tuple(new), removed)
