"""The index of published runs: Markdown that GitHub shows, and a page.

Its entries are read from the published folders.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, cast

from bench.analyse import cell_history, cell_table
from bench.analyse.cell_table import Tables
from bench.present import run_environment, sentences
from bench.present.gallery import history_tables
from bench.present.rendering import render
from bench.records import files, numbers, store, trial_results
from bench.records.git_files import tracked_folders
from bench.records.trial_results import FaultResults

MARKDOWN, PAGE = "README.md", "index.html"

RUNS, SELFTESTS, FAULTS = "Runs", "Self-tests", "Injected faults"
KINDS = {
    RUNS: "Implementations whose steps were proved equal, timed and compared.",
    SELFTESTS: "How well Lockstep detects planted differences between programs.",
    FAULTS: "What each fault that was injected into a real run left behind.",
}
"""Sections of the index."""


@dataclass(frozen=True)
class Entry:
    """One published folder."""

    kind: str
    """One of KINDS."""
    folder: str
    started: datetime
    headline: str
    made: str
    """Hardware and start time."""
    facts: list[str] = field(default_factory=list)
    page: str = "report.html"
    markdown: str = "report.md"
    picture: str = ""
    """`share.svg`, if the report has one."""
    run: tuple[store.Run, Tables] | None = field(default=None, repr=False, compare=False)
    """The stored run and its tables; None for trials of Lockstep itself."""


def find(reports: Path, also: Iterable[str] = ()) -> list[Entry]:
    """Return a folder's published runs, the newest first.

    `also` are folders that are about to be added to git. Raises StoreError if one cannot be read.
    """
    # Git tracks no trial runs. Without git, all folders count as published.
    tracked = tracked_folders(reports)
    everything = (path.name for path in reports.iterdir() if path.is_dir())
    names = {*(everything if tracked is None else tracked), *also}
    entries = [entry for name in sorted(names) for entry in _entries(reports / name)]
    entries.sort(key=lambda entry: entry.started, reverse=True)
    return sorted(entries, key=lambda one: [*KINDS].index(one.kind))


def _entries(folder: Path) -> Iterator[Entry]:
    readers = {
        store.MANIFEST: _run,
        trial_results.SELFTEST_MANIFEST: _selftest,
        trial_results.FAULTS: _faults,
    }
    for name, read in readers.items():
        if (folder / name).is_file():
            try:
                manifest, own = read(folder)
                # Hardware and date: `2 cores of AMD EPYC, 2026-11-22 15:22 UTC`.
                made = f"{run_environment.chips(manifest)}, {run_environment.started(manifest)}"
                started = datetime.fromisoformat(manifest["started_at"])
            except (OSError, ValueError, KeyError) as error:
                raise store.StoreError(f"{folder.as_posix()} cannot be read: {error!r}") from error
            yield Entry(folder=folder.name, started=started, made=made, **own)


def _run(folder: Path) -> tuple[Any, dict[str, Any]]:
    run = store.load(folder)
    manifest, found = run.manifest, cell_table.build(run)
    picture = folder / "share.svg"
    changes = "The working tree had uncommitted changes." if manifest["git"]["dirty"] else ""
    versions = ", ".join(f"{name} {number}" for name, number in manifest["versions"].items())
    facts = (sentences.tally(found.rows), sentences.decisions(found.rows), versions, changes)
    return manifest, {
        "kind": RUNS,
        "headline": sentences.headline(sentences.summaries(found)),
        "picture": picture.read_text("utf-8") if picture.is_file() else "",
        "facts": list(filter(None, facts)),
        "run": (run, found),
    }


def _selftest(folder: Path) -> tuple[Any, dict[str, Any]]:
    targets = trial_results.read(folder / trial_results.SELFTEST_FIGURES)["targets"]
    met = sum(target["met"] for target in targets)
    return trial_results.read(folder / trial_results.SELFTEST_MANIFEST), {
        "kind": SELFTESTS,
        "headline": f"{met} of {numbers.count(len(targets), 'target')} met.",
        "facts": [
            f"{'Met' if t['met'] else 'Missed'}: {t['promise']}: {t['measured']}" for t in targets
        ],
    }


def _faults(folder: Path) -> tuple[Any, dict[str, Any]]:
    results = cast("FaultResults", trial_results.read(folder / trial_results.FAULTS))
    return results, {
        "kind": FAULTS,
        "headline": f"{trial_results.summarize_faults(results)}.",
        "page": trial_results.FAULTS_PAGE,
        "markdown": trial_results.FAULTS_MARKDOWN,
    }


def build(reports: Path, also: Iterable[str] = ()) -> tuple[Path, Sequence[Entry]]:
    """Write `README.md` and `index.html`, which list all published runs, into a folder of reports.

    `also` are folders in it that are about to be added to git. Returns the page and its entries.
    Raises StoreError if a published folder cannot be read; nothing is written then.
    """
    entries = find(reports, also)
    sections = [
        (kind, about, [entry for entry in entries if entry.kind == kind])
        for kind, about in KINDS.items()
    ]
    histories = cell_history.find(entry.run for entry in entries if entry.run)
    history = {"about": history_tables.ABOUT, "tables": history_tables.tables(histories)}
    for name, markdown in ((MARKDOWN, True), (PAGE, False)):
        text = render("index", markdown=markdown, sections=sections, history=history)
        files.write(reports / name, text)
    return reports / PAGE, entries
