"""The folder of a published run: named, reduced to the files that readers need, and checked."""

import getpass
import itertools
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.records import derived_files, files, store
from bench.records.largest_batches import FILE as MAX_BATCH
from bench.records.rows import Manifest

MOST_BYTES = 20 * 2**20
"""Size limit of a published folder, because git keeps it forever."""

_SHOWN = 10
"""Limit on the private details that an error message lists."""

_COMMON = {"", "localhost", "root", "runner", "ubuntu", "user"}
"""Names of users and hosts that are ordinary words and identify nobody."""

_HOMES = re.compile(r"(?:/home/|/Users/|/root/|[A-Za-z]:\\{1,2}Users\\)[\w.-]*")

_PACKED = re.compile(r'"[^"\s]{200,}"')
_CODE = re.compile(r'<script type="module">.*?</script>', re.DOTALL)


def publish(run: store.Run, reports: Path) -> Path:
    """Make a published folder of a run, and return it.

    The folder holds the manifest, the stored rows, and the report built from them (pages, plots,
    and tables as CSV), but neither Parquet files nor traces. The manifest names the run after the
    folder. A projection of the run is copied along.

    Raises StoreError if the run has no rows or damaged ones, is too large, or contains private
    details of this machine or its user; OSError if the folder cannot be written.
    """
    # Drawing libraries take seconds to load, and a run may be refused before they are needed.
    from bench.present.report_files import build  # noqa: PLC0415

    if damaged := [*run.damaged, *derived_files.damage(run.directory)]:
        raise store.StoreError(f"{run.directory.as_posix()} is damaged: {damaged[0]}")
    target = _free_folder(run, reports)
    with tempfile.TemporaryDirectory(prefix=".publish-", dir=reports) as draft:
        folder = Path(draft, target.name)
        folder.mkdir()
        store.write_manifest(folder, {**run.manifest, "run": target.name})
        shutil.copytree(run.directory / store.LAUNCHES, folder / store.LAUNCHES)
        if (run.directory / MAX_BATCH).exists():
            shutil.copy(run.directory / MAX_BATCH, folder)
        projection = run.directory / derived_files.PROJECTION
        if projection.is_dir():
            shutil.copytree(projection, folder / derived_files.PROJECTION)
        build(store.load(folder))
        for path in folder.rglob("*.parquet"):
            path.unlink()
        if (folder / derived_files.PROJECTION / derived_files.SEALS).exists():
            derived_files.seal(folder / derived_files.PROJECTION)
        if reasons := [*_too_large(folder), *itertools.islice(_private(folder), _SHOWN)]:
            raise store.StoreError("\n".join(reasons))
        if target.exists():
            target.rename(Path(draft, "replaced"))
        folder.rename(target)
    return target


def _free_folder(run: store.Run, reports: Path) -> Path:
    """Return the run's published folder, numbered if other runs have taken its name.

    An earlier publication of the run itself is replaced: the run may have been continued since.
    Raises StoreError if a folder with its name cannot be read.
    """
    name = target = published_name(run)
    for number in itertools.count(2):
        if not (reports / target).exists():
            break
        try:
            published = store.load(reports / target)
        except store.StoreError as error:
            where = (reports / target).as_posix()
            raise store.StoreError(f"{where} cannot be read; remove it ({error})") from error
        if {one.attempt for one in published.launches} & {one.attempt for one in run.launches}:
            break
        target = f"{name}_{number}"
    return reports / target


def published_name(run: store.Run) -> str:
    """Name a run by workload, hardware and date: `gpt2-nano_2-core-cpu_2026-11-23`.

    A run of a preset's many workloads is named after the preset. Raises StoreError if the run has
    no cells.
    """
    workloads = sorted({f"{row['workload']}-{row['size']}" for row in run.cell_rows})
    if not workloads:
        fault = f"{run.directory.as_posix()} has no cells; there is nothing to publish"
        raise store.StoreError(fault)
    most = 2
    chosen = "workloads" in run.manifest["config"]["options"]
    many = f"{len(workloads)}-workloads" if chosen else run.manifest["preset"]
    named = "-and-".join(workloads) if len(workloads) <= most else many
    return f"{named}_{hardware_name(run.manifest)}_{run.manifest['started_at'][:10]}"


def hardware_name(manifest: Manifest) -> str:
    """Name the hardware of a run: `2-core-cpu`, `nvidia-h200` or `8-nvidia-h200`."""
    if manifest["platform"] == "cpu":
        return f"{manifest['host']['usable_cores']}-core-cpu"
    kind, count = files.slug(manifest["device_kind"]), manifest["device_count"]
    return kind if count == 1 else f"{count}-{kind}"


def _too_large(folder: Path) -> Iterator[str]:
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    if size > MOST_BYTES:
        yield (
            f"it would take {size / 2**20:.1f} MiB, at most {MOST_BYTES / 2**20:.0f} are allowed; "
            "publish a run of fewer blocks or rounds"
        )


def _private(folder: Path) -> Iterator[str]:
    """Yield the details of this machine or its user in each file, once for each."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix not in {".pdf", ".png"}:
            for detail in _private_words(_without_code(path.read_text("utf-8"))):
                where = path.relative_to(folder).as_posix()
                yield f"{where}: {detail!r} identifies this machine or its user"


def _without_code(text: str) -> str:
    """Remove a page's script, which is the same in every report.

    Long quoted texts without spaces are removed too: compressed data may contain a name by chance.
    """
    return _CODE.sub("", _PACKED.sub("", text))


def _private_words(text: str) -> list[str]:
    """Return folders of this machine, a home folder, or names of the user or host in a text."""
    folders = {str(Path.cwd()), str(Path.home()), tempfile.gettempdir()}
    if sys.prefix != sys.base_prefix:  # a virtual environment
        folders.add(sys.prefix)
    names = {_user(), platform.node(), platform.node().partition(".")[0]} - _COMMON
    words = [f"{path}/" for path in sorted(folders - {"/"}) if f"{path}/" in text]
    words += [
        name for name in sorted(names) if re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text)
    ]
    return words or [match[0] for match in [_HOMES.search(text)] if match]


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # the user of a container may have no name
        return ""
