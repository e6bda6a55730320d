"""A run: its folder and manifest, which blocks are stored, and the measuring of the others.

Knows nothing of pytest. Imports no jax.
"""

from __future__ import annotations

import itertools
import math
import random
import shutil
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Protocol, cast

from bench.analyse import peaks
from bench.analyse.verdicts import AlphaSpending, Claim, claims, compare
from bench.measure.environment import recorded_variables
from bench.measure.hosts import Hosts, ThisHost
from bench.measure.run_folder import name_faults
from bench.measure.supervisor import Launch, Settings, run_block
from bench.plan.base_revisions import Bases
from bench.plan.content_keys import Contents, changed
from bench.plan.matrix import BadInput, Plan
from bench.plan.options import Options
from bench.records import files, store
from bench.records.arms import TWIN, implementation_of, input_opponents
from bench.records.cells import Block, Cell
from bench.records.files import storing
from bench.records.host import describe_code, describe_host
from bench.records.messages import BaseFile, Catalogue, PhaseEvent
from bench.records.optional_packages import PACKAGES
from bench.records.paths import PROFILES, REPORTS
from bench.records.rows import SCHEMA, BlockRow, CellRow, Look, Manifest, SampleRow
from bench.records.statuses import Status, decisive

if TYPE_CHECKING:
    import pandas as pd

    from bench.analyse.sample_rounds import Rounds

MAX_LAUNCHES = 64
"""Of a block: an interval that so many have not made narrow enough will not become so."""

Verdicts = Mapping[str, Claim]
"""What is known of a block's implementations against its baseline."""

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


class Monitor(Protocol):
    """Is told how measuring goes on."""

    def note(self, text: str) -> None:
        """Something that whoever started it should know."""

    def begin(self, block: Block, launch: int, arms: int) -> None:
        """A launch of a block with so many implementations begins."""

    def phase(self, block: Block, event: PhaseEvent) -> None:
        """Its worker has begun a phase."""

    def end(
        self, block: Block, launch: int, statuses: Sequence[Status], verdicts: Verdicts
    ) -> None:
        """It has ended: how its cells did, and what is known of the block by now."""

    def stop(self) -> bool:
        """Asked before every launch, whether to measure no more."""


@dataclass
class _BlockState:
    """What is stored of a block."""

    launches: set[int] = field(default_factory=set)
    """Numbers of those that are stored."""
    samples: list[SampleRow] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    ended: dict[str, list[Status]] = field(default_factory=dict)
    """Statuses of each implementation's launches."""
    seconds: float = 0.0
    """Wall time of the last launch."""

    @property
    def next(self) -> int:
        """Number of the next launch: the first that is not stored, which may have been damaged."""
        return next(number for number in itertools.count() if number not in self.launches)

    def open(self, implementation: str, launches: int) -> bool:
        """Whether it wants more launches to have so many. What failed is not tried again."""
        ended = self.ended.get(implementation, [])
        return len(ended) < launches and all(status == "ok" for status in ended)

    def right(self) -> list[str]:
        """Implementations that were ok in every launch."""
        return [
            name for name, ended in self.ended.items() if all(status == "ok" for status in ended)
        ]


class Engine:
    """Measures blocks of a plan into one run's folder, which it makes when it is first needed.

    Args:
      plan: what to measure.
      options: what was asked for.
      catalogue: what there is to measure.
      argv: the command, as the manifest tells it.
      hosts: where worker processes are started; here if None.
      bases: in a regress run, what the implementations are compared with. Their arms are measured
        beside the plan's where they are selected.
      measures: whether it is going to. Then nobody else may measure the run that it resumes.

    Raises:
      BadInput: the run's name is no name or is taken; or the run that is to be resumed is another
        process's now, or was measured with other machines, versions or sources.
      StoreError: the run that is to be resumed cannot be read.
    """

    def __init__(
        self,
        plan: Plan,
        options: Options,
        catalogue: Catalogue,
        argv: Sequence[str],
        bases: Bases | None = None,
        hosts: Hosts | None = None,
        *,
        measures: bool = True,
    ) -> None:
        self.plan = plan
        self.hosts = hosts or ThisHost()
        self.directory: Path | None = None
        self.bases = bases
        self._base_files: Mapping[str, BaseFile] = {}
        self._compared: list[str] = []
        """Cells that are compared with their base."""
        self._options = options
        self._catalogue = catalogue = _with_versions(catalogue, plan)
        self._argv = argv
        self._cells: list[Mapping[str, Any]] = []
        self._blocks: defaultdict[str, _BlockState] = defaultdict(_BlockState)
        self._resumed_s = 0.0
        """Wall time of what a resumed run has stored."""
        self._contents = Contents(catalogue, plan.variants)
        self._notes: list[str] = []
        if options.resume is not None:
            self.directory = Path(options.resume)
            if measures:
                self._own(self.directory)
            self._read_stored(self.directory)
        elif options.run is not None and (faults := name_faults(options.run)):
            raise BadInput(faults)

    @property
    def platform(self) -> str:
        """`cpu`, `gpu` or `tpu`."""
        return self._catalogue["platform"]

    def results(self) -> dict[str, Result]:
        """How the cells ended that have been measured, by name."""
        samples = [row for state in self._blocks.values() for row in state.samples]
        return _results(self._cells, samples, self._catalogue["device_kind"])

    def passes(self) -> int:
        """Launches that every block is to have; with a budget, further ones are handed out."""
        return 1 if self.plan.budget_s is not None else self.plan.launches

    def to_do(self, block: Block, implementations: Sequence[str]) -> int:
        """Launches of `passes` that are not stored for all of these implementations."""
        return sum(
            bool(self._open(block, implementations, number + 1)) for number in range(self.passes())
        )

    def _open(self, block: Block, implementations: Sequence[str], launches: int) -> list[str]:
        """Those that want more launches to have so many; of pairs, where both do."""
        state = self._blocks[block.name]
        names = [name for name in implementations if state.open(name, launches)]
        return names if self.bases is None else self.bases.paired(names)

    def measure(self, selected: Mapping[Block, Sequence[str]], monitor: Monitor) -> None:
        """Measure and store what is selected: pass after pass, then where the budget is best spent.

        In every pass all blocks are measured once, in an order of its own, so that a slow hour of
        the host is not one block's alone.

        Raises:
          BadInput: another process has made the run's folder meanwhile, or files that are measured
            have changed. What was measured before is stored.
        """
        self._tell(monitor)
        # What looks at samples takes a second to load: now, while no worker waits for the answer.
        import_module("bench.analyse.ratio_intervals")
        started = time.monotonic()
        with TemporaryDirectory(prefix="lockstep-") as programs, self._checked_out(selected):
            for block, arms in selected.items():
                for name in arms:  # read before anything is measured: see `_refuse_changed`
                    self._contents.sources(Cell(block, name))
            for number in range(self.passes()):
                for block in random.Random(number).sample(list(selected), len(selected)):
                    arms = self._open(block, selected[block], number + 1)
                    if monitor.stop():
                        return
                    if arms:
                        self._launch(block, arms, programs, monitor)
            while self._goes_on and not monitor.stop():
                widest = self._widest(selected, self._left(started))
                if widest is None:
                    return
                right = self._blocks[widest.name].right()
                arms = [name for name in selected[widest] if name in right]
                self._launch(widest, arms, programs, monitor)

    @contextmanager
    def _checked_out(self, selected: Mapping[Block, Sequence[str]]) -> Iterator[None]:
        """In a regress run, around the measuring: the bases, and what is compared with them."""
        if self.bases is None:
            yield
            return
        self._compared = [
            Cell(block, name).name
            for block, arms in selected.items()
            for name in self.bases.opponents(arms)
        ]
        with self.bases.checked_out() as self._base_files:
            self._contents = self._read_contents()
            yield

    def _read_contents(self) -> Contents:
        """What cells are made of at this moment."""
        return Contents(self._catalogue, self.plan.variants, self._base_files)

    def _own(self, directory: Path) -> None:
        """See to it that no other process measures this run."""
        try:
            unlocked = files.lock(directory / store.MANIFEST)
        except files.LockedError as error:
            fault = f"{directory} is being measured by another process; wait until it has ended"
            raise BadInput([fault]) from error
        if unlocked:
            self._notes.append(f"nothing keeps another process from measuring it too: {unlocked}")

    def _tell(self, monitor: Monitor) -> None:
        """Pass on what has come to light since."""
        while self._notes:
            monitor.note(f"{self.directory}: {self._notes.pop(0)}")

    @property
    def _goes_on(self) -> bool:
        """Whether there may be launches beyond `passes`."""
        return self.plan.budget_s is not None or self.plan.target_ci is not None

    @property
    def budget_left_s(self) -> float | None:
        """Seconds of the budget that a resumed run has not spent; None without a budget."""
        return None if self.plan.budget_s is None else self.plan.budget_s - self._resumed_s

    def _left(self, started: float) -> float:
        """Seconds of the budget; without one, any number."""
        if self.budget_left_s is None:
            return math.inf
        return self.budget_left_s - (time.monotonic() - started)

    def _widest(self, selected: Iterable[Block], left: float) -> Block | None:
        """The block with the widest interval that is not narrow enough and fits what is left."""
        widths: dict[Block, float] = {}
        for block in selected:
            state = self._blocks[block.name]
            if state.looks and state.seconds <= left and len(state.launches) < MAX_LAUNCHES:
                found = self._claims(block, state.samples, state.looks[-1]["alpha"])
                open_ = [c for c in found.values() if c.ratio.error and not self._enough(c)]
                if open_:
                    widths[block] = max(c.ratio.error or 0.0 for c in open_)
        return max(widths, key=lambda block: widths[block], default=None)

    def _enough(self, claim: Claim) -> bool:
        """Whether a comparison needs no more samples."""
        if self.plan.target_ci is None:
            return claim.verdict.decided
        return claim.ratio.half_width() <= math.log1p(self.plan.target_ci)

    def _claims(self, block: Block, samples: Sequence[SampleRow], alpha: float) -> dict[str, Claim]:
        """What these samples of a block say of its implementations that were right so far.

        Against the baseline, with the error over all pairs, and over what is compared with the same
        implementation without input; in a regress run each against its base,
        with the error over all comparisons of the run.
        """
        failed = {
            name for name, ended in self._blocks[block.name].ended.items() if set(ended) != {"ok"}
        }
        arms = {row["arm"] for row in samples if implementation_of(row["arm"]) not in failed} - {
            TWIN
        }
        if self.bases is not None:
            rounds, each = _arranged(samples), alpha / len(self._compared)
            return compare(rounds, self.bases.opponents(arms), each, self.plan.margin)
        named = [name for name in self.plan.implementations if name in arms]
        fed = input_opponents(arms)
        if not named:
            return {}
        baseline = self.plan.baseline if self.plan.baseline in named else named[0]
        rounds = _arranged(samples)
        return claims(rounds, named, baseline, alpha, self.plan.margin, fed)

    def _launch(
        self, block: Block, implementations: Sequence[str], programs: str, monitor: Monitor
    ) -> None:
        """Measure and store one launch of a block."""
        self._refuse_changed(block, implementations)
        directory = self.directory or self._create()
        self._tell(monitor)
        state = self._blocks[block.name]
        before, looked = list(state.samples), len(state.looks)
        planned = self.plan.launches * self.plan.worker["rounds"]
        spending = AlphaSpending(planned, state.looks)

        def look(rows: Sequence[SampleRow], *, last: bool) -> dict[str, Claim]:
            samples = [*before, *rows]
            alpha = spending.look(_rounds(samples), last_planned=last)
            return self._claims(block, samples, alpha)

        looked_at: set[str] = set()

        def more(rows: list[SampleRow]) -> bool:
            looked_at.add(rows[0]["attempt"])
            if len(looked_at) > 1:  # a worker died after a look: what it spent on is lost
                return True
            found = look(rows, last=False)
            return not found or not all(self._enough(claim) for claim in found.values())

        number = state.next
        launch = Launch(number, self._proved(block, number), more)
        monitor.begin(block, launch.number, len(implementations))
        began = time.monotonic()
        try:
            attempts = run_block(
                block,
                implementations,
                self._settings(programs),
                lambda event: monitor.phase(block, event),
                launch,
            )
        finally:
            if "checkpoint" in self.plan.worker["phases"]:
                shutil.rmtree(self._checkpoint_dir, ignore_errors=True)
        state.seconds = time.monotonic() - began
        rows = [row for attempt in attempts for row in attempt.samples]
        last = len(state.launches) == self.plan.launches - 1
        found = look(rows, last=last) if rows else {}
        state.launches.add(number)
        state.samples += rows
        state.looks = spending.looks
        blocks: list[BlockRow] = [attempt.block for attempt in attempts]
        blocks[0] = {**blocks[0], "looks": spending.looks[looked:]}
        cells = [self._keyed(block, row) for attempt in attempts for row in attempt.cells]
        traces = [row for attempt in attempts for row in attempt.traces]
        losses = [row for attempt in attempts for row in attempt.losses]
        with storing(directory, resume=directory.name):
            store.append_launch(directory, rows, cells, blocks, traces, losses)
        self._remember(cells)
        monitor.end(block, number, [row["status"] for row in cells], found)

    def _keyed(self, block: Block, row: CellRow) -> CellRow:
        cell, contents = Cell(block, row["implementation"]), self._contents
        return {**row, "key": contents.key(cell), "sources": contents.sources(cell)}

    def _refuse_changed(self, block: Block, implementations: Iterable[str]) -> None:
        """Go on only if the files are those that the run began with."""
        now = self._read_contents()
        files = {
            file: None
            for cell in (Cell(block, name) for name in implementations)
            for file in changed(cell, self._contents.sources(cell), now.sources(cell))
        }
        if files:
            name = self.directory.name if self.directory else "it"
            fault = (
                f"{', '.join(files)}: changed while {name} was measured; what was measured before "
                "is stored. Restore the files to continue it with --resume, or start another run"
            )
            raise BadInput([fault])

    def _remember(self, cells: Iterable[Mapping[str, Any]]) -> None:
        for row in cells:
            self._cells.append(row)
            ended = self._blocks[row["block"]].ended
            ended.setdefault(row["implementation"], []).append(row["status"])

    def _proved(self, block: Block, launch: int) -> tuple[str, ...]:
        """Implementations with a proof in an earlier launch; a damaged one has left none."""
        return tuple(
            row["implementation"]
            for row in self._cells
            if row["block"] == block.name and row["status"] == "ok" and row["launch"] < launch
        )

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
        self._refuse_other_content(run)
        self._notes += [f"set aside: {damage}" for damage in run.damaged]
        for row in _rows(run.samples):
            self._blocks[row["block"]].samples.append(cast("SampleRow", row))
        for row in _rows(run.blocks):
            state = self._blocks[row["block"]]
            state.looks += row["looks"]
            state.launches.add(row["launch"])
            state.seconds = sum(row["seconds"].values())
            self._resumed_s += state.seconds
        self._remember(_rows(run.cells))

    def _refuse_other_content(self, run: store.Run) -> None:
        """No row may join rows of the same cell that were measured with other files."""
        stored = {row["cell"]: row for row in _rows(run.cells)}
        files: dict[str, None] = {}
        for cell in self.plan.cells:
            then = stored.get(cell.name)
            if then is not None and then["key"] != self._contents.key(cell):
                now = self._contents.sources(cell)
                named = [*changed(cell, then["sources"], now)]
                files |= dict.fromkeys(named or [f"what {cell.name} is made of beside files"])
        if files:
            fault = (
                f"--resume: {', '.join(files)}: changed since {run.directory.name} was measured; "
                "rows of different sources do not belong in one run. Restore the files, or start "
                "another run"
            )
            raise BadInput([fault])

    def _create(self) -> Path:
        catalogue = self._catalogue
        manifest: Manifest = {
            "schema": SCHEMA,
            "run": self._options.run or "",
            "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "argv": [_portable(word) for word in self._argv],
            "preset": self.plan.preset,
            "config": {
                **self.plan.config,
                "options": _portable_options(self._options),
                **self._gate(),
            },
            "platform": catalogue["platform"],
            "device_kind": catalogue["device_kind"],
            "device_count": catalogue["device_count"],
            "device_memory_bytes": catalogue["device_memory_bytes"],
            "host": {**describe_host(), "usable_cores": catalogue["usable_cores"]},
            "versions": catalogue["versions"],
            "environment": recorded_variables(),
            "git": describe_code(),
        }
        try:
            with storing(REPORTS):
                self.directory = store.create(REPORTS, manifest)
        except store.StoreError as error:
            raise BadInput([str(error)]) from error
        self._own(self.directory)
        return self.directory

    def _gate(self) -> dict[str, Any]:
        """What the manifest's `config` says of a regress run."""
        if self.bases is None:
            return {}
        return {"regress": {**self.bases.record(), "cells": self._compared}}

    @property
    def _checkpoint_dir(self) -> Path:
        """Where checkpoints lie while they are measured."""
        assert self.directory is not None, "a run that measures has a folder"  # noqa: S101
        asked = self._options.checkpoint_dir
        parent = self.directory if asked is None else Path(asked)
        return parent.resolve() / f"checkpoints-{self.directory.name}"

    def _settings(self, programs: str) -> Settings:
        plan = self.plan
        return Settings(
            platform=self._catalogue["platform"],
            baseline=plan.baseline,
            worker={**plan.worker, "phases": self._phases(), "base_files": dict(self._base_files)},
            timeout_s=plan.timeout_s,
            silence_s=plan.silence_s,
            hosts=self.hosts,
            variants={variant.name: variant for variant in plan.variants},
            program_cache=programs,
        )

    def _phases(self) -> dict[str, dict[str, Any]]:
        """The planned phases after the rounds, with the folders that they write to."""
        assert self.directory is not None, "a run that measures has a folder"  # noqa: S101
        folders = {
            "trace": {"logdir": str(PROFILES.resolve()), "run": self.directory.name},
            "checkpoint": {"folder": str(self._checkpoint_dir)},
        }
        phases = self.plan.worker["phases"]
        return {name: phases[name] | folders.get(name, {}) for name in phases}


def _with_versions(catalogue: Catalogue, plan: Plan) -> Catalogue:
    """The catalogue, with the versions of what the plan needs beside what every run does."""
    packages = [PACKAGES[option] for option in plan.extras]
    optional = {name: catalogue["optional"][name] for name in packages}
    return {**catalogue, "versions": catalogue["versions"] | optional}


def _results(
    cells: Iterable[Mapping[str, Any]], samples: Iterable[Mapping[str, Any]], device_kind: str
) -> dict[str, Result]:
    """How cells ended. A time that no device of this kind could reach makes a cell wrong."""
    times: dict[tuple[str, str], list[float]] = {}
    for row in samples:
        key = (row["attempt"], row["arm"])
        times.setdefault(key, []).append(row["throughput_ns"] / row["steps"] / 1e9)
    launches: dict[str, list[Mapping[str, Any]]] = {}
    for row in cells:
        launches.setdefault(row["cell"], []).append(row)
    results = {}
    for cell, rows in launches.items():
        first = rows[decisive([row["status"] for row in rows])]
        measured = [
            seconds
            for row in rows
            if row["status"] == "ok"
            for seconds in times.get((row["attempt"], row["implementation"]), [])
        ]
        # A stored frame has a column for every figure, and NaN (unlike itself) where it lacks one.
        extra = {
            key: first[key]
            for key in _EXTRA
            if first.get(key) is not None and first[key] == first[key]
        }
        status, reason = first["status"], first["reason"]
        if status == "ok":
            figures = first["precision"], first["model_flops"], median(measured), first["devices"]
            _, reason = peaks.utilization(device_kind, *figures)
            status = "implausible" if reason else "ok"
        results[cell] = Result(status, reason, tuple(measured) if status == "ok" else (), extra)
    return results


def _rounds(samples: Iterable[SampleRow]) -> int:
    """Rounds in which arms were side by side."""
    turns = Counter((row["attempt"], row["round"]) for row in samples)
    return sum(count > 1 for count in turns.values())


def _arranged(samples: Sequence[SampleRow]) -> Rounds:
    """A block's samples by round and arm."""
    import pandas as pd  # noqa: PLC0415 (a run that is only planned need not wait for these)

    from bench.analyse.sample_rounds import Rounds  # noqa: PLC0415

    return Rounds.of(pd.DataFrame(samples))


def _rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return cast("list[dict[str, Any]]", frame.to_dict("records"))


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
        if name not in ("dry_run", "distributed", "checkpoint_dir")
    }
