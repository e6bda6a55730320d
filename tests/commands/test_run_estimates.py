"""What a dry run shows: the cells that can run, and the time that they will take."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from bench.commands.pytest_plugin import run_estimates, run_plugin
from bench.records.cells import Block, StepOptions
from bench.records.mesh import MeshShape
from tests.fakes.catalogue import catalogue


def plan_of(*blocks: Block, **goal: float) -> SimpleNamespace:
    """One launch of these blocks, with the arm `a` as the baseline."""
    return SimpleNamespace(
        worker={"inputs": [], "ablations": [], "phases": {}, "seconds": 10.0, "rounds": 48},
        modes=(),
        margin_reason="",
        launches=1,
        baseline="a",
        baseline_of=lambda arms: arms[0],
        blocks=blocks,
        **{"budget_s": None, "target_ci": None, **goal},
    )


def test_unsupported_cells_are_counted_and_take_no_time(monkeypatch, tmp_path):
    monkeypatch.setattr(run_estimates, "REPORTS", tmp_path)
    some, none = (
        Block("mlp", "base", MeshShape.parse(mesh), 8, StepOptions.parse("fp32"))
        for mesh in ("data=2", "pipe=2")
    )
    why = {some.name: {"a": "", "b": "no", "c": ""}, none.name: dict.fromkeys("abc", "no")}
    plan = plan_of(some, none)
    engine = SimpleNamespace(
        plan=plan,
        catalogue=catalogue(),
        unsupported=why,
        schedule=SimpleNamespace(missing_launches=lambda *_: [0], apart=(), budget_left_s=None),
    )
    estimates = run_estimates.RunEstimates(engine)
    console = Console(file=io.StringIO(), width=100)
    every = ["a", "b", "b@base", "b@fast-math", "c"]
    run_estimates.print_plan(console, {some: every, none: every}, estimates)
    lines = console.file.getvalue().splitlines()
    # Two implementations and the twin, 2.2 s each for proof and compilation, the worker's start and
    # the rounds; in all, also the time before and after the launches.
    assert lines == [
        f"{some.name}  about 20 s",
        "  a, c",
        f"{none.name}  unsupported",
        (
            "blocks: 2, cells: 2 and 8 unsupported, 1 launch of up to 48 rounds, "
            "baseline a: about 26 s"
        ),
    ]


@pytest.mark.parametrize(
    ("goal", "left_s", "shown"),
    [
        # Of the budget of 10 minutes, stored launches took 8.
        ({"budget_s": 600.0}, 120.0, "launches as the budget allows, of up to 48 rounds, # 2 min"),
        ({"target_ci": 0.01}, None, "at least 1 launch of up to 48 rounds, # at least 16 s"),
        ({}, None, "1 launch of up to 48 rounds, # about 16 s"),
    ],
)
def test_a_dry_run_tells_the_time_that_is_left_and_whether_it_may_take_longer(goal, left_s, shown):
    block = Block("mlp", "base", MeshShape.parse("data=2"), 8, StepOptions.parse("fp32"))
    plan = plan_of(block, **goal)
    engine = SimpleNamespace(plan=plan, schedule=SimpleNamespace(budget_left_s=left_s))
    estimates = SimpleNamespace(
        engine=engine, missing=lambda _: {block: [10.0]}, running=lambda _, arms: arms
    )
    console = Console(file=io.StringIO(), width=200)
    run_estimates.print_plan(console, {block: ["a"]}, estimates)
    launches, time = shown.split("#")
    assert console.file.getvalue().endswith(f"cells: 1, {launches}baseline a:{time}\n")


def test_a_resumed_run_is_estimated_by_the_launches_that_are_missing(monkeypatch, tmp_path):
    monkeypatch.setattr(run_estimates, "REPORTS", tmp_path)
    block = Block("mlp", "base", MeshShape.parse("data=2"), 8, StepOptions.parse("fp32"))
    schedule = SimpleNamespace(missing_launches=lambda *_: [1, 3], budget_left_s=None)
    engine = SimpleNamespace(unsupported={}, schedule=schedule, catalogue=catalogue())
    estimates = run_estimates.RunEstimates(engine)
    monkeypatch.setattr(estimates, "launch", lambda *launch: 10.0 + launch[-1])
    assert estimates.missing({block: ["a"]}) == {block: [11.0, 13.0]}


def test_a_block_that_nothing_runs_says_every_reason_with_the_cells_that_have_it(
    monkeypatch, tmp_path
):
    monkeypatch.setattr(run_estimates, "REPORTS", tmp_path)
    block = Block("mlp", "base", MeshShape.parse("pipe=2"), 8, StepOptions.parse("fp32"))
    why = {"a": "needs the axis model", "b": "knows only data", "c": "knows only data"}
    engine = SimpleNamespace(
        unsupported={block.name: why},
        directory=None,
        plan=None,
        catalogue=catalogue(),
        schedule=SimpleNamespace(missing_launches=lambda *_: [0], budget_left_s=None),
    )
    front = SimpleNamespace(
        _selected={block: ["a", "b", "b@fast-math", "c"]},
        _estimates=run_estimates.RunEstimates(engine),
        _say=(said := []).append,
        engine=engine,
    )
    run_plugin.Front._report_impossible_blocks(front)
    each = "knows only data (3 cells); needs the axis model (1 cell)"
    assert said == [f"{block.name}: no selected cell runs: {each}"]
