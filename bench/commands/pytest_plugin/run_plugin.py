"""pytest as the front end of a run: options, one item per cell, progress, exit code and report.

`python -m bench run` loads this plugin together with pytest-benchmark.
"""

from __future__ import annotations

import json
import math
import os
import platform
import traceback
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from functools import cached_property
from pathlib import Path
from statistics import median_high
from typing import TYPE_CHECKING, Any, cast

import pytest

from bench.commands.exits import BAD_INPUT, FAILED, INTERRUPTED, message, termination_as_interrupt
from bench.commands.pytest_plugin.refusals import REFUSED, RunEnd, unknown_word_faults
from bench.commands.pytest_plugin.run_estimates import RunEstimates, print_plan
from bench.commands.shared_options import plain_console
from bench.measure.cluster.leader import Leader, follow
from bench.measure.cluster.membership import Membership, membership
from bench.measure.engine import Engine
from bench.measure.processes.group import Hosts
from bench.measure.run_setup import set_up_run, with_config
from bench.plan.option_values import BadInput
from bench.plan.options import add_options, read_options
from bench.plan.selection import selector
from bench.present.columns import missing
from bench.present.progress import Progress
from bench.records import files, store
from bench.records.cells import Block, base_of
from bench.records.files import NotStoredError, storing
from bench.records.host import processor_name, usable_cores
from bench.records.numbers import clock, count
from bench.records.paths import REPORTS, as_typed
from bench.records.printable import shortened

if TYPE_CHECKING:
    from bench.analyse.cell_table import Tables

BENCHMARK_JSON = "benchmark.json"
SHOWN = (
    *("mesh", "devices", "batch", "options", "implementation"),
    *("status", "model_flops", "unit", "units_per_step", "interleaved", "profile"),
    *("verdict", "verdict_low", "verdict_high", "tier", "behind_low", "behind_high"),
)
"""Columns of bench.analyse.cell_table.Tables.cells that benchmark.json contains."""
FRONT: pytest.StashKey[Front] = pytest.StashKey()
"""Key under which cells_test.py finds the run's hooks."""
MEMBER: pytest.StashKey[Membership] = pytest.StashKey()
"""This process's place in a distributed run, if a launcher started it as rank 0."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options of a run."""
    add_options(parser.getgroup("lockstep", "Lockstep: what to measure").addoption)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(parser: pytest.Parser, args: list[str]) -> None:
    """Refuse words that are not options before pytest does, whose message shows its own usage."""
    faults = unknown_word_faults(*parser.parse_known_and_unknown_args(args))
    if faults:
        raise pytest.UsageError(message(BadInput(faults)))


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """In a distributed run, find this process's place; all ranks but 0 only follow."""
    how: str | None = config.option.lockstep_distributed
    if how is None:
        return None
    try:
        member = membership(how)
        if not member.config.is_main_process():
            return follow(member)
    except REFUSED as error:
        raise pytest.UsageError(message(error)) from error
    config.stash[MEMBER] = member
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Check the whole request before anything runs."""
    hosts: Hosts = Hosts()
    try:
        member = config.stash.get(MEMBER, None)
        if member is not None:  # first, because closing it ends the other ranks
            hosts = Leader(member)
        selector(config.option.keyword)
        options = read_options(config.option)
        if member is not None:
            options = with_config(options, member.config)
        measures = not (options.dry_run or config.option.collectonly)
        engine = set_up_run(options, hosts, measures=measures)
        config.option.keyword = ""  # pytest would also match its own names, such as `benchmark`
    except KeyboardInterrupt:
        hosts.close()
        raise RunEnd("interrupted", INTERRUPTED) from None
    except REFUSED as error:
        hosts.close()
        raise pytest.UsageError(message(error)) from error
    config.stash[FRONT] = front = Front(config, engine, measures=measures)
    config.pluginmanager.register(front, "lockstep")


class Front:
    """The hooks of one run."""

    _progress: Progress

    def __init__(self, config: pytest.Config, engine: Engine, *, measures: bool) -> None:
        self.config = config
        self.engine = engine
        self.console = plain_console()
        self._selects = selector(engine.options.k or "")
        self._measures = measures
        self._estimates = RunEstimates(engine)
        self._cells = {cell.name: cell for cell in engine.plan.cells}
        self._selected: dict[Block, list[str]] = {}
        self._measured = False
        self._closing: list[str] = []
        self._benchmarks: dict[str, Any] | None = None
        if measures and config.option.benchmark_json is None:
            # pytest-benchmark makes a summary only if it has to write a file, and the run's folder
            # does not exist yet.
            config.option.benchmark_json = os.devnull

    # Collection.

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Make an item of each cell."""
        metafunc.parametrize("cell_name", list(self._cells), ids=list(self._cells))

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Function]) -> None:
        """Select cells by -k, and replay samples through pytest-benchmark's timer."""
        chosen = {one: self._selects(str(one.callspec.params["cell_name"])) for one in items}
        self.config.hook.pytest_deselected(items=[one for one in items if not chosen[one]])
        items[:] = [one for one in items if chosen[one]]
        for item in items:
            name = str(item.callspec.params["cell_name"])
            block = self._cells[name].block
            item.add_marker(pytest.mark.benchmark(timer=self._timer(name), group=block.name))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Record the selected cells, after -k and similar options."""
        for item in cast("list[pytest.Function]", session.items):
            cell = self._cells[str(item.callspec.params["cell_name"])]
            own = cell.implementation
            arms = [own, base_of(own)] if self.engine.bases else [own]
            self._selected.setdefault(cell.block, []).extend(arms)
        if not session.items:
            example = next(iter(self._cells), "none")
            self._say(f"none of the {len(self._cells)} cells is selected; names are like {example}")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self) -> bool | None:
        """With --dry-run, print what would run instead of running it."""
        if self._measures or self.config.option.collectonly:
            return None
        self.engine.pass_on_notes(self._say)
        if self._selected:
            print_plan(self.console, self._selected, self._estimates)
        return True

    # Measuring.

    @pytest.hookimpl(wrapper=True, specname="pytest_runtestloop")
    def pytest_show_progress(self) -> Generator[None, Any, Any]:
        """Show the progress while items run, and let signals interrupt them."""
        if not self._measures:
            return (yield)
        self._report_impossible_blocks()
        self._progress = self._estimates.progress(self.console, self._selected)
        with termination_as_interrupt(), self._progress:
            return (yield)

    def _report_impossible_blocks(self) -> None:
        """Report blocks that nothing can run, and whether a resumed run has anything left to do."""
        for block, arms in self._selected.items():
            if not self._estimates.running(block, arms):
                reasons = Counter(self._estimates.why_unsupported(block, arm) for arm in arms)
                each = (f"{why} ({count(cells, 'cell')})" for why, cells in reasons.most_common())
                self._say(f"{block.name}: no selected cell runs: {shortened('; '.join(each))}")
        run, plan, schedule = self.engine.directory, self.engine.plan, self.engine.schedule
        left = any(schedule.missing_launches(*each) for each in self._selected.items())
        if run is None or left or not self._selected:
            return
        budget_s = schedule.budget_left_s
        shortest_s = min(schedule.blocks[block.name].seconds for block in self._selected)
        if budget_s is not None and budget_s < shortest_s:
            self._say(
                f"--budget is too short: it leaves {clock(budget_s)}, and another launch takes "
                f"about {clock(shortest_s)}"
            )
        elif budget_s is None and plan.target_ci is None:
            self._say(f"{run.name} is complete: there is nothing left to measure")

    def _say(self, text: str) -> None:
        self.console.print(text, soft_wrap=True, markup=False)

    @cached_property
    def stored(self) -> tuple[store.Run, Tables] | None:
        """The run and its tables, read when nothing more is measured; None if nothing is stored."""
        directory = self.engine.directory
        if directory is None or not (directory / store.LAUNCHES).is_dir():
            return None
        # Libraries of the report's numbers take seconds to load, so they are loaded now.
        from bench.analyse import cell_table

        run = store.load(directory)
        return run, cell_table.build(run)

    @cached_property
    def _rows(self) -> dict[str, dict[str, Any]]:
        return {row["cell"]: row for row in self.stored[1].rows} if self.stored else {}

    def measured(self, name: str) -> dict[str, Any]:
        """Return the row of a cell; the first call measures all selected cells."""
        if not self._measured:
            self._measured = True
            try:
                most: int = self.config.getvalue("maxfail") or 0  # by -x or --maxfail
                self.engine.measure(self._selected, self._progress, most)
            except KeyboardInterrupt:
                run = self.engine.resumable
                left = f": --resume {run} measures what is left" if run else ""
                code = 2 if self.engine.directory else INTERRUPTED
                raise RunEnd(f"interrupted{left}", code) from None
            except (NotStoredError, BadInput) as error:  # its name was taken or its files changed
                self._closing.append(f"error: {message(error)}")
                code = BAD_INPUT if isinstance(error, BadInput) else FAILED
                raise RunEnd("ended early", code) from error
            except Exception as error:
                traceback.print_exc()
                raise RunEnd(f"Lockstep itself failed: {error}", FAILED) from error
        if name not in self._rows:
            pytest.skip("not measured: the run stopped after as many failures as are allowed")
        return self._rows[name]

    def step_seconds(self, name: str) -> list[float]:
        """Return the seconds per step of a cell, round by round; none without a time."""
        block, _, arm = name.rpartition("/")
        blocks = self.stored[1].comparisons if self.stored else ()
        rounds = next(each.rounds for each in blocks if each.name == block)
        return [seconds for seconds in rounds.seconds(arm).tolist() if not math.isnan(seconds)]

    def extra_info(self, name: str) -> dict[str, Any]:
        """Return the fields of a cell in benchmark.json besides its samples."""
        row, seconds = self.measured(name), self.step_seconds(name)
        info = {key: row[key] for key in SHOWN if not missing(row[key])}
        info["workload"] = f"{row['workload']}-{row['size']}"
        if seconds and "units_per_step" in info:
            info[f"{info['unit']}/s"] = info["units_per_step"] / median_high(seconds)
        return info

    def _timer(self, name: str) -> Callable[[], float]:
        """Return a clock by which pytest-benchmark's rounds take as long as the cell's samples."""

        def readings() -> Iterator[float]:
            for seconds in self.step_seconds(name):
                yield 0.0
                yield seconds

        return readings().__next__

    # Output.

    def pytest_report_teststatus(
        self, report: pytest.TestReport | pytest.CollectReport
    ) -> tuple[str, str, str] | None:
        """Print nothing for an item; progress and summary cover it."""
        if report.when == "call" or report.failed:
            return "cell", "", ""
        return None

    @pytest.hookimpl(tryfirst=True)
    def pytest_benchmark_generate_machine_info(self) -> dict[str, Any]:
        """Describe the machine without its host name, because the file may be published."""
        names = ("machine", "system", "release", "python_implementation", "python_version")
        found = {name: getattr(platform, name)() for name in names}
        return {**found, "cpu": {"brand_raw": processor_name(), "count": usable_cores()}}

    def pytest_benchmark_update_commit_info(self, commit_info: dict[str, Any]) -> None:
        """Remove the name of the checkout's folder."""
        commit_info["project"] = "lockstep"

    @pytest.hookimpl(trylast=True)
    def pytest_benchmark_update_json(self, output_json: dict[str, Any]) -> None:
        """Keep the summary for the run's folder."""
        self._benchmarks = output_json

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, Any, Any]:
        """Build the report of everything stored, even after an interruption."""
        directory = self.engine.directory
        try:
            with storing(directory or REPORTS, resume=self.engine.resumable):
                result = yield  # pytest-benchmark writes its file
                if directory is not None and self._measures:
                    self._build(directory)
        except (NotStoredError, KeyboardInterrupt) as error:
            why = str(error) or f"interrupted; build it: {as_typed('report')} {directory}"
            self._closing.append(f"no report: {why}")
            session.exitstatus = FAILED if isinstance(error, NotStoredError) else INTERRUPTED
            return None
        return result

    def _build(self, directory: Path) -> None:
        if self._benchmarks is not None:
            text = json.dumps(self._benchmarks, indent=4, default=str)
            files.write(directory / BENCHMARK_JSON, text)
        if self.stored is not None:
            # Drawing libraries take seconds to load, so they are loaded when nobody waits.
            from bench.present.report_files import build

            self._closing.insert(0, f"report: {build(*self.stored).as_posix()}")

    def pytest_terminal_summary(self) -> None:
        """Print the run's table; the outcome of a gate comes from regress_plugin.py."""
        if self._measures and self.stored is not None and not self.engine.bases:
            from bench.present.closing_summary import print_summary

            print_summary(self.console, *self.stored)

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        """Print where the report is, and tell other hosts that the run has ended."""
        for line in self._closing:
            self._say(line)
        self.engine.hosts.close()
