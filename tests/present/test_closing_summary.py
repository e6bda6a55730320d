"""The closing lines on the terminal say what the report says, in 80 columns."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
import synthetic
from rich.cells import cell_len
from rich.console import Console

from bench.analyse import cell_table
from bench.present import closing_summary
from bench.present.closing_summary import print_summary
from bench.records import store
from bench.records.cells import Block, StepOptions
from bench.records.mesh import MeshShape
from bench.records.paths import PROGRAM, ROOT

ENDINGS = {
    ("pmap", 0): ("wrong", "gradients are 2 times too large"),
    ("nnx_jit", 8): ("unsupported", "no such axis"),
    ("python_loop", 0): ("crashed", "ValueError: no\n  in a file with a name/" + "long/" * 30),
}


def closing_lines(directory, width=80):
    text = io.StringIO()
    run = store.load(directory)
    print_summary(Console(file=text, width=width), run, cell_table.build(run))
    return [line.rstrip() for line in text.getvalue().splitlines()]


def test_names_the_planted_fastest_with_its_ratio(tmp_path):
    ratios = synthetic.RATIOS | {"shard_map_psum": 0.8}
    plan = synthetic.Plan(devices=(1, 2), ratios=ratios, workloads=("linear-base", "gpt2-nano"))
    lines = closing_lines(synthetic.write(tmp_path, plan))
    assert lines[0] == "gpt2-nano, fp32, batch 64"
    assert lines[1].startswith("  Use shard_map_psum: it is fastest; ")
    assert lines[lines.index("linear-base, fp32, batch 64") + 1].startswith("  Use ")
    assert len(lines) <= 10
    lines = closing_lines(synthetic.write(tmp_path, replace(plan, workloads=("gpt2-nano",)), "one"))
    row = next(line for line in lines if "data=2 " in line)
    mesh, ms, unit, fastest, *rest = row.split()
    assert (mesh, unit, fastest, rest[:2]) == ("data=2", "ms", "shard_map_psum", ["is", "fastest;"])
    # The baseline's true time is 432 ms, the planted one's 0.8 of that.
    assert float(ms) == pytest.approx(346, rel=0.15)


def test_those_that_cannot_be_told_apart_lead_together(tmp_path):
    plan = synthetic.Plan(devices=(2,))
    text = " ".join(" ".join(closing_lines(synthetic.write(tmp_path, plan))).split())
    assert re.search(
        r"shard_map_p\w+ and shard_map_p\w+ lead: within [\d.]+ % of one another;", text
    )


def test_one_of_equal_programs_is_not_called_fastest(tmp_path):
    names = ("jit_spmd", "pmap", "slow")
    programs = dict.fromkeys(names[:2], ("f" * 16, "d" * 16, 0))
    ratios = dict(zip(names, (1.0, 1.0, 2.0), strict=True))
    plan = synthetic.Plan(devices=(1, 2), ratios=ratios, programs=programs)
    _, answer, *_ = closing_lines(synthetic.write(tmp_path, plan), 1000)
    use = "  Use jit_spmd: nothing is faster, but others run the same program; avoid slow: at least"
    assert answer.startswith(use)


def test_a_small_run_takes_ten_lines(tmp_path):
    ratios = {"jit_spmd": 1.0, "pmap": 1.1, "shard_map_psum": 0.9, "python_loop": 4.0}
    plan = synthetic.Plan(devices=(1, 2), ratios=ratios, launches=3, rounds=24)
    assert len(closing_lines(synthetic.write(tmp_path, plan))) <= 10


@pytest.mark.parametrize("run", sorted((ROOT / "reports").glob("gpt2-*")), ids=lambda run: run.name)
def test_the_answer_of_a_published_run_takes_ten_lines(run):
    console = Console(file=io.StringIO(), width=80)
    closing_summary.print_answers(console, store.load(run))
    assert len(console.file.getvalue().splitlines()) <= 10


def test_lines_end_with_their_text_in_a_wide_terminal(tmp_path):
    """Blanks up to its width would wrap where the lines are pasted."""
    text = io.StringIO()
    run = store.load(synthetic.write(tmp_path, synthetic.Plan(devices=(1, 2, 4), rounds=6)))
    closing_summary.print_answers(Console(file=text, width=1000), run)
    assert all(line == line.rstrip() for line in text.getvalue().splitlines())


def test_an_arm_alone_has_nothing_to_be_compared_with(tmp_path):
    plan = synthetic.Plan(devices=(1,), ratios={"pmap": 1.5})
    _, row, *_ = closing_lines(synthetic.write(tmp_path, plan))
    assert row.endswith("There is nothing to compare pmap with.")


def test_an_arm_whose_rivals_were_measured_apart_is_no_rival_itself(tmp_path):
    """The faster ones would otherwise be both what is compared and what is not ranked."""
    ratios = {"pmap": 1.0, "jit_spmd": 0.5, "nnx_jit": 0.6}
    plan = synthetic.Plan(devices=(1,), ratios=ratios, alone=frozenset({"jit_spmd", "nnx_jit"}))
    said = " ".join(" ".join(closing_lines(synthetic.write(tmp_path, plan))).split())
    assert "There is nothing to compare pmap with. Not ranked" in said
    assert "shared no rounds: jit_spmd and nnx_jit." in said


def test_what_is_alone_is_not_listed_as_its_own_rival(tmp_path):
    plan = synthetic.Plan(devices=(1,), ratios={"pmap": 1.0}, alone=frozenset({"pmap"}))
    _, row, *_ = closing_lines(synthetic.write(tmp_path, plan))
    assert row.endswith("There is nothing to compare pmap with.")


def test_one_further_reason_is_singular(tmp_path, monkeypatch):
    monkeypatch.setattr(closing_summary, "MOST", 1)
    endings = {(name, 1): ("crashed", name) for name in ("pmap", "nnx_jit")}
    plan = synthetic.Plan(devices=(1,), rounds=6, endings=endings)
    assert "and 1 more reason in the report" in closing_lines(synthetic.write(tmp_path, plan))


def test_failures_come_once_with_their_reason(tmp_path):
    plan = synthetic.Plan(devices=(1, 2), endings=dict([*ENDINGS.items()][:1]))
    lines = closing_lines(synthetic.write(tmp_path, plan))
    assert "wrong  mlp-base/data=1/b64/fp32/pmap and 1 more cell" in lines
    assert lines.count("  gradients are 2 times too large") == 1
    assert lines[-1] == "14 cells: 12 ok, 2 wrong"


def test_of_many_reasons_some_are_shown(tmp_path):
    endings = {("pmap", n): ("crashed", f"reason {n}") for n in range(1, 15)}
    plan = synthetic.Plan(devices=tuple(range(1, 15)), rounds=2, endings=endings)
    lines = closing_lines(synthetic.write(tmp_path, plan))
    assert sum("reason " in line for line in lines) == closing_summary.MOST
    assert "and 2 more reasons in the report" in lines


def test_nothing_right_and_nothing_measured(tmp_path):
    endings = {(name, 0): ("crashed", "no") for name in synthetic.RATIOS}
    lines = closing_lines(synthetic.write(tmp_path, synthetic.Plan(devices=(2,), endings=endings)))
    assert lines[1].endswith("Nothing has a time: crashed.")
    assert lines[-1] == "7 cells: 7 crashed"
    empty = store.create(tmp_path, synthetic.manifest(synthetic.Plan(), "empty"))
    assert closing_lines(empty) == ["0 cells: none"]


class OfBlocks(synthetic.Plan):
    """A plan of blocks that are given."""

    def given(self, *blocks: Block) -> OfBlocks:
        self._blocks = blocks
        return self

    def blocks(self):
        yield from self._blocks


def long_names() -> OfBlocks:
    options = StepOptions(
        "bf16", 16, remat="full", clip_norm=0.5, variant="latency_hiding_scheduler", processes=4
    )
    axes = ("data=2,fsdp=2,model=2,pipe=2", "data=1024,fsdp=16,model=8,pipe=4")
    ratios = {"jit_spmd": 1.0, "an_implementation_of_a_long_name_indeed": 0.0123}
    return OfBlocks(ratios=ratios, rounds=6, pace=1000.0, variants={options.variant: 1.0}).given(
        *(
            Block("gpt2", "nano", MeshShape.parse(mesh), batch, options)
            for mesh, batch in zip(axes, (64, 1_048_576), strict=True)
        )
    )


RUNS = {
    "several processes": synthetic.Plan(devices=(1, 2, 8), workloads=("gpt2-nano", "linear-base")),
    "failures": synthetic.Plan(devices=(2, 8), endings=ENDINGS),
    "undecided": synthetic.Plan(devices=(2,), rounds=5, noise=0.5),
    "long names": long_names(),
    "variants": synthetic.Plan(devices=(1, 2), rounds=6, variants={"": 1.0, "lhs" * 30: 1.1}),
    "many blocks": replace(
        synthetic.Plan(batches=("strong", "weak"), rounds=2),
        devices=tuple(range(1, 13)),
        workloads=("gpt2-nano", "linear-base"),
        ratios={"jit_spmd": 1.0, "pmap": 2.0},
    ),
}


@pytest.mark.parametrize("width", [40, 80])
@pytest.mark.parametrize("name", RUNS)
def test_no_line_is_wider_than_the_terminal(name, width, tmp_path):
    lines = closing_lines(synthetic.write(tmp_path, RUNS[name]), width)
    # A command that were broken could not be copied.
    prose = [line for line in lines if not line.startswith(f"  {PROGRAM} run --resume")]
    assert max(map(cell_len, prose)) <= width


def test_no_name_is_cut(tmp_path):
    lines = closing_lines(synthetic.write(tmp_path, RUNS["long names"]))
    assert not any("…" in line for line in lines)
    assert "an_implementation_of_a_long_name_indeed" in "".join(map(str.strip, lines))


def test_many_blocks_are_told_in_their_answer_alone(tmp_path):
    lines = closing_lines(synthetic.write(tmp_path, RUNS["many blocks"]))
    assert not [line for line in lines if line.startswith("  data=")]
    said = " ".join(" ".join(lines).split())
    assert (
        said.count("jit_spmd has the best estimate on average, but there are too few rounds for a ")
        == 2
    )
    assert len(lines) <= 10


def test_without_bounds_the_best_estimate_over_all_meshes_is_named(tmp_path):
    ratios = {"jit_spmd": 1.0, "pmap": 0.9, "zero1": 0.5}
    plan = synthetic.Plan(devices=(1, 2), ratios=ratios, rounds=2)
    text = " ".join(map(str.strip, closing_lines(synthetic.write(tmp_path, plan))))
    assert (
        "zero1 has the best estimate on average, but there are too few rounds for a bound." in text
    )


def test_leaders_that_may_be_far_apart_have_a_next_step(tmp_path):
    ratios = {"jit_spmd": 1.0, "pmap": 0.5, "zero1": 0.503}
    plan = synthetic.Plan(ratios=ratios, rounds=32, noise=0.1)
    lines = closing_lines(synthetic.write(tmp_path, plan))
    assert any(line.startswith("The leaders of a block may differ by ") for line in lines)
    assert lines[-1].endswith("--budget 60")


def test_of_many_subjects_some_are_shown(tmp_path, monkeypatch):
    monkeypatch.setattr(closing_summary, "MOST", 1)
    lines = closing_lines(synthetic.write(tmp_path, RUNS["several processes"]))
    assert "and 1 more workloads or options in the report" in lines
