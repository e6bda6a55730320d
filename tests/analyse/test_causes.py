"""Differences are attributed to what is computed, and said in words that are true."""

from __future__ import annotations

import io
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from rich.console import Console
from typer.testing import CliRunner

from bench.__main__ import app
from bench.analyse import cell_table
from bench.analyse.causes import Key, attribute, parts
from bench.commands.explain import _unknown, attributed, newest_run, whole_name
from bench.plan.option_values import BadInput
from bench.present.columns import formatted
from bench.present.explanation import causes_frame, show
from bench.present.trace_tables import reason
from bench.records import numbers, store
from tests import synthetic

if TYPE_CHECKING:
    from bench.records.trace_rows import OpTime, TraceRow

PLAN = synthetic.Plan(
    devices=(2,), ratios={"jit_spmd": 1.0, "slow": 1.5, "fast": 0.95}, traced=True
)
PLACE = "mlp-base/data=2/b64/fp32"


def operation(name: str, milliseconds: float = 0.0, **rest: Any) -> OpTime:
    found: dict[str, Any] = {
        "module": "jit_step", "op": name, "opcode": "fusion", "category": "elementwise",
        "phase": "update", "source": "a.py:1", "shapes": ["f32[4,2]"], "transposes": False,
        "count": 1.0, "compute_ns": 1e6 * milliseconds, "wait_ns": 0.0, "move_ns": 0.0,
    }  # fmt: skip
    return cast("OpTime", found | rest)


def plain(text: str) -> str:
    """With the spaces and signs of a keyboard."""
    return text.replace(numbers.NARROW, " ").replace(numbers.MINUS, "-")


def trace(
    *ops: OpTime,
    name: str = "",
    dispatch: float = 1.0,
    idle: float = 1.0,
    untraced: float | None = None,
) -> TraceRow:
    """Of one step on one device, which took `untraced` milliseconds without a profiler."""
    compute = sum(op["compute_ns"] for op in ops if op["category"] != "control")
    wait, move = sum(op["wait_ns"] for op in ops), sum(op["move_ns"] for op in ops)
    total = compute + wait + move + 1e6 * (dispatch + idle)
    found: dict[str, Any] = {
        "steps": [
            {
                "step": 0, "device": 0, "total_ns": total, "dispatch_ns": 1e6 * dispatch,
                "compute_ns": compute, "wait_ns": wait, "move_ns": move, "idle_ns": 1e6 * idle,
                "overlap_ns": 0,
            }
        ],
        "counted": [0], "ops": list(ops), "cell": f"{PLACE}/{name}",
        "untraced_ns": [total if untraced is None else 1e6 * untraced],
    }  # fmt: skip
    return cast("TraceRow", found)


def test_causes_add_up_to_the_difference() -> None:
    a = trace(
        operation("dot", 5, category="matmul"),
        operation("loop", 0.5, category="control", opcode="while"),
        operation("sum", category="collective", opcode="all-reduce", wait_ns=2e6, move_ns=3e6),
        dispatch=2,
    )
    b = trace(
        operation("dot.1", 3, category="matmul"),
        operation("dot.2", 1, category="matmul"),
        operation("more", 1, source="b.py:2"),
    )
    found = attribute(a, b, 1.0)
    assert found.traced_a == pytest.approx(0.013)
    assert found.traced_b == pytest.approx(0.007)
    assert sum(one.difference for one in found.causes) == pytest.approx(0.006)
    by_category = {one.key.category: 1e3 * one.difference for one in found.causes}
    assert by_category == pytest.approx(
        {
            "matmul": 1, "elementwise": -1, "wait": 2, "collective": 3, "control": 0.5,
            "dispatch": 1, "idle": -0.5,
        }
    )  # fmt: skip
    assert found.causes[0].key == Key("collective", sizes=("all-reduce",))
    sizes = [abs(one.difference) for one in found.causes]
    assert sizes == sorted(sizes, reverse=True)


def test_operations_are_matched_whatever_their_names_and_layouts() -> None:
    a = trace(operation("fusion.7", 3, shapes=["f32[1,1024,256]"], transposes=True))
    b = trace(
        operation("loop_fusion", 1, shapes=["f32[256,1024]"]),
        operation("fusion.7", 1, shapes=["f32[256,8]"]),
        operation("fusion.8", 1, phase="forward", shapes=["f32[256,1024]"]),
    )
    matched = {
        (one.key.phase, one.key.sizes): (one.a.ops, one.b.ops)
        for one in attribute(a, b, 1.0).causes
        if one.key.category == "elementwise"
    }
    assert matched == {
        ("update", ("f32[256,1024]",)): (("fusion.7",), ("loop_fusion",)),
        ("update", ("f32[8,256]",)): ((), ("fusion.7",)),
        ("forward", ("f32[256,1024]",)): ((), ("fusion.8",)),
    }


def test_the_share_explained() -> None:
    def explained(untraced: float) -> float:
        """Where A is traced to take twice as long as B, whose step is 10 ms."""
        traces = trace(operation("x", 18), untraced=untraced), trace(operation("x", 8))
        found = attribute(*traces, 1.0)
        assert found.traced_a == pytest.approx(2 * found.traced_b)
        return found.explained

    assert explained(20) == pytest.approx(1)
    assert explained(22.5) == pytest.approx(0.8), "the traces show less"
    assert explained(18) == pytest.approx(1.25), "the traces show more"
    assert explained(9) == pytest.approx(-10), "the traces show the opposite"
    assert explained(10) == 0


def test_idle_time_explains_nothing() -> None:
    found = attribute(trace(idle=11), trace(idle=1), 6.0)
    assert found.traced_a == pytest.approx(6 * found.traced_b)
    assert found.explained == 0
    said = reason(found)
    assert said.main == ""
    assert plain(said.sentence).endswith(
        ", but the traces do not show why (it took 6.00 times as long just before tracing, "
        "6.00 times as long traced)."
    )


def test_a_reason_names_causes_on_both_sides() -> None:
    a = trace(
        operation("x", 9, transposes=True), operation("y", 3, source="a.py:2", transposes=True),
        name="jit_spmd",
    )  # fmt: skip
    b = trace(operation("x", 1), operation("y", 1, source="a.py:2"), dispatch=3, name="pmap")
    found = reason(attribute(a, b, 14 / 6))
    assert plain(found.sentence) == (
        "With a wait after every step, jit_spmd takes 2.33 times as long as pmap. The main cause: "
        "elementwise operations in the update, which transpose in jit_spmd but not in pmap "
        "(+10.0 ms, x and y at a.py:1 and :2). This is partly offset by waiting for a launch or "
        "its inputs (-2.00 ms). Together with all smaller causes, this adds up to 100 % of the "
        "difference just before tracing, when jit_spmd took 2.33 times as long."
    )
    assert (found.main, found.seconds) == (
        "elementwise operations in the update that transpose", pytest.approx(0.01)
    )  # fmt: skip
    opposite = reason(attribute(b, a, 6 / 14))
    assert "57.1 % less time than jit_spmd" in plain(opposite.sentence)
    assert "which transpose in jit_spmd but not in pmap (-10.0 ms" in plain(opposite.sentence)


def test_a_reason_keeps_to_the_direction_that_was_timed() -> None:
    """What A idles less than B must not turn its named causes around."""
    a = trace(operation("x", 20), operation("dot", 4, category="matmul"), idle=0, untraced=36)
    b = trace(operation("x", 10), operation("dot", 5, category="matmul"), idle=10)
    found = attribute(a, b, 1.4)
    assert found.traced_a == pytest.approx(25 / 26 * found.traced_b)
    said = reason(found)
    assert (said.main, said.seconds) == (
        "elementwise operations in the update",
        pytest.approx(0.01),
    )
    equal = attribute(
        trace(operation("x", 5), idle=0, untraced=10), trace(operation("x", 1), idle=4), 1.5
    )
    assert equal.traced_a == equal.traced_b
    assert reason(equal).main == "elementwise operations in the update"


def test_traces_of_another_direction_explain_nothing() -> None:
    traces = trace(operation("x", 18)), trace(operation("x", 8))
    assert reason(attribute(*traces, 2.0)).main
    assert not reason(attribute(*traces, 0.9)).main


def test_the_parts_of_a_step() -> None:
    (block,) = PLAN.blocks()
    cells = synthetic.attempt(PLAN, block, 0, "all", ["jit_spmd"])[1]
    (row,) = synthetic.traces(PLAN, block, cells)
    seconds = synthetic.base_seconds(PLAN, block)
    assert parts(row)["dispatch"] == pytest.approx(0.1 * seconds)


def explain(a: str, b: str, run: str = ""):
    """As the command does."""
    found = store.load(Path("reports", run)) if run else newest_run(a, b)
    return attributed(a, b, found.directory, cell_table.build(found))


@pytest.fixture
def reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "reports"


def test_two_cells_of_a_stored_run_are_explained(reports: Path) -> None:
    synthetic.write(reports, PLAN)
    found = explain(f"{PLACE}/slow", f"{PLACE}/jit_spmd")
    assert found.timed == pytest.approx(1.5, abs=0.05)
    assert found.explained > 0.9
    sentence = reason(found).sentence
    assert sentence.startswith("With a wait after every step, slow takes ")
    assert "which transpose in slow but not in jit_spmd" in sentence
    frame = causes_frame([found])
    assert frame["difference_s"].sum() == pytest.approx(0.5 * synthetic.base_seconds(
        PLAN, next(PLAN.blocks())), rel=1e-3)  # fmt: skip
    update = frame.set_index("what").loc["elementwise operations in the update"]
    assert (update["a_ops"], update["b_ops"]) == ("fusion_in_slow", "fusion_in_jit_spmd")
    assert update["source"] == "optax/_src/transform.py:283"

    console = Console(file=io.StringIO(), width=80)
    show(console, found, "")
    shown = cast("io.StringIO", console.file).getvalue()
    assert max(map(len, shown.splitlines())) <= 80
    assert "transposes in A" in shown
    assert "step, as traced" in shown


def test_a_cell_is_named_by_an_end_that_no_other_has(reports: Path) -> None:
    programs = {"slow": ("1" * 16, "a" * 16, 6), "jit_spmd": ("2" * 16, "a" * 16, 6)}
    directory = synthetic.write(reports, replace(PLAN, programs=programs))
    done = CliRunner().invoke(app, ["explain", "slow", "jit_spmd"])
    assert done.exit_code == 0, done.output
    told = " ".join(done.stdout.split())
    assert f"A is {PLACE}/slow, B is {PLACE}/jit_spmd" in told
    assert told.startswith("Side by side, slow took ")
    assert told.count("With a wait after every step, slow takes") == 1
    assert "Only in the first" not in told
    whole = CliRunner().invoke(app, ["explain", "slow", "jit_spmd", "--all"]).stdout
    assert "Only in the first" in whole
    synthetic.rewrite(directory, "blocks", lambda row: row.update(steps=1))
    single = CliRunner().invoke(app, ["explain", "slow", "jit_spmd"]).stdout
    assert single.startswith("With a wait after every step, slow takes "), "which is the same ratio"
    cells = [f"{PLACE}/slow", f"{PLACE}/jit_spmd", "other/slow"]
    assert whole_name("jit_spmd", cells) == f"{PLACE}/jit_spmd"
    assert whole_name("slow", cells) == "slow"
    assert whole_name("spmd", cells) == "spmd"


def test_a_screen_of_causes_is_shown_unless_all_are_asked_for(reports: Path) -> None:
    synthetic.write(reports, PLAN)
    found = explain(f"{PLACE}/slow", f"{PLACE}/jit_spmd")
    cause = found.causes[0]
    many = [replace(cause, key=cause.key._replace(source=f"line {n}")) for n in range(30)]
    found = replace(found, causes=many)
    lines = {}
    for every in (False, True):
        console = Console(file=io.StringIO(), width=200)
        show(console, found, "", every=every)
        lines[every] = cast("io.StringIO", console.file).getvalue().splitlines()
    assert "20 others" in "\n".join(lines[False])
    assert len(lines[False]) < 24 < len(lines[True])


def test_the_newest_run_with_both_cells_is_taken(reports: Path) -> None:
    for number, plan in enumerate([PLAN, replace(PLAN, ratios={"jit_spmd": 1.0})]):
        folder = synthetic.write(reports, plan, f"run{number}")
        os.utime(folder / "launches", (1e9 + number, 1e9 + number))
    assert newest_run(f"{PLACE}/slow", f"{PLACE}/jit_spmd").directory.name == "run0"
    (reports / "broken/launches").mkdir(parents=True)
    assert newest_run(f"{PLACE}/slow", f"{PLACE}/jit_spmd").directory.name == "run0"


def test_a_run_in_which_a_name_is_not_unique_is_passed_over(reports: Path) -> None:
    """Even if only one of the cells that it means has a trace."""
    for number, devices in enumerate([(2,), (2, 4)]):
        folder = synthetic.write(reports, replace(PLAN, devices=devices), f"run{number}")
        os.utime(folder / "launches", (1e9 + number, 1e9 + number))
    launches = synthetic.launches_of(folder)
    for file in synthetic.launch_files(folder):
        file.unlink()
    for launch in launches:
        launch["traces"] = [row for row in launch["traces"] if row["devices"] == 2]
        store.add_launch(folder, **launch)
    assert newest_run(f"{PLACE}/slow", f"{PLACE}/jit_spmd").directory.name == "run1"
    assert newest_run("slow", "jit_spmd").directory.name == "run0"


def test_a_published_run_is_explained_only_if_it_is_named(
    reports: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synthetic.write(reports, PLAN)
    monkeypatch.setattr("bench.commands.explain.tracked_folders", lambda _: {"synthetic"})
    with pytest.raises(BadInput, match="no run in reports/ has traces; record some"):
        explain(f"{PLACE}/slow", f"{PLACE}/jit_spmd")
    assert explain(f"{PLACE}/slow", f"{PLACE}/jit_spmd", "synthetic").a == f"{PLACE}/slow"


def test_cells_that_cannot_be_explained(reports: Path) -> None:
    with pytest.raises(BadInput, match="no run in reports/ has traces; record some"):
        explain(f"{PLACE}/slow", f"{PLACE}/jit_spmd")
    programs = {"slow": ("program", "path", 1)}
    synthetic.write(reports, replace(PLAN, traced=False, programs=programs), "compiled")
    with pytest.raises(BadInput, match=f"program or trace of slwo; there are {PLACE}/slow"):
        newest_run("slwo", "slow")
    synthetic.write(reports, PLAN)
    same = CliRunner().invoke(app, ["explain", "slow", f"{PLACE}/slow"])
    assert (same.exit_code, same.stderr.strip()) == (4, "error: name two different cells")
    with pytest.raises(BadInput, match="program or trace of mlp-base/nowhere; there are mlp-base"):
        explain("mlp-base/nowhere", f"{PLACE}/slow")
    with pytest.raises(BadInput) as caught:
        explain("nowhere", "slow")
    assert len(caught.value.faults) == 1, "the end of a name is not missing"
    with pytest.raises(
        BadInput, match="synthetic has no cell mlp-base/nowhere; there are mlp-base"
    ):
        explain("mlp-base/nowhere", f"{PLACE}/slow", "synthetic")
    synthetic.write(reports, replace(PLAN, traced=False), "untraced")
    with pytest.raises(BadInput, match="has no trace in reports/untraced; record it"):
        explain(f"{PLACE}/fast", f"{PLACE}/slow", "untraced")
    with pytest.raises(BadInput, match=r"untraced has no cell fats; there are .*/fast") as caught:
        explain("fats", f"{PLACE}/slow", "untraced")
    assert len(caught.value.faults) == 1
    synthetic.write(reports, replace(PLAN, devices=(4,), ratios={"fast": 1.0}), "apart")
    with pytest.raises(BadInput, match="has programs or traces of both"):
        explain("mlp-base/data=4/b64/fp32/fast", f"{PLACE}/slow")


def test_a_name_that_several_cells_end_in_is_told_from_an_unknown_one() -> None:
    cells = [f"{PLACE}/slow", "other/slow", "other/fast"]
    both = f"other/slow, {PLACE}/slow"
    assert _unknown("slow", cells, "none") == f"several cells end in slow: {both}"
    assert _unknown("slow", [], "no cell") == "no cell slow; there are none"
    assert _unknown("sloww", cells, "there is no").startswith("there is no sloww; there are")


def test_the_command_names_what_was_set_aside(reports: Path) -> None:
    synthetic.write(reports, replace(PLAN, launches=2))
    path = synthetic.launch_files(reports / "synthetic")[-1]
    path.write_bytes(path.read_bytes()[:-10])
    done = CliRunner().invoke(app, ["explain", f"{PLACE}/slow", f"{PLACE}/jit_spmd"])
    assert done.exit_code == 0, done.output
    told = f"warning: reports/synthetic: set aside: launches/{path.name}: differs from"
    assert done.stderr.startswith(told)
    assert "_launch2.jsonl" in done.stderr
    assert "With a wait after every step" in " ".join(done.stdout.split())


@pytest.mark.parametrize("compiled", [False, True])
def test_a_step_in_a_process_of_its_own_is_compared_without_its_trace(
    reports: Path, compiled: bool
) -> None:
    programs = {"jit_spmd": ("", "", 0), "slow": ("f", "d", 1)} if compiled else {}
    plan = replace(PLAN, ratios={"jit_spmd": 1.0, "slow": 1.5}, programs=programs)
    directory = synthetic.write(reports, plan)
    own = {"versions": {"torch": "2.13.0"}, "processes": 1, "threads": 1, "asking_ns": 90_000}
    (launch,) = synthetic.launches_of(directory)
    (file,) = synthetic.launch_files(directory)
    file.unlink()
    for row in launch["cells"]:
        if row["implementation"] == "jit_spmd":
            row["foreign"] = own
    launch["traces"] = [row for row in launch["traces"] if row["implementation"] == "slow"]
    store.add_launch(directory, **launch)
    done = CliRunner().invoke(app, ["explain", f"{PLACE}/slow", f"{PLACE}/jit_spmd"])
    assert done.exit_code == 0, done.output
    told = plain(" ".join(done.stdout.split()))
    assert ("Only in the first" in told) == compiled, (
        "a step of another jax has a program to compare"
    )
    assert re.search(
        r"Side by side, slow took 1\.[45]\d* times as long as jit_spmd \(surely .* more\)", told
    )
    assert "A step of mlp-base/data=2/b64/fp32/slow takes" in told
    matmul, elementwise = (
        float(re.search(rf"{part} [\d.]+ ms ([\d.]+) %", told)[1])
        for part in ("matrix products", "elementwise")
    )
    assert matmul == pytest.approx(70 / 1.5, abs=2), "seven tenths of the baseline's step"
    assert elementwise == pytest.approx(60 / 1.5, abs=2), "a tenth, and what it takes longer"


def test_differences_have_a_sign() -> None:
    assert plain(formatted(0.0152, "+s")) == "+15.2 ms"
    assert plain(formatted(-0.0152, "+s")) == "-15.2 ms"
