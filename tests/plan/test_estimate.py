"""How long launches will take: from stored runs of the workload, else from constants."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from bench.plan.estimate import CACHED, OTHER_ARM_S, WORKER_START_S, block_seconds
from bench.plan.estimate import _overheads as overheads
from bench.records.cells import Block, StepOptions
from bench.records.mesh import MeshShape

BLOCK = Block("own", "large", MeshShape.parse("data=2"), 8, StepOptions.parse("fp32"))
PLAN = SimpleNamespace(worker={"inputs": [], "phases": {}, "seconds": 10.0}, modes=())


@pytest.mark.parametrize(("launch", "share"), [(0, 1.0), (1, CACHED)])
def test_an_unknown_workload_takes_a_time_for_each_arm_and_the_twin(launch, share):
    seconds = block_seconds(BLOCK, 3, PLAN, {}, launch)
    assert seconds == WORKER_START_S + 4 * OTHER_ARM_S * share + 10.0


def test_stored_launches_tell_the_time_of_an_arm_that_ran():
    seconds = {"start": 1.0, "gate": 6.0, "compile": 2.0, "measure": 50.0, "train": 70.0}
    blocks = [{"workload": "own", "size": "large", "launch": 0, "attempt": "a", "seconds": seconds}]
    cells = [{"attempt": "a", "status": status} for status in ("ok", "unsupported", "ok", "wrong")]
    history = overheads(SimpleNamespace(block_rows=blocks, cell_rows=cells))
    # Three arms and a twin took 8 s; of a later launch nothing is known.
    assert block_seconds(BLOCK, 9, PLAN, history) == WORKER_START_S + 10 * 2.0 + 10.0
    later = WORKER_START_S + 10 * OTHER_ARM_S * CACHED + 10.0
    assert block_seconds(BLOCK, 9, PLAN, history, launch=1) == later


def test_phases_after_the_rounds_are_of_the_first_launch():
    plan = SimpleNamespace(
        worker={"inputs": [], "phases": {"trace": {}}, "seconds": 10.0}, modes=("sync",)
    )
    more = [
        block_seconds(BLOCK, 3, plan, {}, n) - block_seconds(BLOCK, 3, PLAN, {}, n) for n in (0, 1)
    ]
    assert more[0] > 0.0
    assert more[1] == 0.0
