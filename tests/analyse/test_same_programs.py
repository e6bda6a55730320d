"""Arms with equal programs: what is proved, what is told, and what two programs do differently."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from bench.analyse.cell_table import Tables, build
from bench.analyse.outcomes import judge_attempts
from bench.analyse.ratio_intervals import estimate
from bench.analyse.same_programs import LineDifference, differences, relation
from bench.analyse.standings import rank
from bench.commands.explain import explain
from bench.present import bounds, caveats, program_sentences, sentences
from bench.records import numbers, store
from bench.records.step_programs import Operation, StepProgram, packed
from tests import synthetic

PLAN = synthetic.Plan(
    devices=(2,),
    ratios={"jit_spmd": 1.0, "nnx_jit": 1.2, "renamed": 1.1, "other": 1.1, "tuned": 1.0},
    rounds=40,
    programs={
        "jit_spmd": ("1" * 16, "a" * 16, 6),
        "nnx_jit": ("1" * 16, "b" * 16, 4901),
        "renamed": ("1" * 16, "a" * 16, 6),
        "other": ("2" * 16, "a" * 16, 6),
        "tuned": ("", "c" * 16, 1700),
    },
)
PLACE = "mlp-base/data=2/b64/fp32"


def tables(reports: Path, plan: synthetic.Plan = PLAN) -> Tables:
    return build(store.load(synthetic.write(reports, plan)))


def test_a_proof_outweighs_times_and_the_contradiction_is_told(tmp_path: Path) -> None:
    found = tables(tmp_path)
    verdicts = found.cells.set_index("implementation")["verdict"]
    assert dict(verdicts.dropna()) == {
        "nnx_jit": "slower", "renamed": "same", "other": "slower", "tuned": "same",
    }  # fmt: skip
    cells = {row["implementation"]: row for row in found.rows}
    assert bounds.describe_verdict(cells["renamed"]) == "the program is equal"
    assert bounds.describe_verdict(cells["tuned"]).startswith("within ")
    (block,) = found.comparisons
    claim, times = block.claims["renamed"], found.cells.set_index("implementation")["step_s"]
    assert (claim.ratio.value, claim.ratio.low, claim.ratio.high) == (1.0, 1.0, 1.0)
    assert claim.verdict.low > 1.05, "what was measured"
    assert times["renamed"] == times["jit_spmd"] < times["tuned"]
    (said,) = program_sentences.facts(block)
    assert said.startswith(
        "jit_spmd, renamed and nnx_jit run the same program, so only its dispatch"
    )
    assert "jit_spmd 6, renamed 6, nnx_jit 4901" in said
    told = caveats.caveats(found, synthetic.manifest(PLAN))
    assert f"{PLACE}/renamed would differ" in told["Equal programs, unequal times"]


def test_equal_dispatch_is_proved_and_runs_without_programs_are_read(tmp_path: Path) -> None:
    alike = dict.fromkeys(("jit_spmd", "renamed"), ("1" * 16, "a" * 16, 6))
    ratios = {"jit_spmd": 1.0, "renamed": 1.0}
    (block,) = tables(tmp_path, replace(PLAN, ratios=ratios, programs=alike)).comparisons
    (said,) = program_sentences.facts(block)
    assert " and " in said.partition(" are proved to be the same: equal programs")[0]
    assert not program_sentences.caveat([block])
    found = tables(tmp_path / "older", replace(PLAN, programs={}))
    assert not [*program_sentences.facts(found.comparisons[0])]
    assert found.cells["fingerprint"].isna().all()


def test_arms_with_one_program_show_one_step_time(tmp_path: Path) -> None:
    ratios = {"jit_spmd": 1.0, "one": 1.5, "again": 1.52, "other": 1.5}
    alike = dict.fromkeys(("one", "again"), ("1" * 16, "a" * 16, 6))
    found = tables(tmp_path, replace(PLAN, ratios=ratios, programs=alike))
    times = found.cells.set_index("implementation")["step_s"]
    assert times["one"] == times["again"] != times["other"]
    (block,) = found.comparisons
    assert block.claims["one"].ratio is block.claims["again"].ratio


def test_of_arms_with_equally_many_rounds_the_last_speaks_for_all(tmp_path: Path) -> None:
    """The order of a set would differ between processes, and with it the report."""
    names = [f"copy_{number}" for number in range(12)]
    ratios = {"jit_spmd": 1.0} | {name: 1.4 + 0.01 * n for n, name in enumerate(names)}
    alike = dict.fromkeys(names, ("1" * 16, "a" * 16, 6))
    (block,) = tables(tmp_path, replace(PLAN, ratios=ratios, programs=alike)).comparisons
    last = [arm for arm in block.arms if arm in names][-1]
    own = block.rounds.paired({last: block.baseline})[last]
    assert block.claims[last].ratio == estimate(own, block.process.between(last, block.baseline))


def test_arms_with_one_program_share_their_standing(tmp_path: Path) -> None:
    """The arm that left the rounds early has that of the one that stayed."""
    ratios = {"jit_spmd": 1.0, "slow": 1.5, "renamed": 1.5, "slower": 2.0}
    alike = dict.fromkeys(("slow", "renamed"), ("1" * 16, "a" * 16, 6))
    (block,) = tables(tmp_path, replace(PLAN, ratios=ratios, programs=alike)).comparisons
    throughput = block.rounds.throughput
    throughput[4:, block.rounds.arms.index("renamed")] = math.nan
    standings = block.standings
    assert standings.leaders == ("jit_spmd",)
    assert [*standings.tiers] == [("slow", "renamed"), ("slower",)]
    assert standings.behind["renamed"] == standings.behind["slow"]
    apart = rank(block.rounds, block.arms, block.alpha, block.process).behind["renamed"]
    low, high = standings.behind["renamed"]
    assert high - low < apart[1] - apart[0], "its own four rounds say less"
    one = {"jit_spmd": 1.0, "renamed": 1.0}
    alike = dict.fromkeys(one, ("1" * 16, "a" * 16, 6))
    (block,) = tables(tmp_path / "one", replace(PLAN, ratios=one, programs=alike)).comparisons
    assert sentences.Summary(block).text().endswith(" lead: they run the same program.")


def test_relations() -> None:
    def program(fingerprint: str, dispatch: str) -> StepProgram:
        return {
            "fingerprint": fingerprint, "dispatch": dispatch, "host_calls": 0, "operations": "",
        }  # fmt: skip

    one = program("1", "a")
    assert relation(one, program("1", "a")) == "same"
    assert (
        relation(one, program("1", "b"))
        == relation(program("1", ""), program("1", ""))
        == ("dispatch")
    )
    assert relation(one, program("2", "a")) == "different"
    assert relation(one, program("", "a")) == relation(program("", ""), one) == "unknown"


def test_a_line_has_the_bytes_of_all_its_operations() -> None:
    add, copy = (Operation("a.py:1", name, "f32[8]", 3, 32) for name in ("add", "copy"))
    assert LineDifference("a.py:1", [add], [copy, add._replace(runs=1)]).bytes == 7 * 32


def test_operations_differ_by_source_line_the_largest_first() -> None:
    add = Operation("update.py:42", "add", "f32[8]{0}", 5, 32)
    fewer, copy = add._replace(runs=3), Operation("step.py:7", "copy", "f32[8]{0}", 1, 32)
    large = copy._replace(opcode="dot", result="f32[64]{0}", bytes=256)
    assert differences([add], [add]) == []
    assert differences([add, copy], [fewer, large]) == [
        LineDifference("step.py:7", [copy], [large]),
        LineDifference("update.py:42", [add._replace(runs=2)], []),
    ]
    many = [copy._replace(source=f"step.py:{line}") for line in range(20)]
    *rows, rest = program_sentences.shown(differences(many, []))
    assert len(rows) == program_sentences.MOST_LINES
    assert rest == ("8 other lines", "8 operations", "0 operations")


def test_comments_of_xla_are_not_shown() -> None:
    result = "(f32[4]{0}, /*index=5*/f32[4,16]{1,0})"
    line = LineDifference("step.py:7", [Operation("step.py:7", "all-reduce", result, 1, 272)], [])
    (told,) = program_sentences.shown([line])
    assert told == ("step.py:7", "1 all-reduce (f32[4]{0}, f32[4,16]{1,0})", "")


def test_a_challenger_with_the_same_program_spends_no_error(tmp_path: Path) -> None:
    run = store.load(synthetic.write(tmp_path, PLAN))
    fared = judge_attempts(run, "jit_spmd", ["renamed", "other"], 2)
    for name, tested in (("renamed", False), ("other", True)):
        assert fared[name].row["tested"] is tested
        cells = fared[name].cells
        cells[0]["compile_s"], cells[0]["wire_bytes"], cells[1]["wire_bytes"] = 2.0, 2e6, 1e6
        said = [*program_sentences.changes(cells, "incumbent", {})]
        assert bool(said) is tested
        if name == "other":
            cells[0]["fingerprint"] = cells[1]["fingerprint"]  # but not the dispatch
            cells[0]["dispatch"] = "b" * 16
            assert [*program_sentences.changes(cells, "incumbent", run.programs)] == said
    sent = "sent bytes: 1.91 MiB, incumbent 977 KiB"
    assert sent in [each.replace(numbers.NARROW, " ") for each in said]


def test_explain_tells_how_programs_relate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    directory = synthetic.write(tmp_path / "reports", PLAN)

    def told(a: str, b: str) -> str:
        explain(f"{PLACE}/{a}", f"{PLACE}/{b}")
        return " ".join(capsys.readouterr().out.split())

    assert "are proved to be the same: equal programs, dispatched in the same way" in told(
        "renamed", "jit_spmd"
    )
    equal = told("nnx_jit", "jit_spmd")
    assert "so only its dispatch can make a difference" in equal
    assert "Only in the first" not in equal, "equal operations come from other lines"
    assert "this could not be determined" in told("tuned", "jit_spmd")
    different = told("other", "jit_spmd")
    assert "run different programs" in different
    assert "other.py:7" in different
    assert "jit_spmd.py:7" in different
    assert "update.py:42" not in different
    assert "--profile records them" in different
    synthetic.rewrite(directory, "cells", lambda row: row["program"].update(operations=packed([])))
    assert "Their operations are the same, so they differ in" in told("other", "jit_spmd")
    assert "Their operations" not in told("renamed", "jit_spmd")
    synthetic.write(tmp_path / "reports", replace(PLAN, traced=True), "traced")
    same = told("renamed", "jit_spmd")
    assert "proved to be the same" in same
    assert "is noise, or comes from memory placement" in same
    assert "main cause" not in same
    assert "step, as traced" in same
    assert "so only its dispatch" in told("nnx_jit", "jit_spmd")
    assert "run different programs" not in told("other", "jit_spmd")
