"""A run's steps elsewhere: what is asked, predicted, drawn and said."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import pandas as pd
import pytest
import synthetic
from rich.console import Console
from typer.testing import CliRunner

from bench import __main__ as command_line
from bench.analyse import cell_table
from bench.commands import exits
from bench.commands.shared_options import load_run
from bench.measure import catalogue
from bench.measure.environment import child_environment
from bench.measure.processes.guarded import ask
from bench.plan.option_values import BadInput
from bench.plan.selection import selector
from bench.present import print_plots
from bench.present import report_files as reports
from bench.present.gallery.published_run import publish
from bench.present.terminal import counter
from bench.project import compiled_programs as compiling
from bench.project import (
    mesh_ranking,
    prediction_tables,
    program_formulae,
    projection,
    projection_page,
)
from bench.project.calibration import Trial
from bench.project.compiled_programs import NoProgram, Program
from bench.project.hardware import hardware
from bench.project.program_formulae import Formula
from bench.project.projection import Projection, chip_counts, project, targets
from bench.records import derived_files, store
from bench.records.cells import Block, Cell, StepOptions
from bench.records.mesh import AXES, MeshShape
from bench.records.paths import ROOT
from bench.records.step_programs import Communication

RUN = synthetic.Plan(
    batches=("strong", "weak"), ratios={"jit_spmd": 1.0, "zero1": 1.25, "python_loop": 4.0}
)
GB = 1e9


def compiled(cell: Cell, gradients: float = 0.1 * GB, memory: float = 1 * GB) -> Program:
    """A step of 10 TFLOP a sample, which all-reduces its gradients over all axes but `model`."""
    block = cell.block
    axes = [name for name, size in block.mesh.axes if size > 1]
    rows = [
        Communication(
            kind="all-reduce", axes=[axis], members=block.mesh.axis(axis), dtypes=["f32"], count=4,
            payload_bytes=int(gradients), wire_bytes=gradients,
        )
        for axis in axes
    ]  # fmt: skip
    flops = 1e13 * block.batch
    return Program(
        cell=cell, flops=flops / block.mesh.size, memory_bytes=memory,
        state_bytes=0.5 * GB, communication=rows, model_flops=flops, units=block.batch,
        unit="samples", read="compiled",
    )  # fmt: skip


H100 = [hardware("h100-sxm")]


@dataclass
class Compiler:
    """Stands in for the one that starts jax; notes what it is asked."""

    asked: list[Cell] = field(default_factory=list)
    odd: int = 0
    """Devices of the mesh on which more is computed than anywhere else."""

    def __call__(
        self, cells: Sequence[Cell], *_: object, **__: object
    ) -> list[Program | NoProgram]:
        self.asked += cells
        return [
            NoProgram(cell, "too large to compile")
            if cell.block.mesh.size > compiling.MOST_DEVICES
            else replace(compiled(cell), flops=1e20)
            if cell.block.mesh.size == self.odd
            else compiled(cell)
            for cell in cells
        ]

    def sizes(self) -> set[int]:
        return {cell.block.mesh.size for cell in self.asked}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return synthetic.write(tmp_path_factory.mktemp("reports"), RUN)


def projected(folder: Path, chips: tuple[int, ...] = (8, 16, 32), **changes) -> Projection:
    asked = {"precision": "bf16", **changes}
    return project(store.load(folder), H100, chips, Compiler(), **asked)


@pytest.mark.parametrize(
    ("text", "counts"),
    [("8", [8]), ("8,16,24", [8, 16, 24]), ("8..64", [8, 16, 32, 64]), ("3..8 6,3", [3, 6])],
)
def test_numbers_of_chips(text, counts) -> None:
    assert chip_counts(text) == counts


@pytest.mark.parametrize("text", ["", "x", "8..x", "0", "16..8", "8..65537", "-8", "8.5"])
def test_what_is_no_number_of_chips_is_an_error(text) -> None:
    with pytest.raises(ValueError, match=r"number|too large"):
        chip_counts(text)


def test_hardware_is_known_or_an_error_that_lists_the_known() -> None:
    faults: list[str] = []
    found, _ = targets(faults, "h100-sxm, tpu-v5p h100-sxm", "8")
    assert [one.name for one in found] == ["h100-sxm", "tpu-v5p"]
    assert not faults
    for names, told in (
        ("", "--hardware: name at least one chip"),
        ("h100", r"--hardware: unknown hardware 'h100'; did you mean .*h100-sxm"),
        ("tpu-v5e", "--chips 24: tpu-v5e: there is no slice of 24 chips; there are 1, 4, 8"),
    ):
        faults.clear()
        targets(faults, names, "16,24")
        (fault,) = faults
        assert re.match(told, fault)


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("", "a b c"),
        ("jit_spmd", "a"),
        ("data=2", "b"),
        ("JIT or loop", "a b c"),
        ("not loop", "a b"),
        ("(jit and not data=2) or loop", "a c"),
    ],
)
def test_cells_are_selected_by_words(expression, names) -> None:
    cells = {
        "a": "mlp-base/data=1/b8/fp32/jit_spmd",
        "b": "mlp-base/data=2,model=2/b8/fp32/nnx_jit",
        "c": "mlp-base/data=16/b8/fp32/python_loop",
    }
    selected = selector(expression)
    assert " ".join(name for name, cell in cells.items() if selected(cell)) == names


@pytest.mark.parametrize("expression", ["a b", "(a", "and", "not", "a or", "()"])
def test_a_selection_that_cannot_be_read_is_an_error(expression) -> None:
    with pytest.raises(BadInput, match="is not an expression of words"):
        selector(expression)


def test_this_machine_is_calibrated_and_each_mesh_left_out(folder) -> None:
    found = projected(folder)
    (subject,) = found.here
    assert subject == "mlp-base, fp32"
    calibrated = found.here[subject]
    assert set(calibrated.errors) == {"data=1", "data=2", "data=4", "data=8"}
    assert calibrated.calibration.spread is not None
    # The slower one reaches a smaller share of the same products.
    shares = calibrated.calibration.shares
    assert shares["zero1"] < shares["jit_spmd"]
    for one in calibrated.tried:
        assert math.isfinite(one.predicted_s)
        # Only measured on the mesh that was left out.
        if one.cell.implementation == "python_loop":
            continue
        assert one.predicted_s == pytest.approx(one.measured_s, rel=0.6)


def test_what_the_host_moves_is_not_predicted(folder) -> None:
    found = projected(folder)
    assert {one.cell.implementation for one in found.missing} == {"python_loop"}
    assert "contain none of the communication between its devices" in found.missing[0].reason


def test_weak_scaling_keeps_the_batch_of_a_device(folder) -> None:
    found = projected(folder)
    points = [p for p in found.points if p.curve.implementation == "jit_spmd"]
    assert {(p.chips, p.prediction.program.cell.block.batch) for p in points if p.prediction} == {
        (8, 512), (16, 1024), (32, 2048),
    }  # fmt: skip
    by_chips = {p.chips: p for p in points}
    assert by_chips[8].efficiency == 1
    first, last = by_chips[8].prediction, by_chips[32].prediction
    assert first is not None
    assert last is not None
    assert by_chips[32].efficiency == first.best_s / last.best_s
    low, high = by_chips[32].efficiency_low, by_chips[32].efficiency_high
    assert low is not None
    assert high is not None
    assert low <= first.best_s / last.best_s <= high <= 1


@pytest.mark.parametrize(
    ("mesh", "batch", "grown"),
    [
        ("data=2", 8, 32),
        # Of a mesh with other axes, a device need not have a whole number of samples.
        ("data=2,model=4", 12, 48),
        ("data=1,model=8", 2, 8),
        ("data=2,fsdp=2,pipe=2", 4, 16),
        ("model=2", 6, 6),
    ],
)
def test_weak_scaling_begins_with_the_step_that_was_measured(mesh, batch, grown) -> None:
    ran = Cell(Block("mlp", "base", MeshShape.parse(mesh), batch, StepOptions()), "jit_spmd")
    (curve,) = projection._curves([compiled(ran)], "weak", None)
    chips = ran.block.mesh.size
    assert curve.cell(chips) == ran
    assert curve.cell(4 * chips).block.batch == grown


def test_only_steps_of_the_same_options_are_drawn_into_a_curve(folder) -> None:
    found = projected(folder)
    (curve,) = {p.curve for p in found.points if p.curve.implementation == "jit_spmd"}
    (calibrated,) = found.here.values()
    cells = projection_page._measured(calibrated.tried, curve)
    # Of two scalings, the one of which this is.
    assert [(one.cell.block.mesh.size, one.cell.block.batch) for one in cells] == [
        (1, 64),
        (2, 128),
        (4, 256),
        (8, 512),
    ]

    def drawn(*options: StepOptions) -> list[StepOptions]:
        ran = cells[0].work
        blocks = [replace(ran.program.cell.block, options=one) for one in options]
        programs = [
            replace(ran.program, cell=replace(ran.program.cell, block=block)) for block in blocks
        ]
        works = [replace(ran, program=program) for program in programs]
        more = [Trial(one, 1.0, "", 1.0) for one in works]
        return [one.cell.block.options for one in projection_page._measured(more, curve)]

    plain, others = StepOptions("fp32"), [
        StepOptions("fp32", processes=2), StepOptions("fp32", variant="lhs"),
    ]  # fmt: skip
    assert drawn(StepOptions("fp32", microbatches=4), StepOptions("fp32", remat="full")) == []
    assert drawn(*others, plain) == [plain]
    assert drawn(plain, StepOptions("bf16")) == [StepOptions("bf16")]
    assert drawn(others[1]) == [others[1]]


def test_strong_scaling_keeps_the_batch_as_far_as_it_divides(folder) -> None:
    found = projected(folder, chips=(8, 64, 128), scaling="strong")
    points = {p.chips: p for p in found.points if p.curve.implementation == "jit_spmd"}
    one, other = points[8].prediction, points[64].prediction
    assert one is not None
    assert other is not None
    assert (one.program.cell.block.batch, other.program.cell.block.batch) == (64, 64)
    assert points[64].efficiency == pytest.approx(one.best_s * 8 / (other.best_s * 64))
    assert points[128].prediction is None
    assert points[128].reason.startswith("other axes do not divide the chips, or shards and")


def test_of_many_meshes_few_are_compiled(folder) -> None:
    compiler = Compiler()
    chips = chip_counts("4..4096")
    found = project(store.load(folder), H100, chips, compiler, precision="bf16")
    # Below the smallest that the formula is of, too.
    assert compiler.sizes() == {4, 8, 64, 256, 1024}
    read = {p.chips: p.prediction.program.read for p in found.points if p.prediction is not None}
    compiled_ = {chips for chips, how in read.items() if how == "compiled"}
    assert compiled_ == compiler.sizes()
    assert set(read) == set(chips)
    assert all(isinstance(one, Formula) and one.error < 1e-9 for one in found.formulae.values())
    assert {p.chips for p in found.points if p.reason} == set()


def test_what_is_below_all_checks_of_a_formula_is_compiled() -> None:
    block = Block("mlp", "base", MeshShape.parse("data=1,model=8"), 4, StepOptions("bf16"))
    curve = program_formulae.Curve(block, "jit_spmd", "weak")
    compiler = Compiler()
    program_formulae.programs_along([curve], chip_counts("8..4096"), compiler)
    assert compiler.sizes() == {8, 16, 32, 64, 256, 1024}


def test_where_no_formula_holds_every_mesh_is_compiled(folder) -> None:
    compiler = Compiler(odd=256)
    chips = chip_counts("8..2048")
    found = project(store.load(folder), H100, chips, compiler, precision="bf16")
    assert compiler.sizes() == {8, 16, 32, 64, 128, 256, 512, 1024, 2048}
    assert all("at data=256, flops is 1e+20" in one for one in found.formulae.values())
    reasons = {p.reason for p in found.points if p.prediction is None}
    assert reasons == {"too large to compile"}
    assert len(compiler.asked) == len(set(compiler.asked))


def test_each_program_is_compiled_once_for_all_hardware(folder) -> None:
    compiler = Compiler()
    wanted = [*H100, hardware("h200")]
    found = project(store.load(folder), wanted, [8, 16], compiler, precision="bf16")
    assert len(compiler.asked) == len(set(compiler.asked)) == len(found.points) / 2


def test_a_run_that_nothing_can_be_made_of_is_refused(folder, tmp_path) -> None:
    with pytest.raises(BadInput, match="no timed cell of synthetic is selected"):
        projected(folder, select=selector("nonsense"))
    compiler = Compiler()
    with pytest.raises(BadInput, match="tpu-v5p has no published peak for fp32; it has bf16"):
        project(store.load(folder), [hardware("tpu-v5p")], [8], compiler)
    assert not compiler.asked, "nothing is compiled for what cannot be projected"
    bare = synthetic.write(tmp_path, replace(RUN, devices=(1,), rounds=2))

    def without(row) -> None:
        row["ceilings"] = None

    synthetic.rewrite(bare, "blocks", without)
    with pytest.raises(BadInput, match="has no ceilings"):
        projected(bare)


def test_the_pages_tell_predicted_from_measured(folder, tmp_path) -> None:
    found = projected(folder)
    drawn = projection_page.draw(found)
    made = projection_page.build(
        found, drawn, [hardware("h100-sxm")], tmp_path / "projection", ["RUN"]
    )
    html, markdown = made.read_text("utf-8"), made.with_suffix(".md").read_text("utf-8")
    for text in (html, markdown):
        for said in ("predicted, not measured", "h100-sxm", "MaxText 128B", "jit_spmd"):
            assert said in text
        # A published run has another name, and its projection is copied.
        assert "synthetic" not in text
    policy = "default-src &#39;none&#39;"
    assert policy in html or policy.replace("&#39;", "'") in html
    assert "<script" not in html
    assert 'src="data:image/svg+xml' in html
    assert html.count("src=") == html.count("<img ") == 1
    # Implementations of which the same is predicted are one line.
    (chart,) = drawn
    assert chart.title == "mlp-base, bf16 on h100-sxm: data=N, batch 64 per shard"
    assert (tmp_path / "projection/plots" / f"{chart.plot.slug}.svg").is_file()
    assert html.index("Other hardware: predicted") < html.index("predicted and measured")
    frame = pd.read_parquet(tmp_path / "projection/predictions.parquet")
    assert len(frame) == len(found.points)
    assert list(frame["chips"].unique()) == [8, 16, 32]
    there = frame[frame["implementation"] == "jit_spmd"]
    assert (there["step_low_s"] <= there["step_s"]).all()
    assert (there["step_s"] <= there["step_high_s"]).all()


def test_the_report_leads_to_the_projection_that_is_there(tmp_path, monkeypatch) -> None:
    undrawn = print_plots.Figures({"mlp-base, fp32": []}, {})
    monkeypatch.setattr(print_plots, "draw", lambda *_, **__: undrawn)
    directory = synthetic.write(tmp_path, replace(RUN, devices=(1, 2), rounds=2))
    run = store.load(directory)
    page = "projection/projection.html"
    for there in (False, True):
        if there:
            (directory / page).parent.mkdir()
            (directory / page).write_text("", "utf-8")
        reports.build(run)
        for name in ("report.html", "report.md"):
            assert (page in (directory / name).read_text("utf-8")) is there


@pytest.mark.parametrize(
    ("chips", "powers"), [(1, ()), (2, (1,)), (8, (3,)), (64, (6,)), (6, (1, 1))]
)
def test_a_plan_has_all_meshes(chips, powers) -> None:
    """Each prime factor of the chips goes to any axis."""
    shapes = math.prod(math.comb(power + len(AXES) - 1, power) for power in powers)
    found = list(mesh_ranking.meshes(chips))
    assert len(set(map(str, found))) == len(found) == shapes
    assert {mesh.size for mesh in found} == {chips}


def test_meshes_of_many_chips_are_found_by_their_factors() -> None:
    """Of all products of divisors, 33 million, only these fit."""
    assert sum(1 for _ in mesh_ranking.meshes(840)) == math.comb(8, 3) * 6**3


def planned(memory: dict[str, float], chips: int = 4) -> mesh_ranking.Plan:
    def read(cells: Sequence[Cell]) -> list[Program | NoProgram]:
        return [
            NoProgram(cell, "mesh axis pipe is not supported", "unsupported")
            if cell.block.mesh.axis("pipe") > 1
            else compiled(cell, memory=memory[cell.implementation])
            for cell in cells
        ]

    return mesh_ranking.rank(
        ("mlp", "base"), 64, StepOptions("bf16"), hardware("h100-sxm"), chips, list(memory), read
    )


def test_a_plan_ranks_what_fits_and_marks_the_rest(tmp_path) -> None:
    found = planned({"small": 1 * GB, "large": 81 * GB})
    fits = [one.fits for one in found.ranked]
    assert fits == sorted(fits, reverse=True)
    assert set(fits) == {True, False}
    times = [one.best_s for one in found.ranked if one.fits]
    assert times == sorted(times)
    assert not found.refused
    on_pipe = [mesh for mesh in mesh_ranking.meshes(4) if mesh.axis("pipe") > 1]
    assert found.unsupported == {"mesh axis pipe is not supported": 2 * len(on_pipe)}
    console = Console(file=io.StringIO(), width=80)
    mesh_ranking.show(console, found)
    lines = console.file.getvalue().splitlines()
    shown = fits[: mesh_ranking.SHOWN]
    assert sum(line.rstrip().endswith(" may not") for line in lines) == shown.count(False)
    assert max(map(len, lines)) <= 80
    made = mesh_ranking.build(found, tmp_path / "plan")
    for path in (made, made.with_suffix(".md")):
        text = path.read_text("utf-8")
        assert text.count("may not") - text.count("may not fit") == fits.count(False)
        text = text.replace("\N{NARROW NO-BREAK SPACE}", " ")
        assert "A chip has 74.5 GiB of memory" in text
        assert "75.4 GiB" in text


@cache
def asked_once(command, question, timeout_s):
    return ask(command, question, child_environment(), timeout_s)


@pytest.fixture
def _no_jax(monkeypatch) -> None:
    """Nothing is compiled, and one process says what all these tests can choose from."""

    def answered(command, question, _environment, timeout_s):
        return asked_once(command, question, timeout_s)

    monkeypatch.setattr(compiling, "programs", Compiler())
    monkeypatch.setattr(catalogue, "ask", answered)


@pytest.mark.usefixtures("_no_jax")
def test_the_command_prints_what_fits_80_columns(folder) -> None:
    typed = ["project", str(folder), "--hardware", "h100-sxm,tpu-v5p", "--precision", "bf16"]
    done = CliRunner().invoke(command_line.app, [*typed, "--chips", "8,64", "-k", "not zero"])
    assert done.exit_code == 0, done.output
    assert "Predicted: mlp-base, bf16 on tpu-v5p: data=N" in done.output
    assert "zero1" not in done.output
    path = (folder / "projection/projection.html").as_posix()
    *lines, last = done.output.splitlines()
    assert max(map(len, lines)) <= 80
    assert last.startswith(f"projection: {path}")
    assert Path(path).is_file()


@pytest.mark.usefixtures("_no_jax")
def test_a_projection_that_has_changed_is_named_and_not_shown(tmp_path, capsys) -> None:
    run = synthetic.write(tmp_path, replace(RUN, devices=(1, 2), rounds=2))
    typed = ["project", str(run), "--hardware", "h100-sxm", "--chips", "8"]
    assert CliRunner().invoke(command_line.app, typed).exit_code == 0
    load_run(str(run))
    assert not capsys.readouterr().err
    for kind in ("csv", "html", "svg", "json", "parquet"):
        (path, *_) = sorted((run / "projection").rglob(f"*.{kind}"))
        text = path.read_bytes()
        path.unlink()
        if kind != "parquet":
            path.write_bytes(text[:99] + bytes([text[99] ^ 1]) + text[100:])
        (damage,) = cell_table.build(load_run(str(run))).damaged
        place = path.relative_to(run).as_posix()
        assert damage.startswith(f"{place}: ")
        assert f"set aside: {damage}" in capsys.readouterr().err
        assert bool(derived_files.find_projection(run)) is (kind not in ("html", "json")), kind
        with pytest.raises(store.StoreError, match=f"is damaged: {place}: "):
            publish(store.load(run), tmp_path)
        path.write_bytes(text)
    assert derived_files.find_projection(run) == "projection/projection.html"


def test_public_results_alone_need_no_run() -> None:
    done = CliRunner().invoke(command_line.app, ["project", "--check-published"])
    assert done.exit_code == 0
    assert "MaxText 128B" in done.output
    assert max(map(len, done.output.splitlines())) <= 80


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ([], "name either a stored run or --check-published"),
        (["RUN", "--hardware", "h1"], "unknown hardware 'h1'"),
        (["RUN", "--chips", "24", "--hardware", "tpu-v5e"], "no slice of 24 chips"),
        (["RUN", "--chips", "8..x"], "--chips: 'x' is not a positive whole number"),
        (["RUN", "--scaling", "both"], "--scaling: unknown 'both'; choose from: weak, strong"),
        (["RUN", "--precision", "fp9"], "unknown 'fp9'"),
        (["RUN", "-k", "("], "is not an expression"),
        (["nowhere"], "there is no run 'nowhere'"),
        (["implementations"], "implementations is not a run: it has no manifest.json"),
        (["RUN", "--check-published"], "either a stored run or --check-published"),
    ],
)
@pytest.mark.usefixtures("_no_jax")
def test_bad_input_is_refused(folder, typed, said) -> None:
    typed = [str(folder) if word == "RUN" else word for word in typed]
    done = CliRunner().invoke(command_line.app, ["project", *typed])
    assert done.exit_code == exits.BAD_INPUT
    assert said in done.output


@pytest.mark.usefixtures("_no_jax")
def test_all_faults_are_told_at_once() -> None:
    typed = ["--hardware", "foo", "--chips", "0", "--precision", "int8", "--scaling", "both"]
    done = CliRunner().invoke(command_line.app, ["project", "nowhere", "-k", "(", *typed])
    assert done.exit_code == exits.BAD_INPUT
    for said in (
        "unknown hardware 'foo'",
        "--chips: '0' is not a positive whole number",
        "unknown 'int8'",
        "choose from: weak, strong",
        "-k: '(' is not an expression",
        "there is no run 'nowhere'",
    ):
        assert said in done.output


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["mlp-bas"], "unknown workload 'mlp-bas'"),
        (["mlp-base", "--chips", "2048"], "--chips: 2048 is too large; at most 1,024"),
        (["mlp-base", "-k", "nosuch"], "'nosuch' selects none of "),
        (["mlp-base", "--hardware", "h200,h100-sxm"], "a plan is for one kind of chip"),
        (["mlp-base", "--hardware", "tpu-v5p", "--precision", "fp32"], "it has bf16"),
        (["mlp-base", "--chips", "7", "--hardware", "tpu-v5e"], "no slice of 7 chips"),
        (["mlp-base", "--batch", "8", "--microbatches", "3"], "8 does not divide into 3 micro"),
    ],
)
@pytest.mark.usefixtures("_no_jax")
def test_a_plan_refuses_bad_input(typed, said, monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(command_line.app, ["plan", *typed])
    assert done.exit_code == exits.BAD_INPUT
    assert said in done.output


@pytest.mark.parametrize("option", ["--implementation-path", "--workload-path"])
@pytest.mark.usefixtures("_no_jax")
def test_a_plan_says_why_a_file_cannot_be_used(option, tmp_path) -> None:
    (tmp_path / "mine.py").write_text("def build(:")
    words = ["plan", "mlp-base", option, str(tmp_path / "mine.py"), "-k", "mine"]
    done = CliRunner().invoke(command_line.app, words)
    assert done.exit_code == exits.BAD_INPUT
    assert "mine.py: SyntaxError: invalid syntax" in done.output


@pytest.mark.slow
def test_files_from_outside_are_compiled_too(folder, tmp_path, monkeypatch) -> None:
    mine = tmp_path / "my_step.py"
    mine.write_text((ROOT / "implementations/jit_spmd.py").read_text("utf-8"), "utf-8")
    heard: list[tuple[object, ...]] = []
    compiler = Compiler()

    def programs(cells, catalogue, **_):
        heard.append((*catalogue["implementation_paths"], *catalogue["workload_paths"]))
        return compiler(cells)

    monkeypatch.setattr(compiling, "programs", programs)
    monkeypatch.chdir(tmp_path)
    typed = [
        "plan",
        "mlp-base",
        "--chips",
        "2",
        "--implementation-path",
        str(mine),
        "-k",
        "my_step",
    ]
    done = CliRunner().invoke(command_line.app, typed)
    assert done.exit_code == 0, done.output
    assert {cell.implementation for cell in compiler.asked} == {"my_step"}
    typed = ["project", str(folder), "--precision", "bf16", "--implementation-path", str(mine)]
    assert CliRunner().invoke(command_line.app, typed).exit_code == 0
    assert set(heard) == {(str(mine),)}
    refused = CliRunner().invoke(command_line.app, ["plan", "mlp-base", "--workload-path", "no.py"])
    assert "--workload-path: there is no file no.py" in refused.output


@pytest.mark.slow
@pytest.mark.parametrize("typed", [["plan", "mlp-base"], ["project", "RUN", "--precision", "bf16"]])
def test_who_interrupts_is_told_what_is_kept(folder, typed, monkeypatch) -> None:
    def programs(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(compiling, "programs", programs)
    words_ = [str(folder) if word == "RUN" else word for word in typed]
    done = CliRunner().invoke(command_line.app, words_)
    assert done.exit_code == exits.INTERRUPTED
    assert "interrupted: what was compiled is kept" in done.output


def test_efficiency_is_to_the_fewest_chips_on_which_the_step_fits(folder) -> None:
    class Dividing(Compiler):
        def __call__(self, cells, *_, **__):
            return [compiled(cell, memory=1e12 / cell.block.mesh.size) for cell in cells]

    found = project(store.load(folder), H100, (8, 16, 32), Dividing(), precision="bf16")
    points = [p for p in found.points if p.curve.implementation == "jit_spmd"]
    assert [p.prediction.fits for p in points] == [False, True, True]
    assert (points[0].efficiency, points[1].efficiency) == (None, 1)
    (chart,) = projection_page.draw(found)
    assert "no prediction" in str(chart.fastest.body[0])
    assert "none fits in memory" in str(chart.fastest.body[0])


def test_efficiencies_of_a_chart_have_one_reference(folder) -> None:
    class Uneven(Compiler):
        def __call__(self, cells, *_, **__):
            return [compiled(c, 4 * GB if c.implementation == "zero1" else 0.1 * GB) for c in cells]

    points = project(store.load(folder), H100, (8, 16), Uneven(), precision="bf16").points
    (first,) = (p for p in points if p.curve.implementation == "jit_spmd" and p.chips == 8)
    assert first.efficiency == 1
    for point in points:
        rate = point.prediction.program.units / (point.chips * point.prediction.best_s)
        reference = first.prediction.program.units / (8 * first.prediction.best_s)
        assert point.efficiency == pytest.approx(rate / reference)
    assert max(p.efficiency for p in points if p.curve.implementation == "zero1") < 1


def test_small_steps_and_missing_implementations_are_remarked(folder) -> None:
    found = projected(folder, chips=(8, 16, 2048))
    curves = {p.curve.implementation: p.curve for p in found.points}
    points = [
        replace(p, prediction=None, reason="too large")
        if p.chips == 2048 and p.curve == curves["zero1"]
        else p
        for p in found.points
    ]
    said = (
        "On 2048 chips, the fastest is chosen without zero1, for which there is no prediction (on "
        "2048: too large)."
    )
    assert prediction_tables.remarks(points) == [said]
    assert prediction_tables.remarks([p for p in points if p.chips == 8]) == []
    gap = [replace(p, chips={8: 8, 16: 2048, 2048: 16}[p.chips]) for p in points]
    assert prediction_tables.remarks(gap) == [said.replace("2048", "16")]
    assert prediction_tables.SMALL not in mesh_ranking.remarks(planned({"small": 1 * GB}))


def test_a_plan_says_which_meshes_do_not_divide_the_batch() -> None:
    found = mesh_ranking.rank(
        ("mlp", "base"), 6, StepOptions("bf16"), hardware("h100-sxm"), 4, ["one"], Compiler()
    )
    split = [mesh for mesh in mesh_ranking.meshes(4) if mesh.batch_shards == 4]
    reason = "a batch of 6 does not divide by 4, its shards times microbatches"
    assert found.refused == {reason: len(split)}
    assert {str(one.program.mesh) for one in found.ranked} >= {"data=2,model=2", "data=1,model=4"}


def test_what_is_compiled_is_told_in_tenths() -> None:
    text = io.StringIO()
    with counter(Console(file=text, width=80), "compiling", "compiled {} of {} steps") as told:
        for done in range(1, 41):
            told(done, 40)
    lines = text.getvalue().splitlines()
    assert (len(lines), lines[0], lines[-1]) == (
        10, "compiled 4 of 40 steps", "compiled 40 of 40 steps",
    )  # fmt: skip


def test_an_unknown_interval_is_open() -> None:
    found = planned({"small": 1 * GB}).ranked[0]
    assert prediction_tables.interval(replace(found, high_s=math.inf)).startswith("at least ")
