"""Entries of the gallery, read from the published folders."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, cast

from bench.analyse import cell_table
from bench.analyse.cell_table import Tables
from bench.present import run_environment, sentences
from bench.records import numbers, store, trial_results
from bench.records.git_files import tracked_folders
from bench.records.trial_results import FaultResults

RUNS, SELFTESTS, FAULTS = "Runs", "Self-tests", "Injected faults"
KINDS = {
    RUNS: "Implementations whose steps were proved equal, timed and compared.",
    SELFTESTS: "How well the suite detects planted differences between programs.",
    FAULTS: "What each fault that was injected into a real run left behind.",
}
"""Sections of the index."""

_MET = {True: "Met", False: "Missed"}


class EntryError(Exception):
    """A published folder cannot be read; the message says which and why."""


@dataclass(frozen=True)
class Entry:
    """One published folder."""

    kind: str
    """One of KINDS."""
    folder: str
    started: datetime
    headline: str
    made: str
    """On which hardware, and when."""
    facts: list[str]
    timed: int = 0
    """Cells with a time."""
    page: str = "report.html"
    """File name of the page."""
    markdown: str = "report.md"
    """File name of the Markdown version."""
    picture: str = ""
    """`share.svg`, if the report has one."""
    dirty: bool = False
    """Whether the working tree had uncommitted changes, so that the code is not the commit's."""
    run: tuple[store.Run, Tables] | None = field(default=None, repr=False, compare=False)
    """The stored run and its tables; None for trials of the suite itself."""


def find(reports: Path, also: Iterable[str] = ()) -> list[Entry]:
    """Return a folder's published runs: clean commits first, then the largest, then the newest.

    `also` are folders that are about to be added to git.

    Raises:
      EntryError: a folder cannot be read.
    """
    folders = [reports / name for name in sorted({*_published(reports), *also})]
    entries = [entry for folder in folders for entry in _entries(folder)]
    entries.sort(key=lambda entry: entry.started, reverse=True)
    kinds = list(KINDS)
    return sorted(entries, key=lambda one: (kinds.index(one.kind), one.dirty, -one.timed))


def _published(reports: Path) -> Iterable[str]:
    """Return the folders that git tracks, which excludes trial runs; without git, all folders."""
    tracked = tracked_folders(reports)
    return tracked if tracked is not None else [p.name for p in reports.iterdir() if p.is_dir()]


def _entries(folder: Path) -> Iterator[Entry]:
    readers = {
        store.MANIFEST: _run,
        trial_results.SELFTEST_MANIFEST: _selftest,
        trial_results.FAULTS: _faults,
    }
    for name, read in readers.items():
        if (folder / name).is_file():
            try:
                yield read(folder)
            except store.StoreError as error:
                raise EntryError(str(error)) from error
            except (OSError, ValueError, KeyError) as error:
                raise EntryError(f"{folder.as_posix()} cannot be read: {error!r}") from error


def _run(folder: Path) -> Entry:
    run = store.load(folder)
    manifest, found = run.manifest, cell_table.build(run)
    git = manifest["git"]
    versions = [f"{name} {number}" for name, number in manifest["versions"].items()]
    blocks, picture = found.comparisons, folder / "share.svg"
    facts = {
        "Cells": sentences.tally(found.cells),
        "Verdicts": sentences.decisions(found.cells),
        "Workloads": ", ".join(dict.fromkeys(f"{c.block.workload}-{c.block.size}" for c in blocks)),
        "Meshes": "; ".join(dict.fromkeys(str(c.block.mesh) for c in blocks)),
        "Versions": ", ".join(versions),
        "Commit": f"{git.get('commit')} with uncommitted changes" if git.get("dirty") else "",
    }
    return Entry(
        kind=RUNS,
        folder=folder.name,
        started=datetime.fromisoformat(manifest["started_at"]),
        dirty=bool(git.get("dirty")),
        timed=int((found.cells["status"] == "ok").sum()),
        made=_made(manifest),
        headline=sentences.headline(sentences.summaries(found)),
        picture=picture.read_text("utf-8") if picture.is_file() else "",
        facts=[f"{name}: {value}" for name, value in facts.items() if value],
        run=(run, found),
    )


def _selftest(folder: Path) -> Entry:
    manifest = trial_results.read(folder / trial_results.SELFTEST_MANIFEST)
    targets = trial_results.read(folder / trial_results.SELFTEST_FIGURES)["targets"]
    missed = [target for target in targets if not target["met"]]
    headline = f"{len(targets) - len(missed)} of {numbers.count(len(targets), 'target')} met."
    facts = [f"{_MET[t['met']]}: {t['promise']}: {t['measured']}" for t in targets]
    return Entry(
        kind=SELFTESTS,
        folder=folder.name,
        started=datetime.fromisoformat(manifest["started_at"]),
        headline=headline,
        made=_made(manifest),
        facts=facts,
    )


def _faults(folder: Path) -> Entry:
    results = cast("FaultResults", trial_results.read(folder / trial_results.FAULTS))
    return Entry(
        kind=FAULTS,
        folder=folder.name,
        started=datetime.fromisoformat(results["started_at"]),
        headline=f"{trial_results.summarize_faults(results)}.",
        made=_made(results),
        facts=[],
        page=trial_results.FAULTS_PAGE,
        markdown=trial_results.FAULTS_MARKDOWN,
    )


def _made(manifest: Any) -> str:
    """Return hardware and date: `2 cores of AMD EPYC, 2026-11-22 15:22 UTC`."""
    return f"{run_environment.chips(manifest)}, {run_environment.started(manifest)}"
