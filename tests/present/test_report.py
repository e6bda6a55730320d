"""The report says what the rows say, shows no time it must not, and is the same every time."""

from __future__ import annotations

import dataclasses
import math
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pytest
import synthetic

from bench.analyse import block_ratios, cell_table, scaling_curves, turn_details
from bench.analyse.ratio_intervals import Ratio
from bench.present import (
    bounds,
    caveats,
    cell_columns,
    page,
    report_files,
    run_tables,
    sentences,
    trace_tables,
)
from bench.records import numbers, store
from bench.records.cells import StepOptions
from bench.records.mesh import MeshShape

if TYPE_CHECKING:
    from bench.analyse.cell_table import Tables

HOSTILE = "</td><script>alert(1)</script> | `x` ![i](http://h/) <img src=x onerror=1> \x1b[31m\n# H"

PLAN = synthetic.Plan(
    workloads=("linear-base", "gpt2-nano"),
    batches=("strong", "weak"),
    usable_cores=4,
    alone=frozenset({"nnx_jit"}),
    endings={
        ("python_loop", 4): ("wrong", "gradients 4 times too large"),
        ("pmap", 0): ("unsupported", "jax.pmap is not there"),
        ("nnx_jit_cached", 8): ("timeout", "no sign of life for 60 s"),
        ("nnx_jit", 8): ("oom", HOSTILE),
        ("shard_map_pmean", 1): ("crashed", "signal 11"),
    },
)
SMALL = synthetic.Plan(devices=(2,), batches=("strong",))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with every ending, and its report."""
    directory = synthetic.write(tmp_path_factory.mktemp("reports"), PLAN)
    report_files.build(store.load(directory))
    return directory


@pytest.fixture(scope="module")
def found(directory: Path) -> Tables:
    """Its tables."""
    return cell_table.build(store.load(directory))


def small(tmp_path: Path, **changes: object) -> tuple[Tables, store.Run]:
    """Tables of a run of one block."""
    run = store.load(synthetic.write(tmp_path, dataclasses.replace(SMALL, **changes)))  # type: ignore[arg-type]
    return cell_table.build(run), run


def test_planted_ratios_are_found(found: Tables) -> None:
    cells = found.cells[(found.cells["status"] == "ok") & found.cells["paired"]]
    assert len(cells) > 40
    truth = cells["implementation"].map(synthetic.RATIOS)
    assert ((cells["ratio"] / truth - 1).abs() < 0.02).all()
    others = cells[cells["implementation"] != synthetic.BASELINE]
    assert (others["ratio_low"] <= truth[others.index]).mean() > 0.9
    assert (truth[others.index] <= others["ratio_high"]).mean() > 0.9


def test_only_ok_cells_have_times(found: Tables) -> None:
    without = found.cells[found.cells["status"] != "ok"]
    assert set(without["status"]) == {"wrong", "unsupported", "timeout", "oom", "crashed"}
    figures = ["step_s", "step_q1_s", "latency_s", "units_per_s", "achieved_flops", "mfu", "ratio",
               "ratio_low"]  # fmt: skip
    assert without[figures].isna().all(axis=None)
    assert (without["reason"] != "").all()
    assert found.cells.loc[found.cells["status"] == "ok", "step_s"].notna().all()


def test_samples_of_a_cell_that_turned_out_wrong_are_not_shown(tmp_path: Path) -> None:
    """Measured in one attempt, wrong in a later one of the same launch."""
    directory = synthetic.write(tmp_path, SMALL)
    wrong = dataclasses.replace(SMALL, endings={("nnx_jit", 0): ("wrong", "replicas drift")})
    block = next(SMALL.blocks())
    synthetic.append(directory, synthetic.attempt(wrong, block, 0, "again", ["nnx_jit"]))
    built = cell_table.build(store.load(directory))
    (cell,) = built.cells[built.cells["implementation"] == "nnx_jit"].to_dict("records")
    assert cell["status"] == "wrong"
    assert pd.isna(cell["step_s"])
    assert "nnx_jit" not in set(built.comparisons[0].rounds.arms)


def test_wrong_in_one_launch_is_wrong(tmp_path: Path) -> None:
    directory = synthetic.write(tmp_path, SMALL)
    wrong = dataclasses.replace(SMALL, endings={("nnx_jit", 0): ("wrong", "replicas drift")})
    block = next(SMALL.blocks())
    rows = synthetic.attempt(wrong, block, 1, "all", list(SMALL.ratios))
    synthetic.append(directory, rows)
    built = cell_table.build(store.load(directory))
    (cell,) = built.cells[built.cells["implementation"] == "nnx_jit"].to_dict("records")
    assert cell["status"] == "wrong"
    assert "nnx_jit" not in set(built.comparisons[0].rounds.arms)
    rounds = built.cells.set_index("implementation")["rounds"]
    assert rounds["pmap"] == 2 * SMALL.rounds


def test_cells_measured_apart_have_a_ratio_and_no_interval(found: Tables) -> None:
    apart = found.cells[~found.cells["interleaved"] & (found.cells["status"] == "ok")]
    assert set(apart["implementation"]) == {"nnx_jit"}
    assert not apart["paired"].any()
    assert apart["ratio"].notna().all()
    assert apart["ratio_low"].isna().all()
    first = sentences.Summary(found.comparisons[0])
    assert first.text().endswith(" Not ranked, because they shared no rounds: nnx_jit.")


def test_more_than_the_peak_is_refused(tmp_path: Path) -> None:
    # The synthetic times follow 5e10 FLOP/s; 1e5 times the FLOPs is over any device's peak.
    built, run = small(tmp_path, flops_scale=1e5, platform="gpu", device_kind="NVIDIA H200")
    (cell,) = built.cells[built.cells["implementation"] == "jit_spmd"].to_dict("records")
    assert cell["status"] == "implausible"
    assert "of the published peak" in cell["reason"]
    assert pd.isna(cell["step_s"])
    shown = page.html(built, run.manifest)
    assert "implausible" in shown
    assert "Nothing has a time: implausible." in shown


def test_utilization_is_the_share_of_the_published_peak(tmp_path: Path) -> None:
    built, _ = small(tmp_path, flops_scale=5e3, platform="gpu", device_kind="NVIDIA H200")
    cell = built.cells.set_index("implementation").loc["jit_spmd"]
    assert cell["status"] == "ok"
    assert cell["mfu"] == pytest.approx(cell["achieved_flops"] / (2 * 494.7e12))
    (block,) = sentences.summaries(built)
    first = built.cells.set_index("implementation").loc[block.first]
    rate = f"{numbers.si(first['units_per_s'], '')}\N{NO-BREAK SPACE}{first['unit']}/s"
    utilization = numbers.percent(first["mfu"])
    assert block.text().endswith(f" {block.first}: {rate}, MFU {utilization}.")


def test_the_answer_names_the_fastest_and_what_is_surely_slower(tmp_path: Path) -> None:
    ratios = {"jit_spmd": 1.0, "fast": 0.8, "middle": 0.9}
    built, _ = small(tmp_path, ratios=ratios, devices=(1, 2), launches=3)
    one, two = sentences.summaries(built)
    for each in (one, two):
        assert re.fullmatch(
            r"fast is fastest; middle takes 1[12]\.\d\s% to 1[34]\.\d\s% longer; "
            r"jit_spmd 2[34]\.\d\s% to 2[56]\.\d\s% longer\.",
            each.text(),
        )
    assert sentences.headline([one]) == one.text()
    assert re.fullmatch(
        r"Use fast: it is fastest; avoid jit_spmd: at least 2[34]\.\d\s% behind with data=[12]\.",
        sentences.headline([one, two]),
    )


def test_devices_that_share_cores_do_not_say_what_to_avoid(tmp_path: Path) -> None:
    ratios = {"jit_spmd": 1.0, "fast": 0.8}
    built, _ = small(tmp_path, ratios=ratios, devices=(2, 8), launches=3)
    few, many = sentences.summaries(built)
    behind = {"fast": (1, 1), "jit_spmd": (1.2, 1.21)}
    standings = dataclasses.replace(few.comparison.standings, behind=behind)
    few.comparison.__dict__["standings"] = standings
    assert many.comparison.oversubscribed
    assert max(many.comparison.standings.behind.values()) > (1.2, 1.21)
    (said,) = sentences.advice([few, many])
    assert said.endswith("behind with data=2.")


def test_blocks_of_another_answer_have_a_sentence_of_their_own(tmp_path: Path) -> None:
    endings = {("fast", 4): ("crashed", "no"), ("fast", 8): ("crashed", "no")}
    ratios = {"jit_spmd": 1.0, "fast": 0.8, "slow": 1.05}
    built, _ = small(
        tmp_path, ratios=ratios, devices=(1, 2, 4, 8), batches=("strong", "weak"), launches=3,
        endings=endings, workloads=("mlp-base", "linear-base"),
    )  # fmt: skip
    every = sentences.summaries(built)
    of_mlp = sentences.advice([each for each in every if each.comparison.subject.startswith("mlp")])
    assert len(of_mlp) == 2
    assert {said.partition(": ")[0] for said in of_mlp} == {
        "Use jit_spmd with data=4 (batch 64), data=4 (batch 256), data=8 (batch 64) and 1 more",
        "Use fast with data=1 (batch 64), data=2 (batch 64) and data=2 (batch 128)",
    }
    assert sentences.headline(every).startswith("linear-base, fp32: Use jit_spmd with data=4")
    assert " mlp-base, fp32: Use " in sentences.headline(every)


def test_an_arm_is_compared_with_every_other(tmp_path: Path) -> None:
    ratios = {"jit_spmd": 1.0, "fast": 0.8, "same": 1.0, "slow": 1.5}
    built, _ = small(tmp_path, ratios=ratios, launches=3)
    (block,) = built.comparisons
    opposite = {"faster": "slower", "slower": "faster", "same": "same"}
    assert set(block.claims) == {"fast", "same", "slow"}
    for name, claim in block.claims.items():
        of_base = block.claim_of("jit_spmd", name)
        assert of_base.verdict.word == opposite[claim.verdict.word]
        assert of_base.ratio.value == pytest.approx(1 / claim.ratio.value)
        assert of_base.ratio.low == pytest.approx(1 / claim.ratio.high)
    assert block.claim_of("fast", "slow").ratio.value == pytest.approx(0.8 / 1.5, rel=0.01)
    assert block.claim_of("fast", "absent") is None


def test_equals_are_not_ranked(tmp_path: Path) -> None:
    ratios = {"jit_spmd": 1.0, "same": 1.0, "slow": 1.5}
    built, _ = small(tmp_path, ratios=ratios, launches=3)
    summary = sentences.Summary(built.comparisons[0])
    assert re.fullmatch(
        r"(jit_spmd and same|same and jit_spmd) lead: within \d\.\d+\s% of one another; "
        r"slow takes 4\d\.\d\s% to 5\d\.\d\s% longer than the fastest\.",
        summary.text(),
    )
    assert sentences.decisions(built.rows) == "Against the baselines: 1 same, 1 slower."
    assert re.match(
        r"Use (jit_spmd|same); nothing else is more than \d\.\d+\s% faster; avoid slow: ",
        sentences.advice([summary] * 2)[0],
    )


def test_bounds_are_rounded_to_where_they_stay_true() -> None:
    shown = [text.replace(numbers.NARROW, " ") for text in (
        bounds.outward(0.0411), bounds.outward(0.0419, math.floor), bounds.outward(0.05),
        bounds.outward(1.234), bounds.outward(0.0), bounds.outward(math.inf),
        bounds.longer(1.419, math.inf), bounds.longer(1.419, 1.5), bounds.within(15.1),
        bounds.longer(2.39, math.inf), bounds.longer(1.419, 2.39, " it"),
        bounds.sure(0.95, 1.01), bounds.sure(0.9, 0.95), bounds.sure(1.411, 1.5),
        bounds.outward(0.2506), bounds.longer(1.00039, 1.131, " it"),
        bounds.sure(0.0, math.inf), bounds.sure(16.6, 173.0), bounds.sure(1.098, 3.71),
        bounds.longer(1.0986, 3.71), bounds.longer(1.0003, 3.71),
        bounds.sure(0.014, 0.058), bounds.sure(0.45, 0.95), bounds.sure(0.51, 0.6),
    )]  # fmt: skip
    assert shown == [
        "4.2 %", "4.1 %", "5.0 %", "124 %", "0 %", "\N{INFINITY} %",
        "at least 41.9 % longer", "41.9 % to 50.0 % longer", "within a factor of 16",
        "at least 2.3 times as long", "1.4 to 2.4 times as long as it", "within 5.3 %",
        "5.0 % to 10 %", "41.1 % to 50.0 %", "25.1 %",
        "up to 13.1 % longer than it", "too few rounds", "a factor of 16 to 180",
        "a factor of 1.09 to 3.8", "1.09 to 3.8 times as long", "up to 3.8 times as long",
        "a factor of 17 to 72", "a factor of 1.05 to 2.3", "40.0 % to 49.0 %",
    ]  # fmt: skip


def test_a_variant_is_compared_with_the_usual_environment(tmp_path: Path) -> None:
    built, _ = small(tmp_path, variants={"": 1.0, "slow": 1.5}, launches=5, shared_noise=0.002)
    effects = block_ratios.option_effects(built.comparisons)
    assert {effect.implementation for effect in effects} == set(SMALL.ratios)
    for effect in effects:
        assert str(effect.block.block.options) == "fp32,variant=slow"
        assert effect.option == "variant=slow"
        assert not effect.ratio.paired
        assert effect.ratio.low < 1.5 < effect.ratio.high
        assert effect.verdict.word == "slower"


def test_another_version_is_compared_with_the_present_one_in_the_same_rounds(
    tmp_path: Path,
) -> None:
    """Its arms are implementations like any other, and each is also set against its own."""
    ratios = {"jit_spmd": 1.0, "jit_spmd@old": 1.3, "slow": 2.0, "slow@old": 2.0}
    built, _ = small(tmp_path, ratios=ratios, launches=3)
    effects = {
        effect.cell["implementation"]: effect
        for effect in block_ratios.option_effects(built.comparisons)
    }
    assert {arm: effect.verdict.word for arm, effect in effects.items()} == {
        "jit_spmd@old": "slower", "slow@old": "same",
    }  # fmt: skip
    slower = effects["jit_spmd@old"]
    assert (slower.implementation, slower.option) == ("jit_spmd", "version=old")
    assert slower.ratio.paired
    assert slower.ratio.low < 1.3 < slower.ratio.high
    assert slower.cell["implementation"] == "jit_spmd@old"
    assert slower.usual_cell["implementation"] == "jit_spmd"
    claims = built.comparisons[0].claims
    assert claims["slow@old"].ratio.value == pytest.approx(2, rel=0.02), "against the baseline"


def test_each_option_is_compared_with_its_absence(tmp_path: Path) -> None:
    """Two options together are compared with either one alone."""
    changed = {"variants": {"": 1.0, "slow": 1.5}, "remat": {"": 1.0, "dots": 1.2}}
    built, run = small(tmp_path, **changed, launches=5, shared_noise=0.002)
    effects = block_ratios.option_effects(built.comparisons)
    found = {(e.option, str(e.block.block.options), str(e.usual_cell["options"])) for e in effects}
    assert found == {
        ("variant=slow", "fp32,variant=slow", "fp32"),
        ("remat=dots", "fp32,remat=dots", "fp32"),
        ("variant=slow", "fp32,remat=dots,variant=slow", "fp32,remat=dots"),
        ("remat=dots", "fp32,remat=dots,variant=slow", "fp32,variant=slow"),
    }
    assert len(effects) == len(found) * len(SMALL.ratios)
    run.manifest["config"]["variants"] = {"slow": "XLA_FLAGS=--slow"}
    table = run_tables.variants(effects, run.manifest)
    details = {e.option: table.columns[2].detail_of(e) for e in effects}
    assert details == {"variant=slow": "XLA_FLAGS=--slow", "remat=dots": ""}
    keys = [column.key for column in table.columns]
    assert keys[-2:] == ["compile_total_s", "memory_bytes"]
    assert all("without" in table.columns[-1].figure(effect).note for effect in effects)


def test_a_pipelines_bubble_is_measured(tmp_path: Path) -> None:
    """From blocks of 2, 4 and 8 microbatches of one size, whose steps take so many ticks and 2."""
    built, _ = small(tmp_path, stages=3, launches=3, shared_noise=0.002)
    cells = built.cells[built.cells["implementation"] == "pmap"].set_index("options")
    for count, bubble in ((2, 2 / 4), (4, 2 / 6)):
        cell = cells.loc[f"fp32,microbatches={count}"]
        assert cell["bubble"] == bubble
        assert cell["idle_low"] < bubble < cell["idle_high"]
        assert cell["idle"] == pytest.approx(bubble, abs=0.05)
    assert cells.loc["fp32,microbatches=8", "idle":"idle_high"].isna().all(), "nothing is longer"
    few, _ = small(tmp_path / "few", stages=3, rounds=2)
    shorter = few.cells[few.cells["options"] == "fp32,microbatches=2"]
    assert (shorter["idle"] > 0).all()
    assert shorter[["idle_low", "idle_high"]].isna().all(axis=None), "too few rounds"


def test_measured_memory_is_beside_the_planned(tmp_path: Path) -> None:
    built, _ = small(tmp_path, launches=2)
    cells = built.cells.set_index("implementation")["high_water_bytes"]
    assert cells["pmap"] == 3_600_000
    assert cells.drop("pmap").isna().all()


def test_what_traces_showed_is_in_the_report(tmp_path: Path) -> None:
    ratios = {"jit_spmd": 1.0, "slow": 1.5}
    _, run = small(tmp_path, ratios=ratios, launches=3, traced=True)
    report_files.build(run)
    causes = pd.read_csv(run.directory / "causes.csv")
    assert set(causes["a"]) == {"mlp-base/data=2/b64/fp32/slow"}
    assert (causes["explained"] > 0.9).all()
    steps = pd.read_csv(run.directory / "trace_steps.csv")
    assert len(steps) == 2 * 3 * 2
    assert len(pd.read_parquet(run.directory / "trace_operations.parquet")) == 2 * 2


def test_what_only_throughput_shows_is_not_explained_by_traces(tmp_path: Path) -> None:
    ratios = {"jit_spmd": 1.0, "slow": 1.5}
    built, _ = small(tmp_path, ratios=ratios, launches=3, traced=True)
    cell = next(cell for cell in built.comparisons[0].ranked if cell["implementation"] == "slow")
    cell["latency_s"] /= 2
    (found,) = trace_tables.reasons(built.comparisons[0], built.traces).values()
    assert found.main == ""
    assert "slow is slower than jit_spmd, but not with a wait after every step" in found.sentence


def test_operations_of_unknown_programs_are_a_part_of_their_own(tmp_path: Path) -> None:
    built, _ = small(tmp_path, ratios={"jit_spmd": 1.0, "slow": 1.5}, traced=True)
    (block,) = built.comparisons
    known = trace_tables.breakdown(block, built.traces)
    row = built.traces["mlp-base/data=2/b64/fp32/slow"]
    row["ops"].append({**row["ops"][0], "category": "unknown", "compute_ns": 5e6})
    found = trace_tables.breakdown(block, built.traces)
    assert known is not None
    assert found is not None
    assert "Unknown" in {column.title for column in found.shown("text")}
    assert "Unknown" not in {column.title for column in known.shown("text")}
    figures = {row[0].main: row[1:] for row in found.body}
    assert figures["slow"][5].main.startswith("5.00")
    assert figures["jit_spmd"][5].main == numbers.MISSING


def test_tracing_that_failed_is_told(tmp_path: Path) -> None:
    built, run = small(tmp_path, ratios={"jit_spmd": 1.0, "slow": 1.5}, traced=True)
    run.manifest["config"]["profile_steps"] = 5
    titles = caveats.caveats(built, run.manifest)
    assert "Phases that failed" not in titles
    del built.traces["mlp-base/data=2/b64/fp32/slow"]
    told = caveats.caveats(built, run.manifest)
    assert told["Phases that failed"] == (
        "There is no trace of 1 cell, for instance mlp-base/data=2/b64/fp32/slow."
    )


def test_traces_of_a_single_implementation(tmp_path: Path) -> None:
    _, run = small(tmp_path, ratios={"jit_spmd": 1.0}, traced=True)
    report_files.build(run)
    assert list(pd.read_csv(run.directory / "causes.csv").columns)[:3] == ["a", "b", "timed_ratio"]


def test_of_many_leaders_some_are_named(tmp_path: Path) -> None:
    ratios = {"jit_spmd": 1.0} | {f"other{number}": 1 + number / 500 for number in range(1, 9)}
    built, _ = small(tmp_path, ratios=ratios, noise=0.05)
    summary = sentences.Summary(built.comparisons[0])
    assert re.match(
        r"\w+, \w+, \w+ and 6 more lead: within \d+\.\d\s% of one another", summary.text()
    )


def test_what_a_step_communicates_is_shown(tmp_path: Path) -> None:
    ratios = dict.fromkeys(("jit_spmd", "pmap", "python_loop"), 1.0)
    built, run = small(tmp_path, ratios=ratios, devices=(1, 2))
    one, two = (
        run_tables.comparison(block, cell_columns.rows(built, run.manifest), run.manifest)
        for block in built.comparisons
    )
    assert "Sends" not in [column.title for column in one.shown("text")], "one device sends nothing"
    place = [column.title for column in two.shown("text")].index("Sends")
    figures = {row[0].main: row[place] for row in two.body}
    shown = {
        name: (figure.main.replace(numbers.NARROW, " "), figure.note)
        for name, figure in figures.items()
    }
    assert shown == {
        "jit_spmd": ("5.72 MiB", "2 all-reduces over data"),
        "pmap": ("6.68 MiB", "2 all-reduces over data, 1 reduce-scatter (bf16) among 2 devices"),
        "python_loop": ("0 B", "no collective"),
    }
    cell = built.cells.set_index("cell").loc["mlp-base/data=2/b64/fp32/pmap"]
    assert cell["wire_bytes"] == 7e6
    assert cell["compiled_flops"] == 1.5 * cell["model_flops"]


def test_too_few_rounds_have_no_bound_and_no_floor(tmp_path: Path) -> None:
    built, _ = small(tmp_path, ratios={"jit_spmd": 1.0, "close": 1.01}, rounds=4)
    summary = sentences.Summary(built.comparisons[0])
    assert re.fullmatch(r"\w+ and \w+ lead: too few rounds to tell them apart\.", summary.text())
    (said,) = sentences.advice([summary] * 2)
    assert (
        said
        == "jit_spmd has the best estimate on average, but there are too few rounds for a bound."
    )
    assert sentences.decisions(built.rows) == "Against the baselines: 1 undecided."


def test_a_copy_that_differs_from_its_original_is_an_alarm(tmp_path: Path) -> None:
    directory = synthetic.write(tmp_path, SMALL)

    def slower(row) -> None:
        row["throughput_ns"] *= 1.2 if row["arm"] == "twin" else 1

    synthetic.rewrite(directory, "samples", slower)
    run = store.load(directory)
    titles = caveats.caveats(cell_table.build(run), run.manifest)
    assert "Two copies of one program differ" in titles


def test_steps_in_other_frameworks_are_marked(tmp_path: Path) -> None:
    foreign = {"versions": {"torch": "2.13.0"}, "processes": 2, "threads": 1, "asking_ns": 90_000}

    def mark(row) -> None:
        if row["implementation"] == "jit_spmd":
            row["foreign"] = foreign

    directory = synthetic.write(tmp_path, SMALL)
    synthetic.rewrite(directory, "cells", mark)
    run = store.load(directory)
    built = cell_table.build(run)
    said = caveats.caveats(built, run.manifest)
    text = said["Processes of their own"].replace(numbers.NARROW, " ")
    assert "jit_spmd (torch 2.13.0; 2 processes of 1 thread)" in text
    assert "up to 90.0 \N{MICRO SIGN}s" in text
    rows = cell_columns.rows(built, run.manifest).values()
    (column,) = [c for c in cell_columns.COLUMNS if c.key == "foreign"]
    shown = {row["implementation"]: column.of(row) for row in rows}
    assert shown.pop("jit_spmd") == "torch 2.13.0; 2 processes of 1 thread"
    assert set(shown.values()) == {None}
    (column,) = [c for c in cell_columns.COLUMNS if c.key == "compile_total_s"]
    shown = {row["implementation"]: column.detail_of(row) for row in rows}
    assert shown.pop("jit_spmd") == "first step minus the fastest"
    assert all(" + " in each for each in shown.values())
    assert cell_columns.framework(foreign | {"isolated": True}).startswith("isolated; torch")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({}, "was 1.000 there, and 0.500 in the shared process"),
        ({"beside": ""}, "A step took 1.00 s there, and 500 ms in"),
        ({"isolated_ratio": None, "reason": "it died"}, "It yielded no times: it died."),
    ],
)
def test_a_winner_that_was_repeated_in_isolation_is_told(
    tmp_path: Path, more: dict[str, object], words: str
) -> None:
    isolation = {
        "why": "it is fast", "beside": "python_loop", "ratio": 0.5, "isolated_ratio": 1.0,
        "reason": "",
    } | more  # fmt: skip

    def mark(row) -> None:
        if row["implementation"] == "jit_spmd":
            row["isolation"] = isolation

    directory = synthetic.write(tmp_path, SMALL)
    synthetic.rewrite(directory, "cells", mark)
    run = store.load(directory)
    said = caveats.caveats(cell_table.build(run), run.manifest)
    text = said["Winners repeated in isolation"].replace(numbers.NARROW, " ")
    assert "/jit_spmd was measured again" in text
    assert "it is fast" in text
    assert words in text


def test_a_report_says_which_attention_was_proved_against_which(tmp_path: Path) -> None:
    def mark(row) -> None:
        row["kernels"] = ["__cublas$gemm"]
        if row["implementation"] == "jit_spmd":
            row["kernels"] += ["__cudnn$fmhaSoftmax", "__cudnn$fmhaSoftmaxBackward"]

    directory = synthetic.write(tmp_path, SMALL)
    run = store.load(directory)
    assert "Fused attention" not in caveats.caveats(cell_table.build(run), run.manifest)
    synthetic.rewrite(directory, "cells", mark)
    run = store.load(directory)
    said = caveats.caveats(cell_table.build(run), run.manifest)
    assert said["Fused attention"].startswith(
        "The timed programs of mlp-base/data=2/b64/fp32/jit_spmd call __cudnn$fmhaSoftmax and "
        "__cudnn$fmhaSoftmaxBackward. Their proof in float64 is that of attention by plain"
    )


def test_a_report_says_which_proofs_did_not_fit_on_a_device(tmp_path: Path) -> None:
    def mark(row) -> None:
        if row["implementation"] == "jit_spmd":
            for check in row["proof"]:
                check |= {"devices": 2, "parts": 8, "batch": 16}
        else:
            row["proof"] = [check | {"name": "as timed"} for check in row["proof"]]

    directory = synthetic.write(tmp_path, SMALL)
    title = "Steps too large for a whole proof"
    run = store.load(directory)
    assert title not in caveats.caveats(cell_table.build(run), run.manifest)
    synthetic.rewrite(directory, "cells", mark)
    run = store.load(directory)
    said = caveats.caveats(cell_table.build(run), run.manifest)
    assert said[title].startswith(
        "The reference of mlp-base/data=2/b64/fp32/jit_spmd does not fit on one device: it was "
        "computed in parts of the batch, or with its parameters sharded. A smaller batch "
        "served for the proof of mlp-base/data=2/b64/fp32/jit_spmd in float64. The steps of "
    )
    assert said[title].endswith(
        "do not fit in float64 at any batch: proved only in the timed dtypes."
    )
    raced = {"loss_tolerance": 1e-3, "update_tolerance": 1e-3, "loosened": []}
    synthetic.rewrite(directory, "manifest", lambda row: row["config"].update(functions=raced))
    said = caveats.caveats(cell_table.build(run), store.load(directory).manifest)
    assert "Proved against one another" in said
    assert title not in said, "functions of lockstep.compare are never proved in float64"


def test_what_was_set_aside_is_a_caveat(tmp_path: Path) -> None:
    directory = synthetic.write(tmp_path, dataclasses.replace(SMALL, launches=12))
    for path in synthetic.launch_files(directory):
        path.write_bytes(path.read_bytes()[:-9])
    run = store.load(directory)
    text = caveats.caveats(cell_table.build(run), run.manifest)["Damaged files"]
    assert text.startswith("12 parts of the stored files could not be used. launches/0001_")
    assert "_launch8.jsonl: differs from what was stored (CRC-32); and 4 more." in text


def test_few_rounds_resolve_nothing(tmp_path: Path) -> None:
    built, _ = small(tmp_path, rounds=5)
    assert len(built.comparisons[0].standings.leaders) == len(SMALL.ratios)
    (said,) = sentences.answers(sentences.summaries(built))[built.comparisons[0].subject]
    assert "too few rounds to tell them apart" in said
    assert sentences.decisions(built.rows) == "Against the baselines: 6 undecided."


def test_caveats_are_read_from_the_rows(found: Tables, directory: Path, tmp_path: Path) -> None:
    titles = caveats.caveats(found, store.load(directory).manifest)
    assert "More devices than cores" in titles
    assert "Measured in a separate process" in titles
    assert "A busy host" not in titles
    assert "Wide noise floor" not in titles
    built, run = small(tmp_path, noise=0.2, foreign=0.5)
    titles = caveats.caveats(built, run.manifest)
    assert "Wide noise floor" in titles
    assert "A busy host" in titles
    assert "More devices than cores" not in titles


def test_the_noise_floor_is_a_relative_difference(found: Tables) -> None:
    block = found.comparisons[0]
    planted = Ratio(0.8, 0.2, 50.0, rounds=32, launches=1, paired=True)
    wide = dataclasses.replace(block, floor=planted)
    assert wide.floor_width == pytest.approx(1 / planted.low - 1)
    assert wide.floor_width > planted.high - 1
    share = numbers.percent(wide.floor_width)
    assert f"so up to {share}." in next(run_tables.facts(wide, synthetic.manifest(SMALL)))


def test_strong_and_weak_curves(found: Tables) -> None:
    curves = {(c.kind, c.workload): c for c in scaling_curves.find(found.cells)}
    assert set(curves) == {(k, w) for k in ("strong", "weak") for w in ("linear", "gpt2")}
    strong = curves["strong", "gpt2"].points.set_index(["implementation", "devices"])
    times = strong["step_s"]["jit_spmd"]
    expected = times[1] / (4 * times[4])
    assert strong.loc[("jit_spmd", 4), "efficiency"] == pytest.approx(expected)
    assert 0.7 < expected < 0.9  # 81 % by the synthetic law
    weak = curves["weak", "gpt2"].points.set_index(["implementation", "devices"])
    times = weak["step_s"]["jit_spmd"]
    assert weak.loc[("jit_spmd", 4), "efficiency"] == pytest.approx(times[1] / times[4])
    assert strong.loc[("jit_spmd", 8), "oversubscribed"]
    assert not strong.loc[("jit_spmd", 4), "oversubscribed"]
    # Crashed on one device: nothing to be efficient against.
    assert strong["efficiency"]["shard_map_pmean"].isna().all()
    assert ("python_loop", 4) not in strong.index


def test_curves_are_shown_where_their_blocks_are(tmp_path: Path) -> None:
    built, _ = small(tmp_path, devices=(1, 2), variants={"": 1.0, "slow": 1.25})
    subjects = {block.subject for block in built.comparisons}
    assert {curve.subject for curve in built.curves} == subjects
    assert len(subjects) == 2


def test_curves_do_not_mix_meshes() -> None:
    meshes = ["data=1", "data=2", "data=2,model=2", "data=4,model=2", "data=4", "model=4"]
    cells = pd.DataFrame(
        [
            {"implementation": "x", "workload": "w", "size": "s", "options": "fp32",
             "mesh": mesh, "devices": MeshShape.parse(mesh).size, "processes": 1, "batch": 8,
             "status": "ok", "step_s": 1.0, "step_q1_s": 1.0, "step_q3_s": 1.0,
             "units_per_s": 1.0, "unit": "samples", "oversubscribed": False,
             "cell": "c", "memory_bytes": 1.0, "high_water_bytes": 1.0}
            for mesh in meshes
        ]
    )  # fmt: skip
    found = {c.family: list(c.points["devices"]) for c in scaling_curves.find(cells)}
    assert found == {"data=N": [1, 2, 4], "data=N,model=2": [4, 8]}
    # Shading starts in the middle between two meshes, on a logarithmic axis.
    for cores, start in ((1, 2**0.5), (2, 8**0.5), (4, None), (0, 0.0)):
        shared = cells.assign(oversubscribed=cells["devices"] > cores)
        curve = next(c for c in scaling_curves.find(shared) if c.family == "data=N")
        assert curve.oversubscribed_from == (start and pytest.approx(start))


def test_several_processes_have_curves_of_their_own() -> None:
    measured = [(1, 1), (2, 1), (4, 1), (2, 2), (4, 2), (8, 4), (4, 4)]  # devices, processes
    cells = pd.DataFrame(
        [
            {"implementation": "x", "workload": "w", "size": "s",
             "options": str(StepOptions(processes=processes)), "mesh": f"data={devices}",
             "devices": devices, "processes": processes, "batch": 8, "status": "ok",
             "step_s": 1.0 / devices, "step_q1_s": 1.0, "step_q3_s": 1.0, "units_per_s": 1.0,
             "unit": "samples", "oversubscribed": False,
             "cell": "c", "memory_bytes": 1.0, "high_water_bytes": 1.0}
            for devices, processes in measured
        ]
    )  # fmt: skip
    found = {c.devices_a_process: c for c in scaling_curves.find(cells) if c.kind == "strong"}
    assert {own: list(c.points["devices"]) for own, c in found.items()} == {
        None: [1, 2, 4],
        1: [1, 2, 4],  # begins with the one device that a process alone has
        2: [2, 4, 8],
    }
    assert found[1].options == "fp32,processes=4", "it is shown where its largest mesh is"
    assert found[2].title == "Strong scaling, data=N, 2 devices per process, batch 8 in all"
    assert len({c.slug for c in found.values()}) == 3
    assert all((c.points["efficiency"] == 1).all() for c in found.values())


def test_the_slowest_process_is_named() -> None:
    times = np.array([[100, 110, 100], [100, 104, 100], [100, 100, 130], [100, 106, 100]])
    samples = pd.DataFrame({"arm": "pmap", "process_throughput_ns": times.tolist()})
    assert turn_details.straggling(samples) == {
        "pmap": {"slowest": 1, "often": 0.75, "excess": pytest.approx(0.08)}
    }


def test_cells_with_the_same_reason_are_one_row(found: Tables) -> None:
    endings = run_tables.endings(found.rows)
    assert endings is not None
    (pmap,) = [row for row in endings.rows if row["status"] == "unsupported"]
    assert (pmap["implementations"], pmap["reason"]) == (["pmap"], "jax.pmap is not there")
    assert len(pmap["cells"]) == 14
    assert endings.body[0][0].main == "wrong"


@pytest.mark.slow
def test_the_same_rows_give_the_same_bytes(directory: Path, tmp_path: Path) -> None:
    again = tmp_path / "elsewhere"
    again.mkdir()
    shutil.copy(directory / store.MANIFEST, again)
    shutil.copytree(directory / store.LAUNCHES, again / store.LAUNCHES)
    report_files.build(store.load(again))
    made = sorted(p.relative_to(again) for p in again.rglob("*") if p.is_file())
    assert {p.suffix for p in made} == {".html", ".md", ".csv", ".parquet", ".svg", ".png", ".pdf",
                                        ".json", ".jsonl"}  # fmt: skip
    for path in (path for path in made if path.suffix != ".pdf"):  # Its fonts are in any order.
        assert (again / path).read_bytes() == (directory / path).read_bytes(), path


def test_a_run_that_has_measured_nothing_has_a_report(tmp_path: Path) -> None:
    directory = store.create(tmp_path, synthetic.manifest(SMALL))
    assert "No cell has ended yet." in report_files.build(store.load(directory)).read_text(
        encoding="utf-8"
    )


def test_a_run_in_which_nothing_ran_has_a_report(tmp_path: Path) -> None:
    endings = {(name, 0): ("unsupported", "no such axis") for name in SMALL.ratios}
    plan = dataclasses.replace(SMALL, endings=endings)  # type: ignore[arg-type]
    text = report_files.build(store.load(synthetic.write(tmp_path, plan))).read_text(
        encoding="utf-8"
    )
    assert "Nothing has a time: unsupported." in text
    assert "7 cells: 7 unsupported." in text


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.00123456, "1.23 ms"), (0.9996, "1.00 s"), (9.996e-4, "1.00 ms"), (4.2e-8, "42.0 ns"),
     (0.0, "0 s"), (123.4, "123 s"), (float("nan"), "\N{EN DASH}"), (None, "\N{EN DASH}")],
)  # fmt: skip
def test_si(value: float | None, expected: str) -> None:
    assert numbers.si(value, "s").replace(numbers.NARROW, " ") == expected


def test_other_numbers() -> None:
    plain = {
        numbers.bytes_(3_460_300): "3.30 MiB",
        numbers.bytes_(512): "512 B",
        numbers.bytes_(1023 * 1024): "0.999 MiB",
        numbers.bytes_(3 * 2**41): "6.00 TiB",
        numbers.bytes_(None): "\N{EN DASH}",
        numbers.scientific(4.12e-7): "4.1e-7",
        numbers.scientific(0.0): "0",
        numbers.percent(0.1234): "12.3 %",
        numbers.percent(-0.0042): "\N{MINUS SIGN}0.42 %",
        numbers.percent(0.00001): "<0.01 %",
        numbers.percent(0.0): "0 %",
        numbers.range_si(0.00095, 0.00105, "s"): "0.950\N{EN DASH}1.05 ms",
        numbers.range_si(0.0, 0.0, "s"): "0\N{EN DASH}0 s",
        numbers.ratio(1.2534): "1.253",
        numbers.ratio(12.34): "12.3",
    }
    for made, expected in plain.items():
        assert made.replace(numbers.NARROW, " ") == expected


@pytest.mark.parametrize(
    ("share", "shown"),
    [(0.0, "0\N{NARROW NO-BREAK SPACE}%"), (0.14373, "14.3\N{NARROW NO-BREAK SPACE}%"),
     (0.14984, "14.9\N{NARROW NO-BREAK SPACE}%"), (4.209, "5.20\N{MULTIPLICATION SIGN}"),
     (12.37, "13.3\N{MULTIPLICATION SIGN}"), (98.96, "99.9\N{MULTIPLICATION SIGN}"),
     (math.nan, "")],
)  # fmt: skip
def test_how_far_a_cell_is_at_least_behind_is_never_rounded_up(share: float, shown: str) -> None:
    (column,) = (each for each in cell_columns.COLUMNS if each.key == "behind_low")
    cell = {"behind_low": 1 + share, "behind_high": 2 + share}
    assert column.figure(cell).main == (shown or numbers.MISSING)
