"""Environments with another jax, and arms that run implementations in them.

Uv makes an environment, which meets the requirement and the project's dependencies and is kept in
the user's cache. Its folder is named after all resolved versions, so that a different resolution on
another day makes a new environment. The arms are the bases of a gate, or variants.
"""

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

from bench.plan.base_revisions import Bases
from bench.plan.matrix import Plan
from bench.plan.option_values import BadInput
from bench.plan.options import Options
from bench.plan.presets import is_exact
from bench.records import files
from bench.records.arms import version_arm
from bench.records.cells import base_of
from bench.records.messages import JAX_CHILD, BaseFile, Catalogue, ImplementationEntry
from bench.records.paths import CHECKOUT, ROOT, module_command
from bench.records.printable import readable
from bench.records.temporary_folders import temporary_folder
from bench.records.variants import required_file

TIMEOUT_S = 1200.0
SHOWN = ("jax", "jaxlib", "flax", "optax")
"""Packages whose versions distinguish environments."""

_READY = "ready"
"""A file that marks a complete environment."""


@dataclass(frozen=True)
class Environment:
    """A Python with its own packages."""

    python: Path
    versions: dict[str, str]
    """Versions of Python and of the packages in SHOWN."""


def make_environment(requirement: str, *, install: bool = True) -> Environment:
    """Make an environment that meets a requirement, or find it in the cache.

    A requirement is a specifier, `jax==0.10.2`, or the path of a requirements file or a wheel. The
    running Python is tried first, and then the others that are installed, the newest first. Without
    `install`, versions are resolved and nothing is installed, which is enough for a plan. Raises
    BadInput if uv or the file is missing, or if no installed Python supports the requirement.
    """
    if shutil.which("uv") is None:
        raise BadInput([f"{requirement} needs an environment, which uv makes: `pip install uv`"])
    line, content = requirement, b""
    if file := required_file(requirement):
        if not file.is_file():
            raise BadInput([f"there is no file {requirement}"])
        line = f"-r {file.resolve()}" if file.suffix == ".txt" else str(file.resolve())
        content = file.read_bytes()
        if file.suffix == ".txt" and not re.search(rb"^\s*[^#\s]", content, re.MULTILINE):
            raise BadInput([f"{requirement} names no package"])
    wanted = "\n".join([line, *_dependencies()])
    reasons: dict[str, list[str]] = {}
    for version, python in _pythons().items():
        done = _compiled(wanted, python)
        if done.returncode:
            reason = readable(" ".join(done.stderr.split())).removeprefix("error: ")
            reason = reason[max(reason.find("Because"), 0) :]  # after uv's own heading
            reasons.setdefault(reason, []).append(version)
            continue
        known = dict(filter(None, map(_pinned, done.stdout.splitlines())))
        versions = {"python": version} | {name: known[name] for name in SHOWN if name in known}
        own_root = b"" if CHECKOUT else bytes(ROOT)
        parts = files.digest(done.stdout.encode() + content + own_root)
        name = f"jax-{known['jax']}-python-{version}-{parts}"
        folder = user_cache_path("lockstep-environments") / name
        own = folder / "bin" / "python"
        if install and not (folder / _READY).exists():
            with files.locked(folder.with_name(f"{name}.lock")):
                if not (folder / _READY).exists():  # another process may have made it meanwhile
                    _install(folder, python, own, done.stdout)
        return Environment(own, versions)
    refusals = "; ".join(f"Python {' and '.join(on)}: {reason}" for reason, on in reasons.items())
    raise BadInput([f"uv cannot install {requirement} with the project's dependencies. {refusals}"])


def releases_between(package: str, first: str, last: str) -> list[str]:
    """List releases between two that support this Python, oldest first; BadInput if uv fails."""
    found: list[str] = []
    while True:
        wanted = f"{package}>{first},<{found[0] if found else last}"
        done = _compiled(wanted, sys.executable, "--no-deps")
        if done.returncode and "No solution found" in done.stderr and "network" not in done.stderr:
            return found
        if done.returncode:
            last = readable(done.stderr.strip().rpartition("\n")[2].strip())
            raise BadInput([f"uv cannot list the releases {wanted}: {last}"])
        found.insert(0, done.stdout.split("==")[1].split()[0])


def _pinned(line: str) -> tuple[str, str] | None:
    """Return the package and its version from a line such as `jax==0.10.2` or `jax @ FILE.whl`."""
    name, _, version = line.partition(" ")[0].partition("==")
    if " @ " in line and line.endswith(".whl"):
        version = Path(line).name.split("-")[1]
    return (name, version) if version else None


def _compiled(wanted: str, python: str, *more: str) -> subprocess.CompletedProcess[str]:
    """Resolve requirements for a Python; the output has a line for each package."""
    plain = ("--no-header", "--no-annotate", "--no-emit-index-url", "--quiet")
    return _uv("pip", "compile", "-", "--python", python, *plain, *more, text=wanted)


def _install(folder: Path, python: str, own: Path, requirements: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)  # left by an interrupted installation
    done = _uv("venv", "--quiet", "--python", python, str(folder))
    if not done.returncode:
        words = ("pip", "install", "--quiet", "--python", str(own), "-r", "-")
        done = _uv(*words, text=requirements)
    if done.returncode:
        raise BadInput([f"uv cannot make {folder}: {readable(' '.join(done.stderr.split()))}"])
    if not CHECKOUT:  # workers find an installed Lockstep last, after the environment's packages
        for packages in folder.rglob("site-packages"):
            (packages / "lockstep.pth").write_text(f"{ROOT}\n")
    (folder / _READY).touch()


def _uv(*words: str, text: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "UV_PYTHON_DOWNLOADS": "never"}
    environment.pop("VIRTUAL_ENV", None)
    try:
        return subprocess.run(  # noqa: S603
            ["uv", *words],  # noqa: S607 (the uv on the path is wanted)
            input=text, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise BadInput([f"`uv {words[0]}` did not end within {TIMEOUT_S / 60:.0f} min"]) from None


def _pythons() -> dict[str, str]:
    """Find the installed Pythons that Lockstep supports: a path for each `major.minor` version."""
    found = {f"{sys.version_info.major}.{sys.version_info.minor}": sys.executable}
    listed = _uv("python", "list", "--only-installed", "--output-format", "json")
    entries = json.loads(listed.stdout or "[]")
    for entry in sorted(entries, key=lambda one: one["version_parts"]["minor"], reverse=True):
        parts = entry["version_parts"]
        fits = entry["implementation"] == "cpython" and (parts["major"], parts["minor"]) >= (3, 11)
        if fits and entry["path"]:
            found.setdefault(f"{parts['major']}.{parts['minor']}", entry["path"])
    return found


def _dependencies() -> list[str]:
    if CHECKOUT:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
        return list(project["dependencies"])
    required = importlib.metadata.requires("lockstep") or []
    return [each for each in required if "extra ==" not in each]


def write_arm(
    folder: Path, name: str, origin: Path, environment: Environment, variables: Mapping[str, str]
) -> Path:
    """Write the foreign file of an arm that runs an implementation in another environment.

    It is named after the arm, and has the digest of the implementation's file `origin`, so that
    they change together. `variables` are those of a variant.
    """
    command = [*module_command(JAX_CHILD, str(environment.python)), str(origin)]
    traits = {"packages": ["jax"], "command": command, "variables": dict(variables)}
    path = folder / f"{name}.py"
    text = f'"""{name}, {files.digest(origin.read_bytes())}."""\n\nFOREIGN = {traits}\n'
    if not path.exists() or path.read_text("utf-8") != text:  # another run may be reading it
        files.write(path, text)
    return path


def with_versions(
    plan: Plan, catalogue: Catalogue, *, install: bool = True
) -> tuple[Plan, Catalogue]:
    """Give each exact JAX implementation an arm for each variant that runs beside the worker.

    The plan and the catalogue that it was made from list the arms as further implementations.
    Their files are kept beside the environment, so that an interrupted run finds them again.
    Without `install`, as for a dry run, packages are not installed. Raises BadInput if an
    environment cannot be made.
    """
    entries = {entry["name"]: entry for entry in catalogue["implementations"]}
    names = [name for name in plan.implementations if is_exact(entries[name])]
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
            folder = kept / "arms" / files.digest(f"{origin} {variant}".encode())
            folder.mkdir(parents=True, exist_ok=True)
            path = str(write_arm(folder, arm, origin, environment, variant.variables))
            added.append(
                ImplementationEntry(name=arm, path=path, error="", foreign=environment.versions)
            )
    paths = [*plan.worker["implementation_paths"], *(entry["path"] for entry in added)]
    implementations = (*plan.implementations, *(entry["name"] for entry in added))
    worker = plan.worker | {"implementation_paths": paths}
    plan = replace(plan, implementations=implementations, worker=worker)
    return plan, {**catalogue, "implementations": [*catalogue["implementations"], *added]}


@dataclass(frozen=True)
class VersionBases(Bases):
    """Bases that run in processes of another environment, as foreign arms."""

    environment: Environment = field(kw_only=True)

    @contextmanager
    def checked_out(self) -> Iterator[dict[str, BaseFile]]:
        """Write a foreign file for each implementation while the context is open."""
        with temporary_folder() as folder:
            files, place = {}, str(folder)
            for name, origin in self.origins.items():
                path = str(write_arm(folder, name, origin, self.environment, {}))
                files[base_of(name)] = BaseFile(path=path, worktree=place, repository=place)
            yield files

    def record(self) -> dict[str, Any]:
        """Return the manifest's entry."""
        return super().record() | {"versions": self.environment.versions}


def find_versions(
    options: Options, catalogue: Catalogue, selected: Sequence[str], *, install: bool
) -> VersionBases:
    """Make the environment of a gate of the selected implementations, or raise BadInput."""
    requirement = options.base_revision or ""
    origins = {
        entry["name"]: Path(entry["path"]).resolve()
        for entry in catalogue["implementations"]
        if entry["name"] in selected and is_exact(entry)
    }
    if not origins:
        why = "all steps are approximate or in other frameworks"
        raise BadInput([f"there is nothing to compare: {why}"])
    environment = make_environment(requirement, install=install)
    return VersionBases(requirement, origins, {}, (), (), environment=environment)
