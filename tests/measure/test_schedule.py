"""Arms leave the rounds when nothing is open about them, and launches go where something is."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from bench.analyse.process_spread import PROCESS, TWO_PROCESSES, known
from bench.analyse.ratio_intervals import Ratio
from bench.analyse.verdicts import Claim, Verdict
from bench.measure.launch_looks import EXTENSION, LaunchLooks
from bench.measure.schedule import MAX_LAUNCHES, BlockState, Schedule
from bench.plan.matrix import make_plan
from bench.plan.options import Options
from bench.records.arms import TWIN, versions_of
from bench.records.messages import HOST_LOST, LookEvent
from bench.records.rows import HostSlot, SampleRow
from bench.records.store import Run
from tests.fakes.catalogue import catalogue

NAMES = ("python_loop", "jit_spmd", "pmap")
QUIET: HostSlot = {"cores_s": 0.0, "steal_s": 0.0, "own_s": 0.0, "foreign_s": 0.0, "mhz": None}


def schedule(**options) -> Schedule:
    typed = {"workloads": ("mlp",), "meshes": ("data=1",), "rounds": "32", "launches": "3"}
    return Schedule(make_plan(Options(**{**typed, **options}), catalogue()))


def rows(launch: int, rounds: int, truth: dict[str, float], noise: float = 0.03) -> list[SampleRow]:
    rng = np.random.default_rng(launch)
    return [
        {
            "block": "b", "attempt": f"a{launch}", "launch": launch, "arm": arm, "round": number,
            "at": 0.0, "steps": 10, "latency_steps": 3,
            "throughput_ns": int(1e8 * ratio * math.exp(noise * rng.standard_normal())),
            "latency_ns": 10**7, "wash_out_ns": 10**7, "host": QUIET,
        }
        for number in range(rounds)
        for arm, ratio in truth.items()
    ]  # fmt: skip


def look(samples: list[SampleRow], progress: float) -> LookEvent:
    return LookEvent(event="look", rows=samples, progress=progress)


TRUTH = {"python_loop": 1.0, TWIN: 1.0, "jit_spmd": 1.5, "pmap": 1.005}


def test_what_is_decided_leaves_and_the_others_keep_whom_they_are_compared_with() -> None:
    made = schedule()
    looks = LaunchLooks(made, made.plan.blocks[0])
    assert looks.arms_to_continue(look(rows(0, 16, TRUTH), 0.5)) == ["python_loop", TWIN, "pmap"]
    taken, claims = looks.finish(rows(0, 16, TRUTH), 0)
    assert taken[0]["settled"] == ["jit_spmd"]
    assert claims["jit_spmd"].verdict.word == "slower"
    assert claims["pmap"].verdict.word == "undecided"


def test_an_arm_that_is_undecided_again_comes_back() -> None:
    made = schedule(margin="5")
    looks = LaunchLooks(made, made.plan.blocks[0])
    early = rows(0, 16, {**TRUTH, "pmap": 0.9})
    assert "pmap" not in looks.arms_to_continue(look(early, 0.5))
    later = [{**row, "round": row["round"] + 16} for row in rows(0, 16, {**TRUTH, "pmap": 1.1})]
    assert looks.arms_to_continue(look([*early, *later], 0.9)) == ["python_loop", TWIN, "pmap"]
    assert [each["settled"] for each in looks.finish([], 0)[0]] == [
        ["jit_spmd", "pmap"],
        ["jit_spmd"],
    ]


def test_beyond_the_plan_stays_whom_the_turns_left_over_would_decide() -> None:
    """One open arm of many gets several times its own rounds; many open ones do not."""
    names = [f"arm{number}" for number in range(12)]
    made = schedule(launches="1")
    looks = LaunchLooks(made, made.plan.blocks[0])
    looks._opponents = dict.fromkeys(names, "base")
    claims = {
        name: Claim(Ratio(1.0, 0.01, 9.0, 20, 1, paired=True), Verdict("undecided", 0.9, 1.1), 2.5)
        for name in names
    }
    assert looks._decidable({"arm0": claims["arm0"]}, turns=100) == {"arm0"}
    assert looks._decidable({"arm0": claims["arm0"]}, turns=80) == set()
    assert looks._decidable(claims, turns=100) == {"arm0"}


def test_a_budget_goes_to_leaders_that_may_be_far_apart() -> None:
    made = schedule(margin="2", budget="600")
    block, truth = made.plan.blocks[0], {"python_loop": 1.0, "jit_spmd": 0.6, "pmap": 0.601}
    looks = LaunchLooks(made, block)
    looks.arms_to_continue(look(samples := rows(0, 16, truth, noise=0.05), 0.5))
    _, claims = looks.finish(samples, 0)
    assert all(claim.verdict.decided for claim in claims.values())
    assert made._widest([block], math.inf) == block
    assert schedule(margin="20", budget="600")._widest([block], math.inf) is None


def test_a_budget_pays_for_no_launch_that_is_longer_or_one_too_many() -> None:
    made = schedule(margin="2", budget="600")
    block = made.plan.blocks[0]
    looks = LaunchLooks(made, block)
    looks.arms_to_continue(look(samples := rows(0, 16, TRUTH), 0.5))
    looks.finish(samples, 0)
    state = made.blocks[block.name]
    state.seconds = 10.0
    assert made._widest([block], 10.0) == block, "pmap is undecided"
    assert made._widest([block], 9.9) is None
    state.launches = set(range(MAX_LAUNCHES))
    assert made._widest([block], 10.0) is None


def test_a_block_with_too_few_rounds_for_an_interval_gets_more_launches() -> None:
    made = schedule(target_ci="10", rounds="3", launches="1")
    block = made.plan.blocks[0]
    _, claims = LaunchLooks(made, block).finish(rows(0, 3, TRUTH), 0)
    assert {claim.ratio.shown for claim in claims.values()} == {None}
    assert made._widest([block], math.inf) == block


def test_a_budget_pays_for_a_launch_whose_first_has_trained() -> None:
    """Later launches do not train, so they cost less than the first."""
    made = schedule(margin="2", budget="600")
    name = made.plan.blocks[0].name
    seconds = {"start": 3.0, "ceilings": 20.0, "measure": 7.0, "train": 500.0}
    stored = {
        "attempt": "a", "block": name, "launch": 0, "looks": [], "ceilings": None,
        "seconds": seconds,
    }  # fmt: skip
    run = SimpleNamespace(sample_rows=list, cell_rows=[], block_rows=[stored])
    made.resume(cast(Run, run))
    assert made.blocks[name].seconds == 10.0
    assert made.budget_left_s == 600 - 530


def test_what_was_lost_with_a_host_is_measured_again() -> None:
    """A lost launch counts as none, so its successor has the same number."""
    made = schedule(launches="1")
    block = made.plan.blocks[0]
    lost = f"process 1 of 2 exited with code 255; its last lines:\n{HOST_LOST} before"
    cells = [
        {"block": block.name, "implementation": name, "attempt": "a", "launch": 0, **own}
        for name, own in (
            ("jit_spmd", {"status": "wrong", "reason": "the loss is 2 times what it should be"}),
            ("pmap", {"status": "crashed", "reason": lost}),
        )
    ]
    stored = {"attempt": "a", "block": block.name, "launch": 0, "looks": [], "ceilings": None}
    run = SimpleNamespace(
        sample_rows=list, cell_rows=cells, block_rows=[{**stored, "seconds": {"start": 9.0}}]
    )
    made.resume(cast(Run, run))
    assert made.missing_launches(block, NAMES) == [0]
    assert list(made.launches({block: NAMES})) == [(block, list(NAMES))]
    cells[1]["reason"] = "process 1 of 2 was killed by SIGSEGV"
    made = schedule(launches="1")
    made.resume(cast(Run, run))
    assert made.blocks[block.name].failed == {"jit_spmd", "pmap"}


def test_where_all_failed_nothing_is_compared() -> None:
    made = schedule()
    block = made.plan.blocks[0]
    made.blocks[block.name].cells = [{"implementation": name, "status": "oom"} for name in NAMES]
    assert made.opponents(block, rows(0, 16, TRUTH)) == {}


def test_those_that_may_be_the_fastest_stay_until_they_are_alike() -> None:
    """They are all decided against the baseline, and which one to take is still open."""
    truth = {"python_loop": 1.0, TWIN: 1.0, "jit_spmd": 0.7, "pmap": 0.705}
    made = schedule(margin="2")
    looks = LaunchLooks(made, made.plan.blocks[0])
    assert looks.arms_to_continue(look(rows(0, 16, truth), 0.5)) == list(truth)
    made = schedule(margin="20")
    looks = LaunchLooks(made, made.plan.blocks[0])
    assert looks.arms_to_continue(look(rows(0, 16, truth), 0.5)) == []


def test_what_failed_in_an_earlier_launch_is_no_rival() -> None:
    """Its samples are not compared, as in the report."""
    truth = {"python_loop": 1.0, TWIN: 1.0, "jit_spmd": 0.7, "pmap": 0.705}
    made = schedule(margin="2")
    block = made.plan.blocks[0]
    LaunchLooks(made, block).finish(rows(0, 16, truth), 0)
    made.blocks[block.name].cells += [{"implementation": "pmap", "status": "wrong", "launch": 1}]
    del truth["pmap"]
    looks = LaunchLooks(made, block)
    assert looks.arms_to_continue(look(rows(1, 16, truth), 0.5)) == []
    assert len(made.blocks[block.name].series[0]) == 2, "of the twin and of jit_spmd"


def test_arms_with_one_program_are_measured_once() -> None:
    """pmap is the baseline's program, and needs no more; the two fastest are one program as well,
    of which one stays to be told from the third."""
    names = ("python_loop", "pmap", "jit_spmd", "nnx_jit", "fsdp_spmd")
    plan = replace(schedule(margin="2").plan, implementations=names)
    made = Schedule(plan)
    truth = {
        "python_loop": 1.0, TWIN: 1.0, "pmap": 1.004, "jit_spmd": 0.7, "nnx_jit": 0.7,
        "fsdp_spmd": 0.705,
    }  # fmt: skip
    programs = {"python_loop": "a", "pmap": "a", "jit_spmd": "b", "nnx_jit": "b", "fsdp_spmd": "c"}
    looks = LaunchLooks(made, made.plan.blocks[0])
    assert looks.arms_to_continue(look(rows(0, 16, truth), 0.5)) == [
        "python_loop", TWIN, "pmap", "jit_spmd", "nnx_jit", "fsdp_spmd",
    ]  # fmt: skip
    made = Schedule(plan)
    looks = LaunchLooks(made, made.plan.blocks[0])
    arms = looks.arms_to_continue({**look(rows(0, 16, truth), 0.5), "programs": programs})
    assert arms[:2] == ["python_loop", TWIN]
    assert len({"jit_spmd", "nnx_jit"} & set(arms)) == 1
    assert "pmap" not in arms
    _, claims = looks.finish(rows(0, 16, truth), 0)
    assert claims["pmap"].verdict.word == "same"
    assert made.blocks[made.plan.blocks[0].name].programs == programs, "for later launches"


def test_a_launch_takes_the_time_of_all_its_attempts() -> None:
    """A cell that ran alone makes an attempt of its own."""
    made = schedule(budget="600")
    block = {"block": "b", "attempt": "a", "looks": [], "ceilings": None}
    attempts = [(0, 5.0), (0, 2.0), (1, 4.0), (1, 3.0), (1, 1.0)]
    blocks = [{**block, "launch": n, "seconds": {"measure": s - 1, "gate": 1}} for n, s in attempts]
    made.resume(SimpleNamespace(sample_rows=list, cell_rows=[], block_rows=blocks))
    assert made.blocks["b"].seconds == 8.0
    assert made.budget_left_s == 600 - 15


def test_a_damaged_launch_is_the_one_that_is_missing() -> None:
    made = schedule()
    block = made.plan.blocks[0]
    state = made.blocks[block.name]
    state.launches = {1, 2}
    state.cells = [
        {"implementation": name, "status": "ok", "launch": n} for name in NAMES for n in (1, 2)
    ]
    assert made.missing_launches(block, NAMES) == [0]


def test_all_is_over_when_nothing_is_open() -> None:
    made = schedule()
    looks = LaunchLooks(made, made.plan.blocks[0])
    assert looks.arms_to_continue(look(rows(0, 16, {**TRUTH, "pmap": 1.3}), 0.5)) == []


@pytest.mark.parametrize(("pmap", "goes_on"), [(1.02, True), (1.005, False)])
def test_planned_turns_are_exceeded_only_where_that_probably_decides(
    pmap: float, goes_on: bool
) -> None:
    made = schedule(margin="2", launches="1")
    looks = LaunchLooks(made, made.plan.blocks[0])
    samples = rows(0, 32, {**TRUTH, "pmap": pmap})
    assert bool(looks.arms_to_continue(look(samples, 1.0))) == goes_on
    assert not LaunchLooks(made, made.plan.blocks[0]).arms_to_continue(look(samples, 1 + EXTENSION))


def test_extra_turns_need_error_that_only_the_last_launch_has() -> None:
    """A look without error would withdraw what is decided."""
    made = schedule(margin="2")
    looks = LaunchLooks(made, made.plan.blocks[0])
    samples = rows(0, 32, {**TRUTH, "pmap": 1.02})
    assert looks.arms_to_continue(look(rows(0, 16, {**TRUTH, "pmap": 1.02}), 0.5))
    assert looks.arms_to_continue(look(samples, 1.0)) == []
    assert looks.finish(samples, 0)[1]["jit_spmd"].verdict.word == "slower"


def test_turns_beyond_the_plan_may_spend_error_too() -> None:
    made = schedule(launches="1", margin="2")
    looks = LaunchLooks(made, made.plan.blocks[0])
    truth = {**TRUTH, "pmap": 1.016}
    assert looks.arms_to_continue(look(rows(0, 32, truth), 1.0))
    assert looks.arms_to_continue(look(rows(0, 40, truth), 1.25)) == []
    taken, claims = looks.finish(rows(0, 40, truth), 0)
    assert [one["rounds"] for one in taken] == [32, 40]
    assert taken[1]["alpha"] > 0
    assert claims["pmap"].verdict.low > 0


def test_two_launches_settle_an_arm_and_the_third_goes_without_it() -> None:
    made = schedule()
    (block,) = made.plan.blocks
    for number in (0, 1):
        assert made.missing_launches(block, NAMES) == [*range(number, 3)]
        looks = LaunchLooks(made, block)
        looks.finish(rows(number, 16, TRUTH), number)
        made.blocks[block.name].cells += [
            {"implementation": name, "status": "ok", "launch": number} for name in NAMES
        ]
    assert made.blocks[block.name].settled == {"jit_spmd"}
    assert list(made.launches({block: NAMES})) == [(block, ["python_loop", "pmap"])]
    settled = LaunchLooks(made, block)
    settled.finish(rows(2, 32, {**TRUTH, "pmap": 1.2}), 2)
    made.blocks[block.name].launches.discard(2)
    assert made.blocks[block.name].settled == {"jit_spmd", "pmap"}
    assert list(made.launches({block: NAMES})) == [], "the baseline alone is not worth one"


def test_a_decided_arm_stays_decided_at_a_stricter_look() -> None:
    """Extra turns of others have little error left, and say nothing new about it."""
    made = schedule(launches="1", margin="2")
    looks = LaunchLooks(made, made.plan.blocks[0])
    truth = {"python_loop": 1.0, TWIN: 1.0, "jit_spmd": 1.0265, "pmap": 1.028}
    for rounds, progress in ((16, 0.5), (32, 1.0), (40, 1.25)):
        samples = [
            row
            for row in rows(0, rounds, truth, noise=0.04)
            if row["arm"] != "jit_spmd" or row["round"] < 32
        ]
        looks.arms_to_continue(look(samples, progress))
    taken, claims = looks.finish(samples, 0)
    assert [each["decided"] for each in taken] == [[], ["jit_spmd"], ["jit_spmd"]]
    assert taken[2]["alpha"] < taken[1]["alpha"] / 3
    assert claims["jit_spmd"].verdict.word == "slower"


def test_an_arm_that_a_resumed_run_adds_is_measured_beside_the_baseline() -> None:
    made = schedule()
    (block,) = made.plan.blocks
    state = made.blocks[block.name]
    state.launches = {0, 1, 2}
    state.cells = [
        {"implementation": name, "status": "ok", "launch": n}
        for name in NAMES[:2]
        for n in (0, 1, 2)
    ]
    assert [arms for _, arms in made.launches({block: NAMES})] == [["python_loop", "pmap"]] * 3


@pytest.mark.parametrize("names", [NAMES, ("jit_spmd",)])
def test_beside_ablated_arms_all_stay_for_the_planned_turns(names: tuple[str, ...]) -> None:
    made = Schedule(replace(schedule().plan, implementations=names, baseline=names[0]))
    truth = {arm: TRUTH[arm] for arm in (*names, TWIN)} | {"jit_spmd+local": 1.2}
    samples = rows(0, 16, truth)
    assert "jit_spmd+local" not in made.opponents(made.plan.blocks[0], samples)
    looks = LaunchLooks(made, made.plan.blocks[0])
    assert looks.arms_to_continue(look(samples, 0.5)) == list(truth)
    assert looks.arms_to_continue(look(samples, 1.0)) == []


def test_a_gate_ends_when_its_steps_are_settled() -> None:
    """A base is not a variant, which would keep its head in the rounds."""
    arms = ("python_loop", "python_loop@base", "pmap", "pmap@base")
    state = BlockState(
        samples=rows(0, 1, dict.fromkeys(arms, 1.0)),
        looks=[{"launch": 0, "rounds": 16, "alpha": 0.01, "settled": ["python_loop"]}],
    )  # type: ignore[list-item]
    assert state.settled == {"python_loop"}
    state.samples = rows(0, 1, dict.fromkeys(("pmap", "pmap@old"), 1.0))
    state.looks[0]["settled"] = ["pmap"]
    assert state.settled == set(), "another version still needs it"


def test_looks_and_report_divide_their_error_among_the_same_comparisons() -> None:
    arms = ("python_loop", "python_loop@old", "pmap", "pmap@old")
    made = Schedule(replace(schedule().plan, implementations=arms))
    samples = rows(0, 1, dict.fromkeys(arms, 1.0))
    opponents = made.opponents(made.plan.blocks[0], samples)
    pairs = {(arm, "python_loop") for arm in arms[1:]} | versions_of(arms).items()
    assert made.family(opponents) == len(pairs) == 4


def test_variants_have_all_their_launches() -> None:
    made = schedule(variant=("v=XLA_FLAGS=--first",))
    block = made.plan.blocks[0]
    for number in (0, 1):
        LaunchLooks(made, block).finish(rows(number, 16, {**TRUTH, "pmap": 1.3}), number)
        made.blocks[block.name].cells += [
            {"implementation": name, "status": "ok", "launch": number} for name in NAMES
        ]
    assert made.missing_launches(block, NAMES) == [2]


def test_a_worker_that_died_after_a_look_measures_all_again() -> None:
    made = schedule()
    looks = LaunchLooks(made, made.plan.blocks[0])
    looks.arms_to_continue(look(rows(0, 16, TRUTH), 0.5))
    again = rows(1, 16, TRUTH)
    assert looks.arms_to_continue(look(again, 0.5)) == list(TRUTH)
    assert looks.arms_to_continue(look(again, 1.0)) == []


def test_a_twin_in_a_process_of_its_own_shows_how_much_processes_differ() -> None:
    made = schedule()
    made.apart = ["python_loop", "jit_spmd"]
    found = {}
    for arms in (["python_loop", "jit_spmd"], ["python_loop", TWIN, "jit_spmd"]):
        samples = [row for number in range(4) for row in rows(number, 16, dict.fromkeys(arms, 1.0))]
        opponents = {"jit_spmd": "python_loop"}
        block = made.plan.blocks[0]
        made.compared(block, samples, opponents, [])
        spreads = known(None, 1).updated([made.blocks[block.name].series])
        assert spreads.one_process == PROCESS
        found[TWIN in arms] = spreads.two_processes.freedom
    assert TWO_PROCESSES.freedom < found[False] < found[True]
