"""Real steps with extra work compute what they do without it, and take longer."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from bench.records.cells import Block, StepOptions
from bench.records.mesh import MeshShape
from bench.trials.selftest import own_trials
from bench.trials.selftest.selftest_settings import PLANTED, STEPPING, STEPS
from bench.worker.file_loader import workload_files
from bench.worker.problems import load_workload

BLOCK = Block("mlp", "tiny", MeshShape.parse("data=2"), 8, StepOptions())


@pytest.mark.slow
def test_extra_work_changes_nothing_but_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_trials, "calibrate", lambda _: 1e-3)
    arms = own_trials.real_arms(BLOCK, {"base": 1.0, "copy": 1.0, "slower": 1.05})
    assert [int(arm.step._products) for arm in arms] == [0, 0, 50]
    for arm in arms:
        arm.run(3)
    losses = [float(arm.losses[-1][1]) for arm in arms]
    assert losses[0] == losses[1] == losses[2]
    assert losses[0] < float(arms[0].losses[0][1]), "it trains"
    states = [jax.tree.leaves(arm.state) for arm in arms]
    for one, other in zip(states[0], states[2], strict=True):
        np.testing.assert_array_equal(one, other)


def test_work_is_calibrated_until_it_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    (arm,) = own_trials._arms(BLOCK, ["step"])
    asked = []

    def run(_: int) -> int:
        asked.append(int(arm.step._products))
        return 10_000_000 + 10_000 * asked[-1]

    monkeypatch.setattr(arm, "run", run)
    assert own_trials.calibrate(arm) == pytest.approx(1e-3)
    assert set(asked) == {0, 64, 256, 1024}


def test_tools_get_one_step_as_a_function() -> None:
    assert own_trials.call_of(BLOCK.fields, 3)() > 0


def test_the_steps_of_a_self_test_exist() -> None:
    for block in STEPS:
        assert block.workload in workload_files([])
        assert block.size in load_workload(block, []).SIZES
    assert [truth for truth in STEPPING.values() if truth == 1] == [1] * 14
    assert PLANTED == {"2 % slower": 1.02, "5 % slower": 1.05, "10 % slower": 1.1}
