"""The engine of a run, which measures the selected blocks and stores every launch."""

import itertools
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import Protocol

from bench.analyse.verdicts import Claim, margin_of
from bench.measure import proof_cache, run_folder
from bench.measure.catalogue import Reasons
from bench.measure.launch_looks import LaunchLooks
from bench.measure.processes.group import Hosts
from bench.measure.schedule import Schedule
from bench.measure.supervisor import Launch
from bench.plan.base_revisions import Bases
from bench.plan.content_keys import Contents, changed
from bench.plan.matrix import Plan
from bench.plan.option_values import BadInput
from bench.plan.options import Options
from bench.records import files, messages, store, user_cache
from bench.records.cells import Block, Cell
from bench.records.messages import PACKAGES, BaseFile, Catalogue, PhaseEvent, WorkerSettings
from bench.records.paths import PROFILES, REPORTS
from bench.records.rows import CellRow
from bench.records.statuses import FAILURES, Status
from bench.records.temporary_folders import temporary_folder

Claims = Mapping[str, Claim]
"""Comparisons of a block's arms so far, by arm."""


class Monitor(Protocol):
    """An observer of a run's progress."""

    def note(self, text: str) -> None:
        """Show a remark to the user."""

    def begin(self, block: Block, launch: int, arms: Sequence[str]) -> None:
        """Show that a launch of a block with these arms begins."""

    def phase(self, event: PhaseEvent) -> None:
        """Show that the launch's worker has begun a phase."""

    def end(self, block: Block, launch: int, statuses: Sequence[Status], verdicts: Claims) -> None:
        """Show how the cells of a launch ended, and the comparisons of the block so far."""


class Engine:
    """The measurement of a plan's blocks into one run's folder, which the first launch creates.

    In a gate, `bases` are the earlier revisions, whose arms are measured together with the plan's
    selected ones. `unsupported` has known reasons, by block and implementation, why it cannot run
    there. `measures` says whether `measure` will be called, for which a resumed run is locked.

    Raises BadInput if the run to resume is locked by another process, or was measured with another
    machine, other versions or other sources; StoreError if it cannot be read.
    """

    def __init__(
        self,
        plan: Plan,
        options: Options,
        catalogue: Catalogue,
        bases: Bases | None,
        hosts: Hosts,
        unsupported: Reasons,
        *,
        measures: bool,
    ) -> None:
        self.plan, self.options, self.bases = plan, options, bases
        self.hosts, self.unsupported = hosts, unsupported
        self.catalogue = catalogue = _as_planned(catalogue, plan)
        foreign = [own["name"] for own in catalogue["implementations"] if "foreign" in own]
        self.schedule = Schedule(plan, bases, foreign)
        self.directory: Path | None = None
        self._base_files: Mapping[str, BaseFile] = {}
        self._contents = self._read_contents()
        self._notes: list[str] = []
        self._selected: Sequence[Block] = ()
        if options.resume is not None:
            self.directory = Path(options.resume)
            if measures:
                self._lock(self.directory)
            run = store.load(self.directory)
            run_folder.refuse_other_machine(run, catalogue)
            run_folder.refuse_other_sources(run, plan.cells, self._contents)
            if measures and plan.margin != margin_of(run.manifest):
                self._write_margin(run)
            self._notes += [f"set aside: {damage}" for damage in run.damaged]
            self.schedule.resume(run)

    def measure(
        self, selected: Mapping[Block, Sequence[str]], monitor: Monitor, most_failures: int = 0
    ) -> None:
        """Measure and store the selected arms of blocks.

        No launch follows once `most_failures` cells have failed, unless that is 0. Raises BadInput
        if another process has created the run's folder meanwhile, or if a measured file has
        changed. Earlier launches are stored.
        """
        self._selected = [*selected]
        self.pass_on_notes(monitor.note)
        # It takes a second to load, so it is loaded while no worker waits for an answer.
        import_module("bench.analyse.ratio_intervals")
        bases = self.bases
        checkout = nullcontext(self._base_files) if bases is None else bases.checked_out()
        try:
            with temporary_folder() as programs, checkout as self._base_files:
                if bases is not None:
                    compared = ((block, bases.opponents(arms)) for block, arms in selected.items())
                    names = [Cell(block, name).name for block, own in compared for name in own]
                    self.schedule.compared_cells = names
                    self._contents = self._read_contents()
                for block, arms in selected.items():
                    for name in arms:  # sources are read before anything is measured
                        self._contents.sources(Cell(block, name))
                failures = 0
                for block, arms in self.schedule.launches(selected):
                    own = programs / files.digest(block.name.encode())
                    statuses = self._launch(block, arms, own, monitor)
                    failures += sum(status in FAILURES for status in statuses)
                    if 0 < most_failures <= failures:
                        break
        finally:
            user_cache.prune()

    @property
    def resumable(self) -> str:
        """The run's name if `--resume` can continue it; empty for a gate, or before it exists."""
        return self.directory.name if self.directory and self.bases is None else ""

    def _read_contents(self) -> Contents:
        return Contents(self.catalogue, self.plan.variants, self._base_files)

    def _refuse_changed_files(self, block: Block, arms: Sequence[str]) -> None:
        """Raise BadInput with the names of these arms' files that changed since the run began."""
        before, now = self._contents, self._read_contents()
        cells = [Cell(block, name) for name in arms]
        files = [name for c in cells for name in changed(c, before.sources(c), now.sources(c))]
        if files:
            run = self.directory.name if self.directory else "it"
            how = "Restore the files to continue it with --resume, or start"
            fault = (
                f"{', '.join(dict.fromkeys(files))}: changed while {run} was measured; what was "
                f"measured before is stored. {how if self.resumable else 'Start'} another run"
            )
            raise BadInput([fault])

    def _lock(self, directory: Path) -> None:
        """Lock the run until this process ends, so that no other process measures it."""
        try:
            reason = files.lock_until_exit(directory / store.MANIFEST)
        except files.LockedError as error:
            fault = f"{directory} is being measured by another process; wait until it has ended"
            raise BadInput([fault]) from error
        if reason:
            self._notes.append(f"not locked, so another process could measure it as well: {reason}")

    def _write_margin(self, run: store.Run) -> None:
        """Update the margin of a resumed run in the manifest, from which the report reads it."""
        margin = {"margin": self.plan.margin, "margin_reason": self.plan.margin_reason}
        config = {**run.manifest["config"], **margin}
        store.write_manifest(run.directory, {**run.manifest, "config": config})
        self._lock(run.directory)  # the file that was locked is gone

    def pass_on_notes(self, note: Callable[[str], None]) -> None:
        """Pass on remarks for the user, each once."""
        while self._notes:
            note(f"{self.directory}: {self._notes.pop(0)}")

    def _create(self) -> Path:
        asked: dict[str, object] = {"blocks": [block.name for block in self._selected]}
        if self.bases is not None:
            allowed, cells = self.plan.allow_undecided, self.schedule.compared_cells
            gate = {**self.bases.record(), "allow_undecided": allowed, "cells": cells}
            asked["regress"] = gate
        about = self.plan, self.options, self.catalogue, sys.argv[1:]
        try:
            with files.storing(REPORTS):
                self.directory = store.create(REPORTS, run_folder.describe_run(*about, asked))
                run_folder.keep_own_files(self.directory, self.options)
        except store.StoreError as error:  # another process has created it meanwhile
            raise BadInput([str(error)]) from error
        self._lock(self.directory)
        return self.directory

    def _launch(
        self, block: Block, arms: Sequence[str], programs: Path, monitor: Monitor
    ) -> list[Status]:
        """Measure and store a launch of a block with this folder of programs; return statuses."""
        self._refuse_changed_files(block, arms)
        directory = self.directory or self._create()
        self.pass_on_notes(monitor.note)
        state, looks = self.schedule.blocks[block.name], LaunchLooks(self.schedule, block)
        # The first that is missing or damaged.
        number = next(n for n in itertools.count() if n not in state.launches)
        monitor.begin(block, number, arms)
        # A launcher's processes may see other files than those hashed here. All take part in some
        # compilations, so none of them may use a cache of its own.
        alone = self.catalogue["processes"] == 1
        own = arms if alone and not number else ()
        keys = proof_cache.entry_keys(self._contents, block, own)
        known = {} if self.options.cold else proof_cache.recall(keys, programs)
        cached = {name: entry["figures"] for name, entry in known.items() if name in own}
        proved = {**cached, **state.proved(number)}
        try:
            launch = Launch(
                block,
                platform=self.catalogue["platform"],
                baseline=self.plan.baseline,
                worker=self._worker_settings(directory),
                timeout_s=self.plan.timeout_s,
                silence_s=self.plan.silence_s,
                variants=self._contents.variants,
                hosts=self.hosts,
                unsupported=self.unsupported.get(block.name, {}),
                program_cache=str(programs) if alone else None,
                number=number,
                proved=proved,
                arms_to_continue=looks.arms_to_continue,
                ceilings=state.ceilings,
                repeated=state.isolated,
                progress=monitor.phase,
            )
            attempts = launch.run(arms)
        finally:
            if "checkpoint" in self.plan.worker["phases"]:
                shutil.rmtree(self._checkpoint_folder(directory), ignore_errors=True)
        try:
            self._refuse_changed_files(block, arms)
        except BadInput:  # it is unknown which version of the files was measured
            if proved:
                raise
            keys = {}
        samples = [row for attempt in attempts for row in attempt.samples]
        cells = [row for attempt in attempts for row in attempt.cells]
        rows = [self._with_sources(block, proof_cache.completed(row, known)) for row in cells]
        state.cells += rows  # the last look compares nothing that has failed
        taken, verdicts = looks.finish(samples, number)
        blocks = [attempt.block for attempt in attempts]
        blocks[0]["looks"] = taken
        state.seconds = sum(messages.repeated_s(row["seconds"]) for row in blocks)
        state.ceilings = blocks[0]["ceilings"] or state.ceilings
        traces = [row for attempt in attempts for row in attempt.traces]
        losses = [row for attempt in attempts for row in attempt.losses]
        with files.storing(directory, resume=self.resumable):
            store.add_launch(directory, samples, rows, blocks, traces, losses)
        statuses = [row["status"] for row in rows]
        monitor.end(block, number, statuses, verdicts)
        proof_cache.remember(rows, keys, known, programs, directory.name)
        return statuses

    def _with_sources(self, block: Block, row: CellRow) -> CellRow:
        cell, contents = Cell(block, row["implementation"]), self._contents
        return {**row, "key": contents.key(cell), "sources": contents.sources(cell)}

    def _checkpoint_folder(self, directory: Path) -> Path:
        parent = Path(self.options.checkpoint_dir or directory)
        return parent.resolve() / f"checkpoints-{directory.name}"

    def _worker_settings(self, directory: Path) -> WorkerSettings:
        folders = {
            "trace": {"logdir": str(PROFILES.resolve()), "run": directory.name},
            "checkpoint": {"folder": str(self._checkpoint_folder(directory))},
        }
        planned = self.plan.worker["phases"].items()
        phases = {name: {**settings, **folders.get(name, {})} for name, settings in planned}
        return {**self.plan.worker, "phases": phases, "base_files": dict(self._base_files)}


def _as_planned(catalogue: Catalogue, plan: Plan) -> Catalogue:
    """Add what the plan implies to the catalogue: optional packages' versions, isolated steps."""
    used = {"input": plan.worker["inputs"], "checkpoint": plan.modes}
    packages = [PACKAGES[option] for option, values in used.items() if values]
    versions = catalogue["versions"] | {name: catalogue["optional"][name] for name in packages}
    entries = [entry.copy() for entry in catalogue["implementations"]]
    for entry in entries:
        if entry["name"] in plan.worker["isolated"]:
            entry["foreign"] = {"isolated": "yes"}
    return {**catalogue, "versions": versions, "implementations": entries}
