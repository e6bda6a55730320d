"""What stored runs of this machine teach about the spread between processes."""

from __future__ import annotations

from pathlib import Path

from bench.analyse.process_spread import PROCESS, known
from bench.measure.run_setup import earlier_spread
from tests import synthetic
from tests.fakes.catalogue import catalogue


def test_runs_with_several_launches_here_add_to_what_is_known(tmp_path: Path) -> None:
    here = catalogue(cores=4)
    assert known(earlier_spread(here, tmp_path)) == PROCESS
    synthetic.write(tmp_path, synthetic.Plan(launches=1, devices=(1,)), "one")
    synthetic.write(tmp_path, synthetic.Plan(launches=3, devices=(1,), usable_cores=64), "other")
    assert earlier_spread(here, tmp_path) is None
    synthetic.write(tmp_path, synthetic.Plan(launches=3, devices=(1,)), "several")
    found = known(earlier_spread(here, tmp_path))
    assert found.freedom > PROCESS.freedom
    # Its processes do not differ.
    assert found.sd < PROCESS.sd
