"""pytest as the front: options, one item a cell, progress, exit code, benchmark.json, report.

Loaded by `python -m bench run` alone, together with pytest-benchmark. Imports no jax.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from bench.commands.exits import BAD_INPUT, FAILED
from bench.measure.catalogue import file_faults, read_catalogue
from bench.measure.cell_results import Result
from bench.measure.cluster.follower import TERMINATION, follow
from bench.measure.cluster.leader import Leader
from bench.measure.cluster.membership import ClusterError, Membership, membership
from bench.measure.engine import Engine, Verdicts
from bench.measure.hosts import Hosts, ThisHost
from bench.measure.processes.ask import ChildError
from bench.measure.run_folder import resumed_options
from bench.plan.base_revisions import find_bases, gated
from bench.plan.distributed_config import DistributedConfig, DistributedConfigError
from bench.plan.estimate import Remaining, block_seconds, read_history
from bench.plan.matrix import Plan, make_plan
from bench.plan.option_values import BadInput
from bench.plan.options import Options, add_options, read_options
from bench.plan.selection import keyword
from bench.present.progress import Progress
from bench.records import files, store
from bench.records.cells import Block
from bench.records.files import NotStoredError, storing
from bench.records.messages import Catalogue, PhaseEvent
from bench.records.numbers import clock, count
from bench.records.paths import REPORTS
from bench.records.statuses import Status

CELLS_FILE = Path(__file__).with_name("cells_test.py")
BENCHMARK_JSON = "benchmark.json"
BAD = (BadInput, ChildError, ClusterError, DistributedConfigError, store.StoreError)
"""What is wrong with what was asked for, or with where it is to run."""

FRONT: pytest.StashKey[Front] = pytest.StashKey()
"""Where cells_test finds the run's hooks."""
MEMBER: pytest.StashKey[Membership] = pytest.StashKey()
"""Where a launcher has started this process as rank 0: its place."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the run's options."""
    add_options(parser.getgroup("lockstep", "Lockstep: what to measure").addoption)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Where a launcher has started this process, find its place. All but one only follow."""
    how: str | None = config.option.lockstep_distributed
    if how is None:
        return None
    try:
        member = membership(how)
        if not member.config.is_main_process():
            return follow(member)
    except BAD as error:
        raise pytest.UsageError(_message(error)) from error
    config.stash[MEMBER] = member
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Check the whole of what was asked for, before anything runs."""
    config.option.keyword = _keyword_expression(config.option.keyword)
    hosts: Hosts = ThisHost()
    try:
        options = read_options(config.option)
        if MEMBER in config.stash:
            member = config.stash[MEMBER]
            options, hosts = described(options, member.config), Leader(member)
        front = _make_front(config, options, hosts)
    except BAD as error:
        hosts.close()
        raise pytest.UsageError(_message(error)) from error
    config.stash[FRONT] = front
    config.pluginmanager.register(front, "lockstep")


def described(options: Options, config: DistributedConfig) -> Options:
    """The options, with what the description of the run says where they say nothing."""
    if not options.meshes and (
        config.mesh_shape or config.mesh().size > config.mesh().axis("data")
    ):
        options = replace(options, meshes=(str(config.mesh()),))
    if not options.precision and config.mixed_precision != "no":
        options = replace(options, precision=(config.precision,))
    return options


def _make_front(config: pytest.Config, options: Options, hosts: Hosts) -> Front:
    options = resumed_options(options)
    if options.base_revision is not None:
        options = gated(options)
    faults = file_faults(options.implementation_path, options.workload_path)
    if options.resume is not None:
        faults = [f"{fault}; name where the run's file is now" for fault in faults]
    # Files with a fault stay out, so that the faults of everything else are found as well.
    catalogue = (
        read_catalogue()
        if faults
        else read_catalogue(options.implementation_path, options.workload_path)
    )
    catalogue = hosts.extend(catalogue)
    plan = make_plan(options, catalogue, faults)
    bases = None
    if options.base_revision is not None:
        bases = find_bases(options, catalogue, plan.implementations)
        plan = bases.reduced(plan)
    measures = not (options.dry_run or config.option.collectonly)
    engine = Engine(plan, options, catalogue, sys.argv[1:], bases, hosts, measures=measures)
    return Front(config, options, catalogue, engine)


def _message(error: Exception) -> str:
    """One fault as it is; several as a list."""
    faults: Sequence[str] = (str(error),)
    if isinstance(error, BadInput | DistributedConfigError):
        faults = error.faults
    if len(faults) == 1:
        return faults[0]
    return "\n".join([f"{len(faults)} things are wrong:", *(f"  - {fault}" for fault in faults)])


class Front:
    """The hooks of one run."""

    def __init__(
        self, config: pytest.Config, options: Options, catalogue: Catalogue, engine: Engine
    ) -> None:
        self.config = config
        self.engine = engine
        self.console = Console(highlight=False)
        self._dry_run = options.dry_run and not config.option.collectonly
        self._measures = not (options.dry_run or config.option.collectonly)
        self._catalogue = catalogue
        self._history = read_history(REPORTS, catalogue["platform"])
        self._cells = {cell.name: cell for cell in engine.plan.cells}
        self._selected: dict[Block, list[str]] = {}
        self._progress = Progress(self.console, 0, Remaining(0.0))
        self._failures = 0
        self._results: dict[str, Result] | None = None
        self._run: store.Run | None = None
        self._report: Path | None = None
        self._closing: list[str] = []
        """What is to be said last."""
        self._benchmarks: dict[str, Any] | None = None
        """What pytest-benchmark has to say of the cells."""
        if self._measures and config.option.benchmark_json is None:
            # It puts it together only if it is to write it, and cannot know the run's folder yet.
            config.option.benchmark_json = os.devnull

    @property
    def plan(self) -> Plan:
        """What the run measures if nothing is deselected."""
        return self.engine.plan

    # Collection.

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """An item for each cell."""
        if metafunc.definition.path == CELLS_FILE:
            metafunc.parametrize("cell_name", list(self._cells), ids=list(self._cells))

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Make names with `=` selectable, and let pytest-benchmark's timer replay samples."""
        for item in items:
            name = _cell_name(item)
            item.extra_keyword_matches.add(keyword(name))
            block = self._cells[name].block
            item.add_marker(pytest.mark.benchmark(timer=self._timer(name), group=block.name))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Know what is selected, after -k and the like."""
        for item in session.items:
            cell = self._cells[_cell_name(item)]
            bases = self.engine.bases
            arms = bases.arms(cell.implementation) if bases else [cell.implementation]
            self._selected.setdefault(cell.block, []).extend(arms)
        if not session.items:
            self.console.print(f"none of the {len(self._cells)} cells is selected")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self) -> bool | None:
        """With --dry-run, say what would run instead of running it."""
        if self._dry_run:
            self._print_plan()
            return True
        return None

    # Measuring.

    @pytest.hookimpl(wrapper=True, specname="pytest_runtestloop")
    def pytest_show_progress(self) -> Generator[None, Any, Any]:
        """Around all items: the progress display, and signals that interrupt."""
        if not self._measures:
            return (yield)
        todo = self._to_do()
        seconds = sum(self._seconds(block, number) for block, number in todo)
        self._warn()
        budget_s, more = self.engine.schedule.budget_left_s, self.plan.target_ci is not None
        self._progress = Progress(self.console, len(todo), Remaining(seconds, budget_s, more=more))
        with _termination_as_interrupt(), self._progress:
            return (yield)

    def _warn(self) -> None:
        """Say at the start what can be known to fail, and need not stop the rest."""
        named = {name for arms in self._selected.values() for name in arms}
        for entry in self._catalogue["implementations"]:
            if entry["error"] and entry["name"] in named:
                name, path, error = entry["name"], entry["path"], entry["error"]
                self.console.print(
                    f"{name} ({path}) cannot be imported, its cells will end as crashed: {error}",
                    soft_wrap=True,
                    markup=False,
                )

    def _to_do(self) -> list[tuple[Block, int]]:
        """Launches that are not stored yet: the block, and which of those to do it is."""
        return [
            (block, number)
            for block, arms in self._selected.items()
            for number in range(self.engine.schedule.missing_launches(block, arms))
        ]

    def _seconds(self, block: Block, number: int) -> float:
        """Estimated seconds of a launch."""
        return block_seconds(block, len(self._selected[block]), self.plan, self._history, number)

    def measured(self, name: str) -> Result:
        """The result of a cell; the first call measures everything that is selected."""
        if self._results is None:
            try:
                self.engine.measure(self._selected, self)
            except KeyboardInterrupt:
                run = self.engine.directory
                left = f": --resume {run.name} measures what is left" if run else ""
                pytest.exit(f"interrupted{left}", returncode=2)
            except NotStoredError as error:
                self._closing.append(f"error: {error}")
                pytest.exit("ended early", returncode=FAILED)
            except BadInput as error:  # its name was taken, or its files changed, meanwhile
                self._closing.append(f"error: {_message(error)}")
                pytest.exit("ended early", returncode=BAD_INPUT)
            except Exception as error:  # noqa: BLE001 - pytest is told to show no tracebacks
                self.console.print_exception()
                pytest.exit(f"Lockstep itself failed: {error}", returncode=3)
            finally:
                self._results = self.engine.results()
        if name not in self._results:
            pytest.skip("not measured: enough cells had failed before")
        return self._results[name]

    # What the engine tells while it measures (bench.measure.engine.Monitor).

    def note(self, text: str) -> None:
        """Say it above the progress."""
        self.console.print(Text(text, style="yellow"), soft_wrap=True)

    def begin(self, block: Block, launch: int, arms: int) -> None:
        """Show which launch runs."""
        seconds = block_seconds(block, arms, self.plan, self._history, launch)
        self._progress.begin(block, launch, seconds)

    def phase(self, _block: Block, event: PhaseEvent) -> None:
        """Show what it does."""
        self._progress.phase(event)

    def end(
        self, block: Block, launch: int, statuses: Sequence[Status], verdicts: Verdicts
    ) -> None:
        """Say how it ended."""
        self._failures += sum(status not in ("ok", "unsupported") for status in statuses)
        self._progress.end(block, launch, statuses, verdicts)

    def stop(self) -> bool:
        """With -x or --maxfail, measuring ends once so many cells have failed."""
        most: int = self.config.getvalue("maxfail") or 0  # None where nothing is said
        return 0 < most <= self._failures

    def extra_info(self, name: str) -> dict[str, Any]:
        """What benchmark.json says of a cell beside its samples."""
        cell, result = self._cells[name], self.measured(name)
        info: dict[str, Any] = {
            "workload": f"{cell.block.workload}-{cell.block.size}",
            "mesh": str(cell.block.mesh),
            "devices": cell.block.mesh.size,
            "batch": cell.block.batch,
            "options": str(cell.block.options),
            "implementation": cell.implementation,
            "status": result.status,
            **result.extra,
        }
        units = result.extra.get("units_per_step")
        if result.step_seconds and units is not None:
            ordered = sorted(result.step_seconds)
            info[f"{result.extra['unit']}/s"] = units / ordered[len(ordered) // 2]
        return info

    def _timer(self, name: str) -> Callable[[], float]:
        """A clock that makes pytest-benchmark's rounds last what the cell's samples lasted."""

        def readings() -> Iterator[float]:
            for seconds in self.measured_seconds(name):
                yield 0.0
                yield seconds

        iterator: Iterator[float] | None = None

        def stored_samples() -> float:
            nonlocal iterator
            iterator = iterator or readings()
            return next(iterator)

        return stored_samples

    def measured_seconds(self, name: str) -> Sequence[float]:
        """Seconds a step of each sample of a measured cell."""
        result = (self._results or {}).get(name)
        return result.step_seconds if result is not None else ()

    # Output.

    def pytest_report_teststatus(
        self, report: pytest.TestReport | pytest.CollectReport
    ) -> tuple[str, str, str] | None:
        """Say nothing for each item: progress and summary do."""
        if report.when == "call" or report.failed:
            return "cell", "", ""
        return None

    def pytest_benchmark_update_machine_info(self, machine_info: dict[str, Any]) -> None:
        """Keep the name of the host out of a file that is meant to be published."""
        machine_info.pop("node", None)

    def pytest_benchmark_update_commit_info(self, commit_info: dict[str, Any]) -> None:
        """Keep the name of the checkout's folder out of it."""
        commit_info["project"] = "lockstep"

    @pytest.hookimpl(trylast=True)
    def pytest_benchmark_update_json(self, output_json: dict[str, Any]) -> None:
        """Keep it for the run's folder."""
        self._benchmarks = output_json

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, Any, Any]:
        """Build the report from what is stored, also after an interruption."""
        directory = self.engine.directory
        try:
            with storing(directory or REPORTS, resume=directory.name if directory else ""):
                result = yield  # pytest-benchmark writes its file
                if directory is not None and self._measures:
                    self._build(directory)
        except NotStoredError as error:
            self._closing.append(f"no report: {error}")
            session.exitstatus = FAILED
            return None
        return result

    def _build(self, directory: Path) -> None:
        if self._benchmarks is not None:
            text = json.dumps(self._benchmarks, indent=4, default=str)
            files.write(directory / BENCHMARK_JSON, text)
        if (directory / store.LAUNCHES).is_file():
            # Drawing libraries take seconds to load: only now, when nobody waits for an answer.
            from bench.present.report_files import build

            self._run = store.load(directory)
            self._report = build(self._run)

    def pytest_terminal_summary(self) -> None:
        """Print the table of the run; the outcome of a regress run comes from its own plugin."""
        if self._run is not None and not self.engine.bases:
            from bench.present.closing_summary import print_summary

            print_summary(self.console, self._run)

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        """Say last where the report is, and other hosts that there is nothing more to do."""
        if self._report is not None:
            self.console.print(f"report: {self._report.as_posix()}", soft_wrap=True)
        for line in self._closing:
            self.console.print(line, soft_wrap=True, markup=False)
        self.engine.hosts.close()

    def _print_plan(self) -> None:
        total = 0.0
        same = len({tuple(arms) for arms in self._selected.values()}) == 1
        to_do = self._to_do()
        for block, arms in self._selected.items():
            seconds = sum(self._seconds(b, number) for b, number in to_do if b == block)
            total += seconds
            note = f"about {clock(seconds)}" if seconds else "stored already"
            self.console.print(f"{block.name}  {note}", soft_wrap=True)
            if not same:
                self.console.print(f"  {', '.join(arms)}", style="dim", soft_wrap=True)
        if same:
            arms = next(iter(self._selected.values()))
            self.console.print(f"each with: {', '.join(arms)}", soft_wrap=True)
        cells = sum(map(len, self._selected.values()))
        plan = self.plan
        if plan.worker["inputs"]:
            ways = ", ".join(plan.worker["inputs"])
            self.console.print(f"and each with input {ways}", soft_wrap=True)
        if plan.modes:
            modes = ", ".join(plan.modes)
            self.console.print(f"then checkpoints of each: {modes}", soft_wrap=True)
        each = f"{plan.launches} launches of" if plan.launches > 1 else "1 launch of"
        time = f"about {clock(total)}"
        if plan.budget_s is not None:
            each, time = (
                "launches as the budget allows, of",
                f"{clock(max(total, plan.budget_s))}",
            )
        training = ""
        if "train" in plan.worker["phases"]:
            steps = count(plan.worker["phases"]["train"]["steps"], "step")
            training = f"; training every cell for {steps} comes on top"
        self.console.print(
            f"blocks: {len(self._selected)}, cells: {cells}, "
            f"{each} up to {plan.worker['rounds']} rounds, baseline {plan.baseline}: {time}{training}",
            soft_wrap=True,
        )


def _cell_name(item: pytest.Item) -> str:
    """The cell of an item, from its id."""
    return item.name.partition("[")[2].removesuffix("]")


def _keyword_expression(expression: str) -> str:
    return keyword(expression) if expression else expression


@contextlib.contextmanager
def _termination_as_interrupt() -> Iterator[None]:
    """These signals end the run as Ctrl-C does: workers are killed, the report is built."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in TERMINATION}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
