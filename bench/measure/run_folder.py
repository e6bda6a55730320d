"""The folder of a stored run: how it is found by its name, and what a resumed run takes from it."""

from __future__ import annotations

from pathlib import Path

from bench.plan.matrix import BadInput
from bench.plan.options import Options
from bench.records import store
from bench.records.paths import REPORTS
from bench.records.spelling import closest


def name_faults(name: str) -> list[str]:
    """Find out why a new folder in reports/ cannot have this name; an empty list if it can."""
    if Path(name).name != name:
        return [f"--run: {name!r} is not a plain name of a folder"]
    if not (REPORTS / name).exists():
        return []
    is_run = (REPORTS / name / store.MANIFEST).is_file()
    resume = f"continue it with --resume {name}, or " if is_run else ""
    return [f"--run: {name} exists in {REPORTS}/; {resume}choose another name"]


def find_run(name: str) -> Path:
    """The folder of a stored run, given by its name or its path.

    Raises:
      BadInput: there is none.
    """
    folders = (REPORTS / name, Path(name))
    for folder in folders:
        if (folder / store.MANIFEST).is_file():
            return folder
    for folder in folders:
        if folder.is_dir():
            raise BadInput([f"{folder.as_posix()} is no run: it has no {store.MANIFEST}"])
    known = sorted(path.parent.name for path in REPORTS.glob(f"*/{store.MANIFEST}"))
    raise BadInput([f"there is no run {name!r} in {REPORTS}/; {closest(name, known)}"])


def stored_options(options: Options) -> Options:
    """With `--resume`, the options that the run was started with.

    Raises:
      BadInput: there is no such run, or options that would change it were given.
    """
    if options.resume is None:
        return options
    if options.base_revision is not None:
        fault = "a gate is not continued: the working tree may have changed since; start it again"
        raise BadInput([f"--resume: {fault}"])
    directory = find_run(options.resume)
    # Files outside the checkout may lie elsewhere now, so their paths may be given anew.
    free = {"implementation_path", "workload_path", "checkpoint_dir", "dry_run", "distributed"}
    given = options.to_json()
    faults = [
        f"--{name.replace('_', '-')}: a resumed run keeps the options it was started with"
        for name in given
        if name not in free
    ]
    if options.run is not None:
        faults.append("--run: a resumed run keeps its name")
    if faults:
        raise BadInput(faults)
    config = store.read_manifest(directory)["config"]
    if "regress" in config:
        fault = f"{directory.name} gates a change and is not continued; start it again"
        raise BadInput([f"--resume: {fault}"])
    stored = config["options"]
    kept = {name: value for name, value in given.items() if name in free}
    return Options.from_json({**stored, **kept, "resume": str(directory)})
