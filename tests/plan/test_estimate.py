"""How long launches will take: from stored runs of the workload, else from constants."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from bench.plan.estimate import (
    APART_S,
    CACHED,
    OTHER_ARM_S,
    WORKER_START_S,
    History,
    launch_stages,
    read_history,
)
from bench.plan.estimate import _past as past_of
from bench.records.cells import Block, StepOptions
from bench.records.mesh import MeshShape

BLOCK = Block("own", "large", MeshShape.parse("data=2"), 8, StepOptions.parse("fp32"))
WORKER = {"inputs": [], "ablations": [], "phases": {}, "seconds": 10.0, "rounds": 4}
PLAN = SimpleNamespace(worker=WORKER, modes=())


def seconds_of(*asked, **more):
    return sum(launch_stages(*asked, **more).values())


@pytest.mark.parametrize(("launch", "share"), [(0, 1.0), (1, CACHED)])
def test_an_unknown_workload_takes_a_time_for_each_arm_and_the_twin(launch, share):
    seconds = seconds_of(BLOCK, 3, PLAN, History(), launch)
    assert seconds == WORKER_START_S + 4 * OTHER_ARM_S * share + 10.0


def stored(workload="own", memory_bytes=1, launch=0, turns=32, **seconds):
    """A run of one launch of three arms that ran, and one that is unsupported."""
    block = {"workload": workload, "size": "large", "launch": launch, "attempt": "a"}
    block |= {"seconds": seconds, "rounds": 8, "steps": 2}
    cells = [{"attempt": "a", "status": status} for status in ("ok", "unsupported", "ok", "wrong")]
    manifest = {"platform": "cpu", "host": {"memory_bytes": memory_bytes}}
    return SimpleNamespace(
        block_rows=[block], cell_rows=cells, manifest=manifest, turns={"a": turns}
    )


def read(monkeypatch, tmp_path, *runs):
    monkeypatch.setattr("bench.plan.estimate.store.newest", lambda _: iter(runs))
    return read_history(tmp_path, "cpu", 1)


def test_stored_launches_tell_the_time_of_each_part():
    run = stored(start=3.0, ceilings=4.0, gate=6.0, compile=2.0, measure=64.0, train=70.0)
    past = past_of(run)
    # Three arms and a twin took 8 s, and eight rounds of their turns 64 s, with two steps in each.
    assert launch_stages(BLOCK, 9, PLAN, History(past)) == {
        "start": 7.0, "arms": 10 * 2.0, "measure": 4 * 10 * 1.0, "after": 0.0
    }  # fmt: skip
    fewer = History(past_of(stored(measure=64.0, turns=16)))
    stages = launch_stages(BLOCK, 9, PLAN, fewer)
    assert stages["measure"] == 4 * 10 * 2.0, "arms that left took no turns"
    short = SimpleNamespace(worker={**PLAN.worker, "rounds": 1, "seconds": 20.0}, modes=())
    assert launch_stages(BLOCK, 9, short, History(past))["measure"] == 20.0, "with more steps each"
    # A later launch, or a first one whose proofs and programs are cached, repeats less.
    for launch, kept, arm_s in ((1, 0, 1.0), (0, 9, 1.0), (0, 3, (2 * 2.0 + 1.0) / 3)):
        stages = launch_stages(BLOCK, 9, PLAN, History(past), launch, kept)
        assert stages["arms"] == pytest.approx(10 * arm_s)


def test_launches_that_found_their_proofs_and_programs_are_told_apart():
    run = stored(gate=4.0, process=6.0)
    for cell in run.cell_rows:
        cell["compiled_in"] = "earlier"
    warm = past_of(run)
    assert launch_stages(BLOCK, 3, PLAN, History(warm), kept=3)["arms"] == 4 * 1.0
    assert launch_stages(BLOCK, 3, PLAN, History(warm))["arms"] == 4 * 1.0 / CACHED
    assert launch_stages(BLOCK, 3, PLAN, History(warm))["start"] == 6.0


def test_runs_of_this_machine_come_first_then_new_ones(monkeypatch, tmp_path):
    other, new, old = stored(memory_bytes=2, gate=4.0), stored(gate=8.0), stored(gate=80.0)
    for runs, arm_s in (([other, new, old], 2.0), ([other], 1.0)):
        history = read(monkeypatch, tmp_path, *runs)
        assert launch_stages(BLOCK, 3, PLAN, history)["arms"] == 4 * arm_s


def test_other_workloads_tell_how_fast_this_machine_is(monkeypatch, tmp_path):
    slow = stored("other", gate=4 * OTHER_ARM_S * 3)
    for run, pace in ((slow, 3.0), (stored("other", 2, gate=999.0), 1.0)):
        history = read(monkeypatch, tmp_path, run)
        assert launch_stages(BLOCK, 3, PLAN, history)["arms"] == 4 * OTHER_ARM_S * pace


@pytest.mark.parametrize(("launch", "share"), [(0, 1.0), (1, CACHED)])
def test_an_arm_in_processes_of_its_own_starts_and_compiles_in_every_launch(launch, share):
    stages = launch_stages(BLOCK, 3, PLAN, History(), launch, apart=2)
    assert stages["arms"] == 2 * (OTHER_ARM_S + APART_S) + 2 * OTHER_ARM_S * share


def test_a_stored_arm_in_processes_of_its_own_counts_as_several():
    took = 2 * (4 * OTHER_ARM_S + APART_S)
    run = stored(gate=took)
    run.cell_rows[0]["foreign"] = {}
    history = History(past_of(run))
    assert history.arm_s("own-large", new=True) == pytest.approx(2 * OTHER_ARM_S)
    assert launch_stages(BLOCK, 3, PLAN, history, apart=1)["arms"] == pytest.approx(took)


def test_stored_arms_beside_an_implementations_own_count_if_there_are_any():
    run = stored(gate=12.0)
    run.cell_rows[0] |= {"inputs": {"loaded": ""}, "ablations": {"local": "", "forward": "why"}}
    assert History(past_of(run)).arm_s("own-large", new=True) == 12.0 / 6


def test_phases_after_the_rounds_are_of_the_first_launch():
    worker = {**PLAN.worker, "phases": {"trace": {}}}
    plan = SimpleNamespace(worker=worker, modes=("sync",))
    more = [
        seconds_of(BLOCK, 3, plan, History(), n) - seconds_of(BLOCK, 3, PLAN, History(), n)
        for n in (0, 1)
    ]
    assert more[0] > 0.0
    assert more[1] == 0.0
