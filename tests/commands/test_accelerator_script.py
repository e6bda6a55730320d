"""The script for the first half hour on an accelerator: its order, and how it goes on."""

from __future__ import annotations

import os
import subprocess

import pytest

from bench.records.paths import ROOT

STUB = """#!/usr/bin/env bash
echo "${@:3}" >> "$LOG"
[ "$3 $4" != "run --run" ] || { mkdir -p "reports/$5"; echo {} > "reports/$5/manifest.json"; }
[[ "$*" != *"$FAILS"* ]] || exit "$CODE"
"""


@pytest.fixture
def script(tmp_path):
    """Run the script in a checkout of its own with a Python that notes what it is asked."""
    examples = tmp_path / "examples"
    examples.mkdir()
    text = (ROOT / "examples/accelerator.sh").read_text(encoding="utf-8")
    (examples / "accelerator.sh").write_text(text, encoding="utf-8")
    stub = tmp_path / "stub"
    stub.write_text(STUB, encoding="utf-8")
    stub.chmod(0o755)

    def run(*arguments, fails="nothing fails", code="0", **variables):
        log = tmp_path / "log"
        log.write_text("")
        given = {"PYTHON": str(stub), "LOG": str(log), "FAILS": fails, "CODE": code}
        done = subprocess.run(
            ["bash", str(examples / "accelerator.sh"), *arguments],
            env={**os.environ, **given, **variables}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        return done, log.read_text().splitlines()

    return run


NAMES = "--implementations jit_spmd nnx_jit_cached shard_map_pmean fsdp_spmd"


def test_it_does_all_in_order_and_passes_arguments_on(script):
    done, calls = script("--launches", "2")
    assert (done.returncode, done.stderr) == (0, "")
    preset = f"--preset accelerator --workloads gpt2-124m {NAMES}"
    assert calls == [
        "doctor",
        f"run --run accelerator-124m-gate {preset} --batch-sizes 8 --rounds 4 --seconds 1",
        f"run --run accelerator-124m {preset} --profile --launches 2",
        "report accelerator-124m",
        "publish accelerator-124m",
    ]


def test_cut_off_it_goes_on(script):
    done, calls = script(fails="--profile", code="137", SIZE="tiny", RUN="mine")
    assert done.returncode == 137
    assert len(calls) == 3, "nothing is published"
    done, calls = script(SIZE="tiny", RUN="mine")
    assert done.returncode == 0, done.stderr
    resumed = ["run --resume mine-gate", "run --resume mine"]
    assert calls == ["doctor", *resumed, "report mine", "publish mine"]


def test_a_wrong_step_ends_it_before_the_preset(script):
    done, calls = script(fails="-gate", code="1")
    assert done.returncode == 1
    assert len(calls) == 2


@pytest.mark.parametrize("code", ["1", "2", "124"])
def test_out_of_time_or_memory_it_publishes_what_there_is(script, code):
    done, calls = script(fails="--profile", code=code)
    assert done.returncode == 0, done.stderr
    assert calls[-1] == "publish accelerator-124m"
    assert f"the run's exit code was {code}" in done.stderr


def test_after_its_minutes_nothing_begins(script):
    done, calls = script(MINUTES="0")
    assert (done.returncode, calls) == (124, [])
    assert "the 0 minutes are over" in done.stderr
