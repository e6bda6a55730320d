"""Base arms of a gate that compares implementations with themselves under another jax version."""

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.measure.version_environments import Environment, make_environment
from bench.plan.base_revisions import Bases, Origin
from bench.plan.content_keys import digest
from bench.plan.git_revisions import Repository
from bench.plan.option_values import BadInput
from bench.plan.options import Options
from bench.records.cells import base_of
from bench.records.messages import BaseFile, Catalogue
from bench.records.temporary_folders import temporary_folder

CHILD = "bench.worker.foreign.jax_child"


def is_requirement(text: str) -> bool:
    """Whether a base is a requirement such as `jax==0.10.2` rather than a git revision."""
    return bool(re.match(r"[A-Za-z][\w.-]*(\[[\w,-]*\])?(==|~=|[<>]=?)", text))


@dataclass(frozen=True)
class VersionBases(Bases):
    """Bases that run in processes of another environment, as foreign arms."""

    environment: Environment = field(kw_only=True)

    @contextlib.contextmanager
    def checked_out(self) -> Iterator[dict[str, BaseFile]]:
        """Write a foreign file for each implementation while the context is open."""
        with temporary_folder() as made:
            folder = str(made)
            files = {}
            for name, origin in self.origins.items():
                command = [str(self.environment.python), "-m", CHILD, str(origin.path)]
                traits = {"packages": ["jax"], "command": command}
                path = Path(folder, f"{name}.py")
                text = f'"""{name}, {digest(origin.path.read_bytes())}."""\n\nFOREIGN = {traits}\n'
                path.write_text(text, encoding="utf-8")
                files[base_of(name)] = BaseFile(path=str(path), worktree=folder, repository=folder)
            yield files

    def record(self) -> dict[str, Any]:
        """Return the manifest's entry."""
        own = {"repositories": [], "versions": self.environment.versions}
        return {"revision": self.revision, "allow_undecided": self.allow_undecided,
                "new": [], "removed": [], **own}  # fmt: skip


def find_versions(options: Options, catalogue: Catalogue, selected: Sequence[str]) -> VersionBases:
    """Make the environment that `options.base_revision` names, for the selected implementations.

    Raises:
      BadInput: the environment cannot be made, or `--allow-undecided` is not a number.
    """
    requirement, allowed = options.base_revision or "", options.allow_undecided or "0"
    if not (allowed.isascii() and allowed.isdigit()):
        raise BadInput([f"--allow-undecided: {allowed!r} is not a whole number"])
    origins = {
        entry["name"]: Origin(path, Repository(path.parent, "", "", dirty=False))
        for entry in catalogue["implementations"]
        for path in [Path(entry["path"]).resolve()]
        if entry["name"] in selected and "foreign" not in entry
    }
    if not origins:
        raise BadInput(["there is nothing to compare: all selected steps are in other frameworks"])
    environment = make_environment(requirement)
    return VersionBases(requirement, int(allowed), origins, (), (), environment=environment)
