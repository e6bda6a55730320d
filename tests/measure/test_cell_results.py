"""How cells end, from the rows that are stored of them."""

from __future__ import annotations

import pytest
import synthetic

from bench.measure.engine import cell_results
from bench.records import store


@pytest.mark.parametrize(("scale", "status"), [(5e3, "ok"), (1e9, "implausible")])
def test_a_time_beyond_the_devices_peak_is_no_time(tmp_path, scale, status):
    plan = synthetic.Plan(
        devices=(2,), platform="gpu", device_kind="NVIDIA H200", flops_scale=scale
    )
    run = store.load(synthetic.write(tmp_path, plan))
    results = cell_results(run.cell_rows, run.sample_rows(), "NVIDIA H200")
    assert {result.status for result in results.values()} == {status}
    assert all(bool(result.step_seconds) == (status == "ok") for result in results.values())
    reasons = " ".join(result.reason for result in results.values())
    assert ("published peak" in reasons) == (status == "implausible")
