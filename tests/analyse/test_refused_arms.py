"""What is refused, or was measured alone, takes nothing from the other arms of its block."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.analyse import cell_table
from bench.analyse.process_spread import PROCESS
from bench.measure.run_setup import earlier_spread
from bench.records import store
from tests import synthetic
from tests.fakes.catalogue import catalogue

RATIOS = {"jit_spmd": 1.0, "pmap": 1.1, "shard_map_pmean": 0.9, "nnx_jit": 1.25}
PLAN = synthetic.Plan(devices=(1,), rounds=64, ratios=RATIOS)


def stored(folder: Path, *launches: synthetic.Plan) -> store.Run:
    (block,) = PLAN.blocks()
    directory = store.create(folder, synthetic.manifest(PLAN))
    for number, plan in enumerate(launches):
        synthetic.append(directory, synthetic.attempt(plan, block, number, "all", list(RATIOS)))
    return store.load(directory)


def test_if_the_baseline_is_refused_another_takes_its_place(tmp_path: Path) -> None:
    later = replace(PLAN, endings={("jit_spmd", 0): ("wrong", "its loss is not finite")})
    (block,) = cell_table.build(stored(tmp_path, PLAN, later)).comparisons
    assert block.baseline == "pmap"
    words = {arm: (one.verdict.word, one.ratio.launches) for arm, one in block.claims.items()}
    assert words == {"shard_map_pmean": ("faster", 2), "nnx_jit": ("slower", 2)}


def test_a_refused_arm_says_nothing_about_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been wrong because it did less work in some launches."""
    synthetic.this_machine(monkeypatch)
    less = replace(PLAN, ratios={**RATIOS, "pmap": 0.7})
    later = replace(PLAN, endings={("pmap", 0): ("wrong", "it does less work")})
    (block,) = cell_table.build(stored(tmp_path, PLAN, less, later)).comparisons
    assert block.process.one_process.sd < PROCESS.sd
    earlier = earlier_spread(catalogue(cores=4), tmp_path)
    assert earlier
    assert earlier["1"]["sd"] < PROCESS.sd


def test_an_arm_alone_does_not_speak_for_one_that_shared_rounds(tmp_path: Path) -> None:
    programs = dict.fromkeys(("shard_map_pmean", "nnx_jit"), ("f", "d", 1))
    ratios = {"jit_spmd": 1.0, "shard_map_pmean": 0.9, "nnx_jit": 0.9}
    alone = frozenset({"nnx_jit"})
    plan = replace(PLAN, ratios=ratios, programs=programs, alone=alone)
    run = store.load(synthetic.write(tmp_path, plan))
    claim = cell_table.build(run).comparisons[0].claims["shard_map_pmean"]
    assert claim.ratio.paired
    assert claim.verdict.word == "faster"
