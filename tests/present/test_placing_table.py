"""The first screen: each of its numbers is recomputed here from the stored rows."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pandas as pd
import pytest
import synthetic

from bench.analyse import cell_table
from bench.analyse.process_spread import PROCESS
from bench.analyse.signed_rank import shift
from bench.analyse.standings import Standings
from bench.present import page, placing_table, sentences
from bench.records import numbers, store

if TYPE_CHECKING:
    from pathlib import Path

RATIOS = {"jit_spmd": 1.0, "fast": 0.8, "near": 0.803, "slow": 1.5, "alone": 1.1}
PLAN = synthetic.Plan(
    devices=(1, 2, 4),
    ratios=RATIOS,
    alone=frozenset({"alone"}),
    endings={
        ("slow", 4): ("wrong", "gradients 4 times too large"),
        ("near", 4): ("unsupported", ""),
    },
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> store.Run:
    return store.load(synthetic.write(tmp_path_factory.mktemp("reports"), PLAN))


@pytest.fixture(scope="module")
def found(run: store.Run) -> cell_table.Tables:
    return cell_table.build(run)


def seconds(run: store.Run, block: str) -> pd.DataFrame:
    """Seconds per step of each round (rows) and arm (columns), as stored."""
    own = run.samples[run.samples["block"] == block].assign(
        s=lambda rows: rows["throughput_ns"] / rows["steps"] / 1e9
    )
    return own.pivot_table(values="s", index=["attempt", "round"], columns="arm")


def estimate(times: pd.DataFrame, arm: str, other: str) -> float:
    """The Hodges-Lehmann estimate of time(arm) / time(other)."""
    logs = np.log((times[arm] / times[other]).dropna().to_numpy())
    averages = np.add.outer(logs, logs)[np.triu_indices(len(logs))] / 2
    return math.exp(np.median(averages))


def upper(times: pd.DataFrame, arm: str, other: str, alpha: float) -> float:
    """The upper end of the interval of time(arm) / time(other) of one launch."""
    from scipy import stats  # noqa: PLC0415 - only of this test

    middle, _, high = map(
        float, shift(np.log((times[arm] / times[other]).dropna().to_numpy()), alpha)
    )
    process = stats.t.ppf(1 - alpha / 2, PROCESS.freedom) * PROCESS.sd
    return math.exp(middle + math.hypot(high - middle, process))


def test_every_number_of_the_matrix_follows_from_the_samples(
    run: store.Run, found: cell_table.Tables
) -> None:
    matrix = placing_table.make(found)
    assert matrix is not None
    assert [name for name, _ in matrix.subjects] == ["mlp-base, fp32, batch 64"]
    behind: dict[str, list[float]] = {}
    for place, block in enumerate(found.comparisons):
        times = seconds(run, block.name)
        ranked = [arm for arm in block.arms if arm != "alone"]
        ratios = {arm: estimate(times, arm, "jit_spmd") for arm in ranked if arm != "jit_spmd"}
        ratios["jit_spmd"] = 1.0
        best = min(ratios, key=lambda arm: ratios[arm])
        assert matrix.situations[place].main == str(block.block.mesh)
        for line in matrix.lines:
            field, name = line.fields[place], line.name
            if name not in ratios:
                continue
            assert field is not None
            step = numbers.si(times["jit_spmd"].median() * ratios[name], "s")
            assert field.sure.endswith(f", {step} per step")
            longer = ratios[name] / ratios[best]
            behind.setdefault(name, []).append(longer)
            if name == best:
                assert (field.text, field.look) == ("fastest", "shade0 fastest")
                assert matrix.situations[place].note == step
            else:
                assert field.text == placing_table.behind(longer)
    for line in matrix.lines:
        own = behind.get(line.name)
        assert line.worst == (placing_table.behind(max(own)) if own else "\N{EN DASH}")
        assert line.mean == (
            placing_table.behind(math.prod(own) ** (1 / len(own))) if own else "\N{EN DASH}"
        )
    worst = [max(behind.get(line.name, [math.inf])) for line in matrix.lines]
    assert all(one <= other for one, other in pairwise(worst))


def test_what_has_no_place_says_why(found: cell_table.Tables) -> None:
    matrix = placing_table.make(found)
    assert matrix is not None
    lines = {line.name: line for line in matrix.lines}
    assert lines["near"].fields[2] is None
    assert lines["near"].count == "2 of 3"
    wrong = lines["slow"].fields[2]
    assert wrong is not None
    assert (wrong.text, wrong.look) == ("wrong", "failed")
    assert wrong.sure == "gradients 4 times too large"
    apart = lines["alone"].fields[0]
    assert apart is not None
    assert apart.look == "apart"
    assert apart.sure.startswith("measured separately")
    assert lines["alone"].worst == numbers.MISSING


def test_the_bound_of_the_answer_follows_from_the_samples(
    run: store.Run, found: cell_table.Tables
) -> None:
    every = sentences.summaries(found)
    (first, *_) = sentences.advice(every)
    said = re.match(
        r"Use (\w+)(?: with ([\w=, ]+))?; nothing else is more than ([\d.]+)\s% ", first
    )
    assert said, first
    name, where, bound = said.groups()
    highest = 1.0
    for each in every:
        block = each.comparison
        if where is not None and each.among(every) not in where:
            continue
        times, arms = seconds(run, block.name), [arm for arm in block.arms if arm != "alone"]
        alpha = block.alpha / (len(arms) - 1)
        leaders = [
            arm
            for arm in arms
            if all(upper(times, other, arm, alpha) >= 1 for other in arms if other != arm)
        ]
        assert set(leaders) == set(block.standings.leaders)
        others = [arm for arm in leaders if arm != name]
        highest = max(highest, *(upper(times, name, other, alpha) for other in others), 1.0)
    assert float(bound) == pytest.approx(100 * (highest - 1), rel=0.1)
    assert float(bound) >= 100 * (highest - 1) - 1e-9, "rounded up"


def test_counts_of_the_first_screen(run: store.Run, found: cell_table.Tables) -> None:
    made = page.content(found, run.manifest)
    assert made["counts"] == "5 implementations in 3 situations (workload, mesh and batch)"
    assert made["question"] == "Which train step is fastest on 4 CPU cores?"
    assert made["failures"] == [(1, "wrong")]


def test_the_picture_has_the_answer_and_the_matrix(found: cell_table.Tables) -> None:
    picture = placing_table.picture(found, "Which is fastest?", "a machine")
    size = [int.from_bytes(picture.png[at : at + 4]) for at in (16, 20)]
    assert all(own <= most for own, most in zip(size, placing_table.SLIDE, strict=True))
    assert any(own >= most - 1 for own, most in zip(size, placing_table.SLIDE, strict=True))
    assert picture is not None
    matrix = placing_table.make(found)
    assert matrix is not None
    texts = re.findall(r">([^<]+)</t", picture.svg)
    shown = [field.text for line in matrix.lines for field in line.fields if field]
    assert not Counter(shown) - Counter(texts)
    assert {line.worst for line in matrix.lines} <= set(texts)
    assert "Which is fastest?" in texts
    said = " ".join(texts)
    assert all(text in said for text in sentences.advice(sentences.summaries(found)))


def test_the_picture_of_few_situations_is_no_wide_strip(tmp_path: Path) -> None:
    """Its text is wrapped to the matrix, or a long name of the machine would set its width."""
    built = cell_table.build(store.load(synthetic.write(tmp_path, synthetic.Plan(devices=(2,)))))
    picture = placing_table.picture(built, "Which is fastest?", "a machine " * 15)
    assert picture is not None
    width, height = (int.from_bytes(picture.png[at : at + 4]) for at in (16, 20))
    assert width < 2 * height


def test_a_cause_from_traces_is_said(tmp_path: Path) -> None:
    plan = synthetic.Plan(devices=(1, 2), ratios={"jit_spmd": 1.0, "slow": 1.5}, traced=True)
    built = cell_table.build(store.load(synthetic.write(tmp_path, plan)))
    (said,) = sentences.advice(sentences.summaries(built))
    assert re.search(
        r"; avoid slow: at least 4\d\.\d\s% behind with data=\d, mainly because of elementwise "
        r"operations in the update that transpose\.$",
        said,
    )


def test_little_measured_is_said_with_what_would_help(tmp_path: Path) -> None:
    plan: dict[str, Any] = {"devices": (1, 2), "ratios": {"jit_spmd": 1.0, "other": 1.0}}
    directory = synthetic.write(tmp_path, synthetic.Plan(**plan, rounds=10, noise=0.5))
    every = sentences.summaries(cell_table.build(store.load(directory)))
    (said,) = sentences.advice(every)
    assert re.fullmatch(
        r"(jit_spmd|other) is among the leaders, but the data do not decide: another may be "
        r"[\d.]+(\s% faster| times as fast) with data=[12], and more rounds or launches would "
        r"narrow this\.",
        said,
    )
    assert "lead: differences below " in every[0].text()
    wide = [
        sentences.Summary(replace(each.comparison, margin=each.comparison.standings.largest_ratio))
        for each in every
    ]
    assert "lead: within " in wide[0].text(), "the margin says that these are negligible"
    assert "the data do not decide" not in sentences.advice(wide)[0]


def standing(place: sentences.Summary, **behind: tuple[float, float]) -> sentences.Summary:
    leaders = tuple(arm for arm, (low, _) in behind.items() if low == 1)
    standings = replace(place.comparison.standings, leaders=leaders, behind=behind)
    # A cached property cannot be replaced.
    place.comparison.__dict__["standings"] = standings
    return place


def test_only_what_is_far_behind_is_to_be_avoided(tmp_path: Path) -> None:
    names = {"best": 1.0, "near": 1.02, "far": 1.2}
    plan = synthetic.Plan(devices=(1, 2), ratios=names, rounds=8)
    one, other = sentences.summaries(cell_table.build(store.load(synthetic.write(tmp_path, plan))))
    places = [
        standing(each, best=(1, 1.01), near=(1.02, 1.05), far=(1.115, 1.3)) for each in (one, other)
    ]
    (said,) = sentences.advice(places)
    assert re.search(r"; avoid far: at least 11\.5\s% behind with data=1\.$", said)


def test_where_other_frameworks_lead_the_nearest_step_in_jax_is_named(tmp_path: Path) -> None:
    plan = synthetic.Plan(devices=(1, 2), ratios={"torch": 1.0, "jax_step": 1.3}, rounds=32)
    every = sentences.summaries(cell_table.build(store.load(synthetic.write(tmp_path, plan))))
    assert not any("JAX" in text for text in sentences.advice(every))
    for cell in (cell for each in every for cell in each.comparison.ranked):
        versions = {"torch": "2.15"} if cell["implementation"] == "torch" else {"jax": "0.12"}
        cell["foreign"] = {"versions": versions}
    _, *said = sentences.advice(every)
    for text, devices in zip(said, (1, 2), strict=True):
        assert re.fullmatch(
            rf"With data={devices}, no step in JAX leads: the nearest, jax_step, takes [\d.]+\s% "
            r"to [\d.]+\s% longer than the fastest\.",
            text,
        )


def test_of_many_situations_some_are_shown(tmp_path: Path) -> None:
    plan = synthetic.Plan(devices=tuple(range(1, 16)), rounds=8, ratios={"jit_spmd": 1.0, "a": 1.2})
    matrix = placing_table.make(cell_table.build(store.load(synthetic.write(tmp_path, plan))))
    assert matrix is not None
    assert len(matrix.situations) == placing_table.COLUMNS
    assert matrix.note.endswith("The table shows 12 of 15 situations.")


def test_a_field_of_few_rounds_claims_nothing(tmp_path: Path) -> None:
    found = cell_table.build(store.load(synthetic.write(tmp_path, replace(PLAN, rounds=2))))
    matrix = placing_table.make(found)
    assert matrix is not None
    told = {field.sure for line in matrix.lines for field in line.fields if field and field.sure}
    assert any(text.startswith("too few rounds for a bound, ") for text in told)
    assert not any("surely" in text for text in told)


def test_nothing_compared_has_no_matrix(tmp_path: Path) -> None:
    plan = synthetic.Plan(devices=(1,), ratios={"jit_spmd": 1.0})
    built = cell_table.build(store.load(synthetic.write(tmp_path, plan)))
    assert placing_table.make(built) is None
    assert placing_table.picture(built, "", "") is None


@pytest.mark.parametrize(
    ("lows", "said"),
    [
        ({"far": 1.71, "near": 1.28}, "near and far take 1.2 to 2.5 times as long as the fastest"),
        ({"far": 2.3}, "far takes 2.3 to 2.5 times as long as the fastest"),
        (
            {"far": 1.71, "open": 1.0},
            (
                "open is behind, by at most 40.0 %; far takes 1.7 to 2.5 times as long as the "
                "fastest"
            ),
        ),
        ({"close": 1.0, "like": 1.0}, "close and like are behind, by at most 20.0 %"),
        ({"lost": 1.0}, "lost is behind, by an unknown amount"),
    ],
)
def test_a_tier_says_what_is_sure_of_each_arm_even_where_two_may_lead(lows, said) -> None:
    arms = tuple(sorted(lows, key=lambda arm: lows[arm]))
    high = {"far": 2.5, "near": 1.6, "open": 1.4, "close": 1.1, "like": 1.2, "lost": math.inf}
    behind = {"a": (1.0, 1.05), "b": (1.0, 1.1), **{arm: (lows[arm], high[arm]) for arm in arms}}
    standings = Standings(("a", "b"), (arms,), behind)
    tiers = "; ".join(sentences.tiers(cast("Any", SimpleNamespace(standings=standings))))
    assert tiers.replace(numbers.NARROW, " ") == said
