"""A run: its folder and manifest, which blocks are stored, and the measuring of the others.

Knows nothing of pytest. Imports no jax.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, cast

import pandas as pd

from bench import peaks, store
from bench.cells import Block, Cell
from bench.environment import relevant_variables
from bench.host import describe_code, describe_host
from bench.matrix import BadInput, Plan, closest
from bench.options import Options
from bench.protocol import Catalogue, PhaseEvent
from bench.rows import SCHEMA, Manifest, Status
from bench.supervisor import Settings, run_block

REPORTS = Path("reports")
PROFILES = Path("profiles")
"""Folders of the working directory."""

_EXTRA = ("model_flops", "unit", "units_per_step", "interleaved", "profile")


@dataclass(frozen=True)
class Result:
    """How one cell ended."""

    status: Status
    reason: str
    step_seconds: tuple[float, ...]
    """Throughput time of one step, of each sample; empty unless ok."""
    extra: Mapping[str, Any]
    """Figures of the cell row that a reader of the samples wants beside them."""


def find_run(name: str) -> Path:
    """The folder of a stored run, given by its name or its path.

    Raises:
      BadInput: there is none.
    """
    for folder in (REPORTS / name, Path(name)):
        if (folder / store.MANIFEST).is_file():
            return folder
    known = sorted(path.parent.name for path in REPORTS.glob(f"*/{store.MANIFEST}"))
    raise BadInput([f"there is no run {name!r} in {REPORTS}/; {closest(name, known)}"])


def stored_options(options: Options) -> Options:
    """With `--resume`, the options that the run was started with.

    Raises:
      BadInput: there is no such run, or options that would change it were given.
    """
    if options.resume is None:
        return options
    directory = find_run(options.resume)
    # Files outside the checkout may lie elsewhere now, so their paths may be given anew.
    free = {"implementation_path", "workload_path", "dry_run"}
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
    stored = store.read_manifest(directory)["config"]["options"]
    kept = {name: value for name, value in given.items() if name in free}
    return Options.from_json({**stored, **kept, "resume": str(directory)})


class Engine:
    """Measures blocks of a plan into one run's folder, which it makes when it is first needed."""

    def __init__(
        self, plan: Plan, options: Options, catalogue: Catalogue, argv: Sequence[str]
    ) -> None:
        self.plan = plan
        self.directory: Path | None = None
        self._options = options
        self._catalogue = catalogue
        self._argv = argv
        self._results: dict[str, Result] = {}
        self._launches: dict[str, int] = {}
        if options.resume is not None:
            self.directory = Path(options.resume)
            self._read_stored(self.directory)
        elif options.run is not None and Path(options.run).name != options.run:
            raise BadInput([f"--run: {options.run!r} is not a plain name of a folder"])
        elif options.run is not None and (REPORTS / options.run).exists():
            fault = (
                f"--run: {options.run} exists in {REPORTS}/; "
                f"continue it with --resume {options.run}, or choose another name"
            )
            raise BadInput([fault])

    @property
    def platform(self) -> str:
        """`cpu`, `gpu` or `tpu`."""
        return self._catalogue["platform"]

    def result(self, cell: Cell) -> Result | None:
        """How the cell ended; None if it has not been measured."""
        return self._results.get(cell.name)

    def measure(
        self,
        block: Block,
        implementations: Sequence[str],
        progress: Callable[[PhaseEvent], None],
    ) -> None:
        """Measure and store these implementations of a block, side by side."""
        directory = self.directory or self._create()
        launch = self._launches.get(block.name, 0)
        for attempt in run_block(block, implementations, self._settings(), progress, launch):
            store.append_block(directory, attempt.samples, attempt.cells, attempt.block)
            self._results |= _results(
                attempt.cells, attempt.samples, self._catalogue["device_kind"]
            )
        self._launches[block.name] = launch + 1

    def _read_stored(self, directory: Path) -> None:
        run = store.load(directory)
        then, now = run.manifest, self._catalogue
        faults = [
            f"--resume: {directory.name} was measured with {name} {old}, and here it is {new}; "
            "rows of different machines or versions do not belong in one run"
            for name, old, new in [
                *((key, then[key], now[key]) for key in ("platform", "device_kind")),
                ("device_count", then["device_count"], now["device_count"]),
                *((key, old, now["versions"].get(key)) for key, old in then["versions"].items()),
            ]
            if old != new
        ]
        if faults:
            raise BadInput(faults)
        self._results = _results(_rows(run.cells), _rows(run.samples), now["device_kind"])
        for block, launch in store.completed(directory):
            self._launches[block] = max(self._launches.get(block, 0), launch + 1)

    def _create(self) -> Path:
        catalogue = self._catalogue
        manifest: Manifest = {
            "schema": SCHEMA,
            "run": self._options.run or "",
            "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "argv": [_portable(word) for word in self._argv],
            "preset": self.plan.preset,
            "config": {**self.plan.config, "options": _portable_options(self._options)},
            "platform": catalogue["platform"],
            "device_kind": catalogue["device_kind"],
            "device_count": catalogue["device_count"],
            "device_memory_bytes": catalogue["device_memory_bytes"],
            "host": describe_host(),
            "versions": catalogue["versions"],
            "environment": relevant_variables(),
            "git": describe_code(),
        }
        try:
            self.directory = store.create(REPORTS, manifest)
        except store.StoreError as error:
            raise BadInput([str(error)]) from error
        return self.directory

    def _settings(self) -> Settings:
        plan, options = self.plan, self._options
        profile = plan.profile_steps > 0
        return Settings(
            platform=self._catalogue["platform"],
            baseline=plan.baseline,
            rounds=plan.rounds,
            seconds=plan.seconds,
            timeout_s=plan.timeout_s,
            implementation_paths=_absolute(options.implementation_path),
            workload_paths=_absolute(options.workload_path),
            profile_dir=str(PROFILES.resolve()) if profile else None,
            profile_run=self.directory.name if self.directory else "",
            profile_steps=plan.profile_steps,
        )


def _results(
    cells: Iterable[Mapping[str, Any]], samples: Iterable[Mapping[str, Any]], device_kind: str
) -> dict[str, Result]:
    """How cells ended. A time that no device of this kind could reach makes a cell wrong."""
    times: dict[tuple[str, str], list[float]] = {}
    for row in samples:
        key = (row["attempt"], row["arm"])
        times.setdefault(key, []).append(row["throughput_ns"] / row["steps"] / 1e9)
    results = {}
    for row in cells:
        measured = times.get((row["attempt"], row["implementation"]), [])
        # A stored frame has a column for every figure, and NaN (unlike itself) where it lacks one.
        extra = {
            key: row[key] for key in _EXTRA if row.get(key) is not None and row[key] == row[key]
        }
        status, reason = row["status"], row["reason"]
        published = peaks.peak(device_kind, row["precision"])
        if measured and published is not None:
            used = peaks.mfu(row["model_flops"], median(measured), row["devices"], published)
            if used > 1:
                status, measured = "wrong", []
                reason = f"its time would mean {used:.0%} of the device's published peak"
        results[row["cell"]] = Result(status, reason, tuple(measured), extra)
    return results


def _rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return cast("list[dict[str, Any]]", frame.to_dict("records"))


def _absolute(paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(str(Path(path).resolve()) for path in paths)


def _portable(word: str) -> str:
    """An argument without the folders of the person who typed it."""
    option, equals, value = word.rpartition("=")
    if Path(value).is_absolute():
        here = Path(value).is_relative_to(Path.cwd())
        value = str(Path(value).relative_to(Path.cwd())) if here else Path(value).name
    return f"{option}{equals}{value}"


def _portable_options(options: Options) -> dict[str, Any]:
    return {
        name: [_portable(word) for word in value] if name.endswith("_path") else value
        for name, value in options.to_json().items()
        if name != "dry_run"
    }
