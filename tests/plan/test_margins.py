"""The default margin follows from the noise of this machine and from the plan's rounds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench.analyse.process_spread import PROCESS
from bench.plan.margins import ASSUMED, MARGINS, PROCESSES, resolved_margin
from bench.plan.matrix import Plan, make_plan
from bench.plan.options import Options
from bench.records.numbers import percent
from tests import synthetic
from tests.fakes.catalogue import catalogue


@pytest.fixture(autouse=True)
def this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    synthetic.this_machine(monkeypatch)


def plan(**options: str) -> Plan:
    return make_plan(Options(**options), catalogue(cores=4))


def test_processes_are_assumed_to_differ_as_verdicts_assume() -> None:
    assert PROCESS.sd == PROCESSES


def test_without_a_run_noise_is_assumed(tmp_path: Path) -> None:
    margin, reason = resolved_margin(plan(), catalogue(cores=4), tmp_path)
    assert margin in MARGINS
    assert f"varies by {percent(ASSUMED['cpu'])} between rounds (an assumption" in reason
    on_gpu, _ = resolved_margin(plan(), catalogue("gpu", 1), tmp_path)
    assert on_gpu < margin


@pytest.mark.parametrize(("noise", "expected"), [(0.001, 0.02), (0.02, 0.03), (0.5, 0.2)])
def test_a_run_on_this_machine_shows_it(tmp_path: Path, noise: float, expected: float) -> None:
    synthetic.write(tmp_path, synthetic.Plan(noise=noise, rounds=32, devices=(1, 2)), "known")
    margin, reason = resolved_margin(plan(), catalogue(cores=4), tmp_path)
    assert margin == expected
    assert reason.endswith("(measured in known)")
    shown = re.search(r"varies by ([\d.]+)\s% between", reason)
    assert float(shown[1]) / 100 == pytest.approx(2**0.5 * noise, rel=0.25), "of two noisy times"
    if noise > 0.1:  # more than the largest margin
        assert re.match(
            r"[\d.]+\s%; 1 launch of up to 48 rounds can resolve only [\d.]+\s% here, where", reason
        )
    else:
        said = f"{percent(margin)} is what 1 launch of up to 48 rounds can resolve here, where"
        assert reason.startswith(said)


def test_runs_of_other_machines_and_workloads_and_damaged_ones_show_nothing(tmp_path: Path) -> None:
    synthetic.write(tmp_path, synthetic.Plan(usable_cores=64, devices=(1,)), "more-cores")
    synthetic.write(tmp_path, synthetic.Plan(memory_bytes=2**30, devices=(1,)), "less-memory")
    synthetic.write(tmp_path, synthetic.Plan(processor="Another", devices=(1,)), "another")
    synthetic.write(tmp_path, synthetic.Plan(workloads=("gpt2-nano",), devices=(1,)), "unlike")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged/manifest.json").write_text("{}")
    assert "an assumption" in resolved_margin(plan(), catalogue(cores=4), tmp_path)[1]


def test_more_rounds_resolve_more(tmp_path: Path) -> None:
    (few, why), (many, _) = (
        resolved_margin(plan(rounds=rounds, launches="2"), catalogue(cores=4), tmp_path)
        for rounds in ("16", "4096")
    )
    assert many < few
    assert "is what 2 launches of up to 16 rounds can resolve here" in why, "not the preset"
