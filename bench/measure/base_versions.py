"""Arms that run implementations in another environment: a gate's bases, and variants."""

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

from bench.measure.version_environments import SHOWN, Environment, make_environment
from bench.plan.base_revisions import Bases, Origin
from bench.plan.content_keys import digest
from bench.plan.git_revisions import Repository
from bench.plan.matrix import Plan
from bench.plan.option_values import BadInput, collected, undecided
from bench.plan.options import Options
from bench.records import files
from bench.records.arms import version_arm
from bench.records.cells import base_of
from bench.records.messages import BaseFile, Catalogue, ImplementationEntry
from bench.records.temporary_folders import temporary_folder

CHILD = "bench.worker.foreign.jax_child"


def write_arm(
    folder: Path,
    name: str,
    origin: Path,
    environment: Environment,
    variables: Mapping[str, str] | None = None,
) -> Path:
    """Write the foreign file of an arm that runs an implementation in another environment.

    Args:
      folder: where to write it.
      name: the arm's, which becomes the file's.
      origin: the implementation's file, whose digest is written so that they change together.
      environment: whose Python runs the arm.
      variables: those of a variant.
    """
    command = [str(environment.python), "-m", CHILD, str(origin)]
    traits: dict[str, Any] = {"packages": ["jax"], "command": command}
    if variables:
        traits["variables"] = dict(variables)
    path = folder / f"{name}.py"
    text = f'"""{name}, {digest(origin.read_bytes())}."""\n\nFOREIGN = {traits}\n'
    if not path.exists() or path.read_text("utf-8") != text:  # another run may be reading it
        files.write(path, text)
    return path


def with_versions(
    plan: Plan, catalogue: Catalogue, *, install: bool = True
) -> tuple[Plan, Catalogue]:
    """Add an arm for each variant beside the worker to each of the plan's JAX implementations.

    Returns:
      The plan, and the catalogue that it was made from, with the arms as further implementations.
      Their files are kept beside the environment, so that an interrupted run finds them again.
      Without `install`, as for a dry run, packages are not installed.

    Raises:
      BadInput: an environment cannot be made.
    """
    entries = {entry["name"]: entry for entry in catalogue["implementations"]}
    names = [name for name in plan.implementations if "foreign" not in entries[name]]
    added: list[ImplementationEntry] = []
    for variant in plan.variants:
        if variant.requirement:
            environment = make_environment(variant.requirement, install=install)
            kept = environment.python.parents[1]
        elif variant.raced:
            known = catalogue["versions"]
            versions = {name: known[name] for name in ("python", *SHOWN) if name in known}
            environment = Environment(Path(sys.executable), versions)
            kept = user_cache_path("lockstep-environments")
        else:
            continue
        for name in names:
            origin, arm = Path(entries[name]["path"]).resolve(), version_arm(name, variant.name)
            folder = kept / "arms" / digest(f"{origin} {variant}".encode())
            folder.mkdir(parents=True, exist_ok=True)
            path = str(write_arm(folder, arm, origin, environment, variant.variables))
            summary = f"{name} with {variant}."
            added.append(
                ImplementationEntry(
                    name=arm, path=path, summary=summary, error="", foreign=environment.versions
                )
            )
    paths = [*plan.worker["implementation_paths"], *(entry["path"] for entry in added)]
    return (
        replace(
            plan,
            implementations=(*plan.implementations, *(entry["name"] for entry in added)),
            worker={**plan.worker, "implementation_paths": paths},
        ),
        {**catalogue, "implementations": [*catalogue["implementations"], *added]},
    )


@dataclass(frozen=True)
class VersionBases(Bases):
    """Bases that run in processes of another environment, as foreign arms."""

    environment: Environment = field(kw_only=True)

    @contextlib.contextmanager
    def checked_out(self) -> Iterator[dict[str, BaseFile]]:
        """Write a foreign file for each implementation while the context is open."""
        with temporary_folder() as folder:
            yield {
                base_of(name): BaseFile(
                    path=str(write_arm(folder, name, origin.path, self.environment)),
                    worktree=str(folder),
                    repository=str(folder),
                )
                for name, origin in self.origins.items()
            }

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
    requirement, faults = options.base_revision or "", list[str]()
    allowed = collected(faults, undecided, options.allow_undecided or "0", "--allow-undecided")
    if faults:
        raise BadInput(faults)
    origins = {
        entry["name"]: Origin(path, Repository(path.parent, "", "", dirty=False))
        for entry in catalogue["implementations"]
        for path in [Path(entry["path"]).resolve()]
        if entry["name"] in selected and "foreign" not in entry
    }
    if not origins:
        raise BadInput(["there is nothing to compare: all selected steps are in other frameworks"])
    environment = make_environment(requirement)
    return VersionBases(requirement, allowed or 0, origins, (), (), environment=environment)
