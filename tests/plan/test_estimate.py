"""How long launches will take: from stored runs of the workload here, else from constants."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from bench.plan.estimate import (
    APART_S,
    CACHED,
    OTHER_ARM_S,
    WORKER_START_S,
    launch_seconds,
    read_history,
)
from bench.records.cells import Block, StepOptions
from bench.records.mesh import MeshShape
from tests import synthetic
from tests.fakes.catalogue import catalogue

BLOCK = Block("own", "large", MeshShape.parse("data=2"), 8, StepOptions.parse("fp32"))
WORKER = {"inputs": [], "ablations": [], "phases": {}, "seconds": 10.0, "rounds": 4}
PLAN = SimpleNamespace(worker=WORKER, modes=())


@pytest.mark.parametrize(("launch", "share"), [(0, 1.0), (1, CACHED)])
def test_an_unknown_workload_takes_a_time_for_each_arm_and_the_twin(launch, share):
    seconds = launch_seconds(BLOCK, 3, PLAN, {}, launch)
    assert seconds == WORKER_START_S + 4 * OTHER_ARM_S * share + 10.0
    assert launch_seconds(BLOCK, 3, PLAN, {}, launch, apart=2) == seconds + 2 * APART_S


def stored(*, memory_bytes=synthetic.MEMORY_BYTES, launch=0, turns=32, foreign=False, **seconds):
    """A run of one launch of three arms that ran, and one that is unsupported."""
    block = {"workload": "own", "size": "large", "launch": launch, "attempt": "a"}
    block |= {"seconds": seconds, "rounds": 8, "steps": 2}
    cells = [{"attempt": "a", "status": status} for status in ("ok", "unsupported", "ok", "wrong")]
    if foreign:
        cells[0]["foreign"] = {}
    host = {"memory_bytes": memory_bytes, "usable_cores": 4, "cpu": synthetic.PROCESSOR}
    manifest = {**catalogue(cores=4), "host": host}
    launch = SimpleNamespace(head={"blocks": [block], "cells": cells}, samples=b"{}\n" * turns)
    return SimpleNamespace(launches=[launch], manifest=manifest)


@pytest.fixture
def history_of(monkeypatch, tmp_path):
    synthetic.this_machine(monkeypatch)

    def read(*runs):
        monkeypatch.setattr("bench.plan.margins.store.newest", lambda _: iter(runs))
        return read_history(catalogue(cores=4), tmp_path)

    return read


def test_stored_launches_tell_the_time_of_each_part(history_of):
    run = stored(start=3.0, ceilings=4.0, gate=6.0, compile=2.0, measure=64.0, train=70.0)
    # Three arms and a twin took 8 s, and eight rounds of their turns 64 s, with two steps in each.
    history = history_of(run)
    assert launch_seconds(BLOCK, 9, PLAN, history) == 7.0 + 10 * 2.0 + 4 * 10 * 1.0
    short = SimpleNamespace(worker={**WORKER, "rounds": 1, "seconds": 20.0}, modes=())
    assert launch_seconds(BLOCK, 9, short, history) == 7.0 + 10 * 2.0 + 20.0, "with more steps each"
    fewer = history_of(stored(measure=64.0, turns=16))
    assert launch_seconds(BLOCK, 9, PLAN, fewer) == 4 * 10 * 2.0, "arms that left took no turns"


def test_a_later_launch_that_none_is_stored_of_repeats_half(history_of):
    first, later = stored(gate=8.0), stored(launch=1, gate=2.0)
    assert launch_seconds(BLOCK, 3, PLAN, history_of(first), 1) == 8.0 * CACHED + 10.0
    assert launch_seconds(BLOCK, 3, PLAN, history_of(first, later), 1) == 2.0 + 10.0
    assert launch_seconds(BLOCK, 3, PLAN, history_of(later)) == 2.0 / CACHED + 10.0


def test_launches_with_processes_of_their_own_tell_of_their_like(history_of):
    history = history_of(stored(gate=80.0, foreign=True))
    assert launch_seconds(BLOCK, 3, PLAN, history, apart=1) == 80.0 + 10.0
    assert launch_seconds(BLOCK, 3, PLAN, history) == launch_seconds(BLOCK, 3, PLAN, {})


def test_only_the_newest_runs_of_this_machine_count(history_of):
    other, new, old = stored(memory_bytes=2, gate=4.0), stored(gate=8.0), stored(gate=80.0)
    assert launch_seconds(BLOCK, 3, PLAN, history_of(other, new, old)) == 8.0 + 10.0
    assert history_of(other) == {}


def test_phases_after_the_rounds_are_of_the_first_launch():
    worker = {**WORKER, "phases": {"trace": {}}}
    plan = SimpleNamespace(worker=worker, modes=("sync",))
    more = [launch_seconds(BLOCK, 3, plan, {}, n) - launch_seconds(BLOCK, 3, PLAN, {}, n)
            for n in (0, 1)]  # fmt: skip
    assert more[0] > 0.0
    assert more[1] == 0.0
