"""The folder of a run: finding, creating and locking it, and checks before a run is resumed."""

import contextlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from bench.measure.environment import recorded_variables
from bench.plan.content_keys import Contents, changed
from bench.plan.matrix import Plan
from bench.plan.option_values import BadInput
from bench.plan.options import Options, flag
from bench.records import files, store
from bench.records.cells import Cell
from bench.records.host import describe_code, describe_host, processor_name
from bench.records.messages import Catalogue
from bench.records.paths import REPORTS
from bench.records.printable import closest
from bench.records.rows import SCHEMA, Devices, Manifest, is_race, is_resumable

LAST = "last"
"""Stands for the newest run wherever a command takes the name of a stored run."""

OWN_FILES = "own_files.json"
"""File of a run's folder with the absolute paths of the user's own files, by option: `--resume`
needs them. The manifest, which may be published, has no folders of the user."""


def folder_faults(options: Options, *, measures: bool) -> list[str]:
    """Return why a run cannot have its name, or its rows cannot be stored; empty if they can."""
    faults, resume = [], options.resume
    if options.run is not None and resume is None:
        fault = name_fault(options.run, resumes=options.base_revision is None)
        faults += [f"--run: {fault}"] if fault else []
    folders = [Path(resume), Path(resume, store.LAUNCHES)] if resume else [REPORTS]
    for wanted in (folder.absolute() for folder in folders if measures):
        place = next(one for one in (wanted, *wanted.parents) if one.exists())
        if not (place.is_dir() and os.access(place, os.W_OK | os.X_OK)):
            why = "read-only here" if place.is_dir() else "a file"
            faults.append(f"nothing can be stored in {place}: it is {why}")
    return list(dict.fromkeys(faults))


def name_fault(name: str, *, resumes: bool = False) -> str:
    """Return why a new run cannot have this name; empty if it can."""
    if not store.NAME.fullmatch(name):
        return f"{name!r} is not a folder's name: use up to 100 letters, digits, '.', '_' and '-'"
    if name == LAST:
        return f"{LAST!r} stands for the newest run; choose another name"
    if not (REPORTS / name).exists():
        return ""
    resume = ""
    with contextlib.suppress(store.StoreError):
        if resumes and is_resumable(store.read_manifest(REPORTS / name)):
            resume = f"continue it with --resume {name}, or "
    return f"{name} exists in {REPORTS}/; {resume}choose another name"


def find_run(name: str) -> Path:
    """Find a stored run's folder by name, path or `last`; BadInput if there is none."""
    if name == LAST and (starts := [*map(_started, REPORTS.glob(f"*/{store.MANIFEST}"))]):
        return max(starts)[-1]
    folders = REPORTS / name, Path(name)
    for folder in folders:
        if (folder / store.MANIFEST).is_file():
            return folder
    for folder in folders:
        if name and folder.is_dir():
            raise BadInput([f"{folder.as_posix()} is not a run: it has no {store.MANIFEST}"])
    known = sorted(path.parent.name for path in REPORTS.glob(f"*/{store.MANIFEST}"))
    raise BadInput([f"there is no run {name!r} in {REPORTS}/; {closest(name, known)}"])


def _started(manifest: Path) -> tuple[str, bool, Path]:
    """Return a run's start in UTC, if readable; whether it is no published copy; and its folder."""
    folder, began = manifest.parent, ""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        start = datetime.fromisoformat(json.loads(manifest.read_bytes())["started_at"])
        began = start.astimezone(UTC).isoformat()
    return began, any(folder.glob("*.parquet")), folder


def resumed_options(options: Options) -> Options:
    """Add the options of the run to resume, if any; BadInput if the given ones would change it."""
    if options.resume is None:
        return options
    if options.base_revision is not None:
        fault = "a gate cannot be resumed: the working tree may have changed; start it again"
        raise BadInput([f"--resume: {fault}"])
    directory = find_run(options.resume)
    # These may be given again: paths of files, which may have moved, and options for measuring more
    # of the same or judging it by another margin. All others determine what was measured.
    free = {"implementation_path", "workload_path", "checkpoint_dir", "dry_run", "distributed"}
    free |= {"k", "budget", "launches", "margin", "target_ci", "timeout", "silence"}
    given = options.to_json()
    kept = "a resumed run keeps the options it was started with"
    faults = [f"{flag(name)}: {kept}" for name in given if name not in free]
    if options.run is not None:
        faults.append("--run: a resumed run keeps its name")
    if faults:
        raise BadInput(faults)
    manifest = store.read_manifest(directory)
    refuse_race(manifest, "resumed")
    config = manifest["config"]
    if "regress" in config:
        fault = f"{directory.name} gates a change and cannot be resumed; start it again"
        raise BadInput([f"--resume: {fault}"])
    then = {**config["options"], **own_files(directory)}
    return Options.from_json({**then, **given, "resume": str(directory)})


def refuse_race(manifest: Manifest, what: str) -> None:
    """Raise BadInput if a run is a race of functions, which cannot be, for instance, `resumed`."""
    if is_race(manifest):
        raise BadInput([f"{manifest['run']} is a race of functions, which cannot be {what}"])


def keep_own_files(directory: Path, options: Options) -> None:
    """Store where the user's own files and checkpoints are, next to the manifest."""
    named: dict[str, Any] = {
        name: [str(Path(path).absolute()) for path in paths]
        for name, paths in options.to_json().items()
        if name.endswith("_path")
    }
    if options.checkpoint_dir is not None:
        named["checkpoint_dir"] = str(Path(options.checkpoint_dir).resolve())
    if named:
        files.write(directory / OWN_FILES, json.dumps(named, indent=2))


def own_files(directory: Path) -> dict[str, Any]:
    """Return what `keep_own_files` has stored, by option; without files that have moved."""
    with contextlib.suppress(OSError, ValueError, AttributeError, TypeError):
        stored = json.loads((directory / OWN_FILES).read_bytes())
        folder = stored.pop("checkpoint_dir", None)
        own = {} if folder is None else {"checkpoint_dir": str(folder)}
        return own | {n: p for n, p in stored.items() if all(Path(path).is_file() for path in p)}
    return {}


def describe_run(
    plan: Plan,
    options: Options,
    catalogue: Catalogue,
    argv: Sequence[str],
    asked: Mapping[str, Any],
) -> Manifest:
    """Return the manifest of a run that starts now; `asked` extends its config."""
    return {
        "schema": SCHEMA,
        "run": options.run or "",
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "argv": [_portable(word) for word in argv],
        "preset": plan.preset,
        "config": {
            **plan.config,
            "options": {
                name: [_portable(word) for word in value] if name.endswith("_path") else value
                for name, value in options.to_json().items()
                if name not in ("dry_run", "distributed", "checkpoint_dir")
            },
            **asked,
        },
        **cast("Devices", {k: v for k, v in catalogue.items() if k in Devices.__annotations__}),
        "host": {**describe_host(), "usable_cores": catalogue["usable_cores"]},
        "environment": recorded_variables(),
        "git": describe_code(),
    }


def refuse_other_machine(run: store.Run, catalogue: Catalogue) -> None:
    """Raise BadInput with every difference of a run's machine and versions from those here."""
    kinds = ("platform", "device_kind", "device_count", "processes")
    both: tuple[Any, Any] = {"processes": catalogue["processes"], **run.manifest}, catalogue
    then, now = ({name: one[name] for name in kinds} | one["versions"] for one in both)
    host, before, here = run.manifest["host"], run.manifest["environment"], recorded_variables()
    then |= {"processor": host["cpu"], "cores": host["usable_cores"], "variables": before}
    now |= {"processor": processor_name(), "cores": catalogue["usable_cores"], "variables": here}
    faults = [
        f"--resume: {run.directory.name} was measured with {name} {old}, and here it is "
        f"{now.get(name)}; rows of different machines or versions do not belong in one run"
        for name, old in then.items()
        if old != now.get(name)
    ]
    if faults:
        raise BadInput(faults)


def refuse_other_sources(run: store.Run, cells: Iterable[Cell], contents: Contents) -> None:
    """Raise BadInput with the names of files that differ from those of a run's cells."""
    stored = {row["cell"]: row for row in run.cell_rows}
    names: dict[str, None] = {}
    for cell in cells:
        then = stored.get(cell.name)
        if then is not None and then["key"] != contents.key(cell):
            other = [*changed(cell, then["sources"], contents.sources(cell))]
            names |= dict.fromkeys(other or [f"{cell.name} (something other than its files)"])
    if names:
        fault = (
            f"--resume: {', '.join(names)}: changed since {run.directory.name} was measured; rows "
            "of different sources do not belong in one run. Restore the files, or start another run"
        )
        raise BadInput([fault])


def _portable(word: str) -> str:
    """Shorten an absolute path in an argument, so that it shows none of the user's folders."""
    option, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
    if not Path(value).is_absolute():  # as in `x=XLA_FLAGS=--xla_dump_to=/folder`
        option, equals, value = word.rpartition("=")
    if Path(value).is_absolute():
        here = Path(value).is_relative_to(Path.cwd())
        value = str(Path(value).relative_to(Path.cwd())) if here else Path(value).name
    return f"{option}{equals}{value}"
