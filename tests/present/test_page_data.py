"""What a page draws from is what the tables say, in a form that cannot break the page."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import json
import math

import pytest
import synthetic
from pages import column

from bench.analyse import cell_table
from bench.analyse.causes import attribute
from bench.present import cell_columns, charts, page_data
from bench.present.trace_tables import operation_name
from bench.records import store
from bench.records.step_programs import Operation, expanded
from bench.records.step_programs import unpacked as of_program

PLAN = synthetic.Plan(
    devices=(1, 2, 4),
    batches=("strong", "weak"),
    launches=2,
    traced=True,
    variants={"": 1.0, "slow": 1.5},
    endings={("pmap", 0): ("unsupported", "none here"), ("nnx_jit", 4): ("wrong", "4 times")},
)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> store.Run:
    return store.load(synthetic.write(tmp_path_factory.mktemp("reports"), PLAN))


@pytest.fixture(scope="module")
def found(run) -> cell_table.Tables:
    return cell_table.build(run)


@pytest.fixture(scope="module")
def data(found, run) -> dict:
    return json.loads(page_data.encode(page_data.build(found, run.manifest)))


def test_a_page_draws_the_steps_that_matter_first(found) -> None:
    every = page_data.drawn_steps(found)
    assert every == {name: trace["drawn"] for name, trace in found.traces.items()}
    first = []
    for block in found.comparisons:
        names = [cell["cell"] for cell in block.ranked]
        first.append({names[0], f"{block.name}/{block.baseline}", names[-1]})
    assert all(len(own) == 3 for own in first), "else the next lines show less"
    wanted = set().union(*first)
    enough = sum(len(every[name]) for name in wanted)
    assert set(page_data.drawn_steps(found, enough)) == wanted
    fewer = page_data.drawn_steps(found, sum(len(every[min(own)]) for own in first) // 2)
    assert 0 < len(fewer) < len(first), "no block has a second step before others have a first"
    assert set(fewer) <= {block.ranked[0]["cell"] for block in found.comparisons}


def test_a_page_says_how_many_steps_it_leaves_out(found, run, data, monkeypatch) -> None:
    assert data["steps_left_out"] == 0
    monkeypatch.setattr(page_data, "drawn_steps", lambda _: {})
    assert page_data.build(found, run.manifest)["steps_left_out"] == len(found.traces)


def test_a_page_lists_the_operations_that_have_room(tmp_path, monkeypatch) -> None:
    known = {name: (name, "dispatch", 3) for name in ("jit_spmd", "pmap", "nnx_jit")}
    plan = synthetic.Plan(devices=(2,), rounds=6, programs=known)
    run = store.load(synthetic.write(tmp_path, plan))
    found = cell_table.build(run)

    def listed() -> dict[str, list[Operation]]:
        stored = expanded(page_data.build(found, run.manifest)["programs"])
        operations = stored["operations"]
        return {
            found.cells["implementation"][int(cell)]: [
                Operation(*operations[place][:3], runs, operations[place][3])
                for place, runs in zip(own[::2], own[1::2], strict=True)
            ]
            for cell, own in stored["cells"].items()
        }

    texts = {row["implementation"]: row.get("program") for row in run.cell_rows}
    every = {name: of_program(texts[name]["operations"]) for name in known}
    assert listed() == every
    room = len(texts["jit_spmd"]["operations"]) + len(texts["nnx_jit"]["operations"])
    monkeypatch.setattr(page_data, "MOST_PACKED", room)
    assert set(listed()) == {"jit_spmd", "nnx_jit"}, (
        "the fastest, which is the baseline, and the slowest"
    )
    found.programs.clear()
    assert page_data.build(found, run.manifest)["programs"] == ""


def test_figures_are_those_of_the_table(found, data) -> None:
    figures = data["cells"]["figures"]
    names = [
        f"{data['blocks']['name'][block]}/{data['implementations'][arm]}"
        for block, arm in zip(figures["block"], figures["arm"], strict=True)
    ]
    assert names == list(found.cells["cell"])
    described = {each.key for each in cell_columns.COLUMNS if not each.value}
    stored = described & {name for name, kind in found.cells.dtypes.items() if kind.kind == "f"}
    assert len(stored) > 15
    shown_columns = {
        key: column(data, "cells", key) for key in stored & set(data["cells"]["values"])
    }
    for name, values in {
        **shown_columns,
        **{key: figures[key] for key in page_data.FIGURES},
    }.items():
        for shown, value in zip(values, found.cells[name].astype(float), strict=True):
            if math.isfinite(value):
                assert shown == pytest.approx(value, rel=6e-5)
            else:
                assert shown is None
    assert column(data, "cells", "reason", "figures") == list(found.cells["reason"])
    assert column(data, "cells", "status") == list(found.cells["status"])


def test_every_column_is_as_long_as_the_others(data) -> None:
    assert len({len(values) for values in data["blocks"].values()}) == 1
    for table in (data["cells"], *data["tables"]):
        parts = {part: table[part] for part in ("values", "details", "figures") if part in table}
        keys = [(part, key) for part, columns in parts.items() for key in columns]
        name = "cells" if table is data["cells"] else table["name"]
        assert len({len(column(data, name, key, part)) for part, key in keys}) == 1, name
        assert set(table["details"]) <= set(table["values"])
        assert [each["key"] for each in table["columns"]] == list(table["values"])


def test_samples_are_the_rounds_of_an_arm(found, data) -> None:
    block = found.comparisons[0]
    place = data["implementations"].index("jit_spmd")
    shown = data["blocks"]["samples"][0][str(place)]
    expected = 1e6 * block.rounds.seconds("jit_spmd")
    assert shown == pytest.approx(expected.tolist(), rel=6e-5)
    assert "twin" in data["blocks"]["samples"][0]
    assert data["blocks"]["launch"][0] == [0] * PLAN.rounds + [1] * PLAN.rounds


def test_of_many_rounds_some_are_shown_evenly(tmp_path) -> None:
    plan = dataclasses.replace(PLAN, devices=(2,), batches=("strong",), rounds=700, launches=1,
                               ratios={"jit_spmd": 1.0}, variants={"": 1.0})  # fmt: skip
    run = store.load(synthetic.write(tmp_path, plan))
    found = cell_table.build(run)
    data = page_data.build(found, run.manifest)
    shown = data["blocks"]["samples"][0]["0"]
    every = 1e6 * found.comparisons[0].rounds.seconds("jit_spmd")
    assert len(shown) == page_data.MOST_ROUNDS
    assert (shown[0], shown[-1]) == pytest.approx((every[0], every[-1]), rel=6e-5)


def test_curves_refer_to_their_cells(found, data) -> None:
    curve = next(one for one in data["curves"] if one["title"].startswith("Strong"))
    cells = found.cells.iloc[curve["cell"]]
    assert len(set(cells["batch"])) == 1
    assert set(cells["devices"]) == {1, 2, 4}
    assert set(cells["status"]) == {"ok"}
    alone = [
        share for share, n in zip(curve["efficiency"], cells["devices"], strict=True) if n == 1
    ]
    assert alone == [1.0] * len(alone)


def test_variants_refer_to_their_cells(found, data) -> None:
    (effects,) = [table for table in data["tables"] if table["name"] == "variants"]
    assert len(effects["cell"]) > 10
    options = found.cells["options"].iloc[effects["cell"]]
    assert set(options) == {"fp32,variant=slow"}
    assert all(1.3 < ratio < 1.7 for ratio in column(data, "variants", "ratio"))


def test_what_traces_showed_belongs_to_its_cell(found, data) -> None:
    names = list(found.cells["cell"])
    slow, baseline = (
        names.index(f"mlp-base/data=2/b64/fp32/{name}") for name in ("python_loop", "jit_spmd")
    )
    told = data["traced"][str(slow)]
    trace = found.traces["mlp-base/data=2/b64/fp32/python_loop"]
    spent = sum(told["parts"][part] for part in charts.PARTS)
    assert spent == pytest.approx(trace["steps"][0]["total_ns"] / 1e9)
    main = "elementwise operations in the update that transpose"
    assert data["cells"]["values"]["cause"][slow] == main
    assert told["why"].startswith("With a wait after every step, python_loop takes")
    names = data["causes"]["what"]
    (transposing,) = told["transposing"]
    assert names[transposing] == "elementwise operations in the update"
    assert data["traced"][str(baseline)]["transposing"] == []


def test_any_two_traces_differ_on_the_page_as_explain_says(found, data) -> None:
    names = list(found.cells["cell"])
    causes = list(zip(*(data["causes"][key] for key in ("what", "source")), strict=True))
    traced = list(found.traces)
    for a, b in itertools.permutations(traced[:5] + traced[-5:], 2):
        here, there = (data["traced"][str(names.index(cell))] for cell in (a, b))
        spent = collections.Counter()
        for sign, side in ((1, here), (-1, there)):
            for cause, ns in zip(side["causes"], side["ns"], strict=True):
                spent[causes[cause]] += sign * ns
        expected = collections.Counter()
        explained = attribute(found.traces[a], found.traces[b], 1.0)
        for cause in explained.causes:
            expected[operation_name(cause.key), cause.key.source] += 1e9 * cause.difference
        assert dict(spent) == pytest.approx(dict(expected), abs=2)
        steps = [side["parts"]["total"] for side in (here, there)]
        assert steps == pytest.approx([explained.traced_a, explained.traced_b], abs=2e-9)
        assert sum(spent.values()) == pytest.approx(1e9 * (steps[0] - steps[1]), abs=9)


def test_any_two_arms_of_a_block_compare_on_the_page_as_explain_says(found, data) -> None:
    names = data["implementations"]
    for block, shown in zip(found.comparisons, data["blocks"]["ratios"], strict=True):
        assert len(shown) == math.comb(len(block.arms), 2)
        for key, (value, *ends) in shown.items():
            arm, other = (names[int(number)] for number in key.split("/"))
            claim = block.claim_of(arm, other)
            assert value == pytest.approx(claim.ratio.value, rel=1e-4)
            sure = [claim.verdict.low, claim.verdict.high]
            assert ends == ([None, None] if math.inf in sure else pytest.approx(sure, rel=1e-4))


def test_no_text_ends_the_element_it_stands_in() -> None:
    text = "</script><!-- <img onerror=x> & \u2028\u2029"
    encoded = page_data.encode({"reason": text})
    assert not set(encoded) & set("<>&\u2028\u2029")
    assert json.loads(encoded) == {"reason": text}


def test_what_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        page_data.encode({"step": [math.nan]})


def test_nothing_measured(tmp_path) -> None:
    directory = store.create(tmp_path, synthetic.manifest(PLAN))
    run = store.load(directory)
    data = page_data.build(cell_table.build(run), run.manifest)
    assert data["cells"]["values"]["implementation"] == []
    assert data["tables"] == []
    assert json.loads(page_data.encode(data))["implementations"] == []
