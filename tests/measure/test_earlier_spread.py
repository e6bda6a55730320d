"""What stored runs of this machine teach about the spread between processes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from bench.analyse.process_spread import PROCESS, ProcessSpread, by_devices, known
from bench.analyse.sample_rounds import Rounds
from bench.measure.run_setup import earlier_spread
from tests import synthetic
from tests.fakes.catalogue import catalogue


def test_runs_with_several_launches_here_add_to_what_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synthetic.this_machine(monkeypatch)
    here = catalogue(cores=4)
    assert known(earlier_spread(here, tmp_path), 1) == PROCESS
    synthetic.write(tmp_path, synthetic.Plan(launches=1, devices=(1,)), "one")
    several = synthetic.Plan(launches=3, devices=(1,))
    synthetic.write(tmp_path, replace(several, usable_cores=64), "more-cores")
    synthetic.write(tmp_path, replace(several, memory_bytes=2**30), "less-memory")
    assert earlier_spread(here, tmp_path) is None
    synthetic.write(tmp_path, several, "several")
    earlier = earlier_spread(here, tmp_path)
    found = known(earlier, 1)
    assert found.freedom > PROCESS.freedom
    # Its processes do not differ.
    assert found.sd < PROCESS.sd
    # Blocks on other numbers of devices may differ more.
    assert known(earlier, 2) == PROCESS


def test_old_manifests_hold_one_spread_for_all_blocks() -> None:
    assert known({"sd": 0.01, "freedom": 20.0}, 4) == ProcessSpread(0.01, 20.0)


def test_blocks_show_the_spread_of_their_own_number_of_devices() -> None:
    chance = np.random.default_rng(0)

    def block(spread: float) -> Rounds:
        """Two arms of one program in 20 processes, whose ratio differs between processes."""
        rows = [
            {
                "arm": arm, "round": number, "attempt": str(process), "position": 0,
                "predecessor": "", "at": 0.0, "steps": 1, "latency_steps": 0, "latency_ns": 0,
                "wash_out_ns": 1e9, "throughput_ns": 1e9 * np.exp(offset * (arm == "b") + noise),
            }
            for process in range(20)
            for offset in [chance.normal(0, spread)]
            for number in range(32)
            for arm in ("a", "b")
            for noise in [chance.normal(0, 0.002)]
        ]  # fmt: skip
        return Rounds.of(pd.DataFrame(rows))

    found = by_devices([(1, block(0.001)), (2, block(0.02)), (4, block(0.0))])
    assert found[1].sd < 0.003
    assert found[2].sd == pytest.approx(0.02, rel=0.4)
    assert found[4].sd < PROCESS.sd
