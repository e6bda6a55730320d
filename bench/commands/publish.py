"""A run's folder made fit to be published: named, reduced to what is needed, checked. No jax."""

from __future__ import annotations

import getpass
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.plan.matrix import BadInput
from bench.records import files, store
from bench.records.largest_batches import FILE as MAX_BATCH
from bench.records.rows import Manifest

MOST_BYTES = 20 * 2**20
"""Size that a published folder may have: git keeps it for ever."""

_SHOWN = 10
"""Findings that are named."""

_STORED = (
    store.LAUNCHES,
    store.CELLS,
    store.SAMPLES,
    store.TRACES,
    store.LOSSES,
    MAX_BATCH,
)
"""What all the rest is made from, beside the manifest."""

_COMMON = {"", "localhost", "root", "runner", "ubuntu", "user"}
"""Names of users and hosts that tell nothing of anybody, and are words as well."""

_HOMES = re.compile(r"(?:/home/|/Users/|/root/|[A-Za-z]:\\{1,2}Users\\)[\w.-]*")

_CODE = re.compile(r'<script type="module">.*?</script>', re.DOTALL)


def publish(run: store.Run, reports: Path) -> Path:
    """Make a published folder of a run, and return it.

    It holds the manifest, the stored rows, and the report made of them: pages, plots, and tables
    as CSV; no Parquet and no traces. The run has the folder's name there. A projection that was
    made of it goes with it.

    Args:
      run: as stored.
      reports: the folder that has the published ones.

    Raises:
      BadInput: the run has no rows or damaged ones, its folder would be too large or exists, or
        something in it tells of this machine or its user.
      OSError: it cannot be written.
    """
    # Drawing libraries take seconds to load: only now, when nobody waits for an answer.
    from bench.present import predicted_curves  # noqa: PLC0415
    from bench.present.report_files import build  # noqa: PLC0415

    if run.damaged:
        raise BadInput([f"{run.directory.as_posix()} is damaged: {run.damaged[0]}"])
    target = reports / name(run)
    if target.exists():
        raise BadInput([f"{target.as_posix()} exists; remove it to publish this run in its place"])
    with tempfile.TemporaryDirectory(prefix=".publish-", dir=reports) as draft:
        folder = Path(draft, target.name)
        folder.mkdir()
        store.write_manifest(folder, {**run.manifest, "run": target.name})
        for file in _STORED:
            if (run.directory / file).exists():
                shutil.copy(run.directory / file, folder)
        projection = run.directory / predicted_curves.PAGE.parent
        if projection.is_dir():
            shutil.copytree(projection, folder / predicted_curves.PAGE.parent)
        build(store.load(folder))
        for path in folder.rglob("*.parquet"):
            path.unlink()
        faults = [*_too_large(folder), *_private(folder)]
        if faults:
            raise BadInput(faults)
        folder.rename(target)
    return target


def name(run: store.Run) -> str:
    """`gpt2-nano_2-core-cpu_2026-11-22`: workload, hardware and date.

    Raises:
      BadInput: nothing is stored of the run.
    """
    named = sorted((run.cells["workload"] + "-" + run.cells["size"]).unique())
    if not named:
        raise BadInput([f"{run.directory.as_posix()} has no cells; there is nothing to publish"])
    most = 2
    workload = "-and-".join(named) if len(named) <= most else f"{len(named)}-workloads"
    return f"{workload}_{hardware(run.manifest)}_{run.manifest['started_at'][:10]}"


def hardware(manifest: Manifest) -> str:
    """`2-core-cpu`, `nvidia-h200` or `8-nvidia-h200`."""
    if manifest["platform"] == "cpu":
        return f"{manifest['host']['usable_cores']}-core-cpu"
    kind = files.slug(manifest["device_kind"])
    count = manifest["device_count"]
    return kind if count == 1 else f"{count}-{kind}"


def _too_large(folder: Path) -> Iterator[str]:
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    if size > MOST_BYTES:
        yield (
            f"it would have {size / 2**20:.1f} MiB, and may have {MOST_BYTES / 2**20:.0f}; publish "
            "a run of fewer blocks or rounds"
        )


def _private(folder: Path) -> list[str]:
    """Where a file tells of this machine or its user; the first findings in full."""
    found = [
        f"{path.relative_to(folder).as_posix()}, line {number}: {what!r} tells of this machine or "
        "its user"
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix != ".png"
        for number, line in enumerate(_own(path.read_text("utf-8")).splitlines(), start=1)
        for what in _telling(line)
    ]
    more = len(found) - _SHOWN
    return [*found[:_SHOWN], f"and {more} more"] if more > 0 else found


def _own(text: str) -> str:
    """A file without the code of a page, which is the same in every report; its lines stay."""
    return _CODE.sub(lambda code: "\n" * code[0].count("\n"), text)


def _telling(line: str) -> list[str]:
    """What in a line is a folder of this machine or somebody's, or a name of user or host."""
    folders = {str(Path.cwd()), str(Path.home()), tempfile.gettempdir()}
    if sys.prefix != sys.base_prefix:  # a virtual environment
        folders.add(sys.prefix)
    names = {_user(), platform.node(), platform.node().partition(".")[0]} - _COMMON
    found = [f"{path}/" for path in sorted(folders - {"/"}) if f"{path}/" in line]
    found += [
        one for one in sorted(names) if re.search(rf"(?<![\w-]){re.escape(one)}(?![\w-])", line)
    ]
    return found or [match[0] for match in [_HOMES.search(line)] if match]


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return ""
