"""What stored runs of this machine teach about the spread between processes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from bench.analyse.process_spread import (
    ASSUMED,
    PROCESS,
    TWO_PROCESSES,
    ProcessSpread,
    by_devices,
    known,
)
from bench.analyse.sample_rounds import Rounds
from bench.measure.run_setup import earlier_spread
from tests import synthetic
from tests.fakes.catalogue import catalogue


def test_runs_with_several_launches_here_add_to_what_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synthetic.this_machine(monkeypatch)
    here = catalogue(cores=4)
    assert known(earlier_spread(here, tmp_path), 1) == ASSUMED
    synthetic.write(tmp_path, synthetic.Plan(launches=1, devices=(1,)), "one")
    several = synthetic.Plan(launches=3, devices=(1,))
    synthetic.write(tmp_path, replace(several, usable_cores=64), "more-cores")
    synthetic.write(tmp_path, replace(several, memory_bytes=2**30), "less-memory")
    synthetic.write(tmp_path, replace(several, processor="Another"), "another")
    assert earlier_spread(here, tmp_path) is None
    synthetic.write(tmp_path, several, "several")
    earlier = earlier_spread(here, tmp_path)
    found = known(earlier, 1).one_process
    assert found.freedom > PROCESS.freedom
    # Its processes do not differ.
    assert found.sd < PROCESS.sd
    # Blocks on other numbers of devices may differ more.
    assert known(earlier, 2) == ASSUMED
    # None of its arms had a process of its own.
    assert known(earlier, 1).two_processes == TWO_PROCESSES


def test_old_manifests_hold_one_spread_for_all_blocks() -> None:
    assert known({"sd": 0.01, "freedom": 20.0}, 4).one_process == ProcessSpread(0.01, 20.0)


def rounds(*spreads: float) -> Rounds:
    """Arms a, b, ... of one program in 20 launches, between which each differs by its spread."""
    chance = np.random.default_rng(0)
    rows = [
        {
            "arm": arm, "round": number, "attempt": str(launch), "at": 0.0, "steps": 2,
            "latency_steps": 0, "latency_ns": 0,
            "wash_out_ns": 1e9, "throughput_ns": 2e9 * np.exp(offset + noise),
        }
        for launch in range(20)
        for offsets in [chance.normal(0, spreads)]
        for number in range(32)
        for arm, offset in zip("abc", offsets, strict=False)
        for noise in [chance.normal(0, 0.002)]
    ]  # fmt: skip
    return Rounds.of(pd.DataFrame(rows))


def test_blocks_show_the_spread_of_their_own_number_of_devices() -> None:
    blocks = [(1, rounds(0, 0.001), ()), (2, rounds(0, 0.02), ()), (4, rounds(0, 0), ())]
    found = {count: own.one_process.sd for count, own in by_devices(blocks).items()}
    assert found[1] < 0.003
    assert found[2] == pytest.approx(0.02, rel=0.4)
    assert found[4] < PROCESS.sd


@pytest.mark.parametrize("apart", ["a", "b", "c"])
def test_an_arm_with_a_process_of_its_own_has_a_spread_of_its_own(apart: str) -> None:
    block = rounds(*(0.05 if arm == apart else 0 for arm in "abc"))
    (found,) = by_devices([(1, block, {apart})]).values()
    found = replace(found, apart=frozenset(apart))
    one, other = {*"abc"} - {apart}
    assert found.between(apart, one).sd == pytest.approx(0.05, rel=0.4)
    assert found.between(one, other).sd < PROCESS.sd
    assert known(found.stored(1), 1, {apart}) == found
    assert known(found.stored(1), 2) == ASSUMED
