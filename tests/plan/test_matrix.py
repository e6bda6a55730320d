from __future__ import annotations

import argparse
import tomllib
from dataclasses import replace

import pytest

from bench.measure.catalogue import file_faults
from bench.plan.matrix import Plan, make_plan
from bench.plan.option_values import BadInput
from bench.plan.options import Options, add_options, flag, help_page, read_options
from bench.plan.presets import EXACT, PRESET_TABLE, PRESETS, REGRESS, UPGRADE
from bench.records.cells import StepOptions
from bench.records.paths import ROOT
from tests.fakes.catalogue import catalogue


def plan(platform: str = "cpu", there: int = 1, **options) -> Plan:
    return make_plan(Options(**options), catalogue(platform, there))


def faults(platform: str = "cpu", there: int = 1, **options) -> list[str]:
    with pytest.raises(BadInput) as caught:
        plan(platform, there, **options)
    return list(caught.value.faults)


def names(made: Plan) -> list[str]:
    return [block.name for block in made.blocks]


def typed(*words: str) -> Options:
    parser = argparse.ArgumentParser()
    add_options(parser.add_argument)
    return read_options(parser.parse_args(words))


def test_quick_has_its_workloads_at_1_2_4_and_8_devices() -> None:
    made = plan()
    assert names(made) == [
        f"{workload}/data={size}/b{batch}/fp32"
        for workload, batch in (("linear-base", 1024), ("mlp-base", 256))
        for size in (1, 2, 4, 8)
    ]
    assert made.implementations == ("jit_spmd", "pmap", "python_loop")
    assert made.baseline == "python_loop"
    assert made.worker["phases"] == {}
    assert len(made.cells) == 24


def with_approximate(**options) -> Plan:
    known = catalogue()
    known["implementations"].append({
        "name": "sparse", "path": "", "summary": "Sparse.", "error": "", "approximate": "sparse",
    })  # fmt: skip
    return make_plan(Options(**options), known)


def test_numbers_that_cannot_be_stored_or_planned_are_refused() -> None:
    many = "9" * 23
    assert faults(batch_sizes=(many,), launches="1000000", rounds=many) == [
        f"--batch-sizes: {many} is too large; at most 1,000,000,000",
        "--launches: 1000000 is too large; at most 10,000",
        f"--rounds: {many} is too large; at most 1,000,000,000",
    ]


def test_an_empty_value_is_no_missing_option(monkeypatch, tmp_path) -> None:
    # As of `--checkpoint-dir "$SCRATCH"` in a shell where that is not set.
    monkeypatch.chdir(tmp_path)
    found = faults(checkpoint=("sync",), checkpoint_dir="")
    assert "--checkpoint-dir: there is no folder ''" in found
    # What is not in it is ignored by a resumed run.
    assert typed("--rounds", "", "--budget", "").to_json() == {"rounds": "", "budget": ""}


def test_approximate_steps_are_measured_if_they_are_named() -> None:
    usual = ("jit_spmd", "pmap", "python_loop")
    assert (with_approximate().implementations, with_approximate().approximate) == (usual, ())
    made = with_approximate(implementations=("sparse", "python_loop"))
    assert (made.implementations, made.approximate) == (("sparse", "python_loop"), ("sparse",))
    assert made.baseline == "python_loop", "the first that is exact"
    assert with_approximate(implementations=("exact", "approximate")).implementations == (
        *usual,
        "sparse",
    )
    alone = with_approximate(implementations=("approximate",))
    assert (alone.implementations, alone.baseline) == (("sparse",), "sparse")


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (
            {"baseline": "sparse"},
            "--baseline: sparse is approximate; ratios are taken against an exact step",
        ),
        (
            {"isolate": ("sparse",)},
            "--isolate: sparse is approximate; such a step runs in the worker",
        ),
    ],
)
def test_an_approximate_step_is_no_baseline_and_not_isolated(options: dict, fault: str) -> None:
    with pytest.raises(BadInput) as caught:
        with_approximate(implementations=("python_loop", "sparse"), **options)
    assert list(caught.value.faults) == [fault]


@pytest.mark.parametrize("preset", PRESETS)
def test_every_block_of_a_preset_divides_and_occurs_once(preset: str) -> None:
    for devices in (2 if preset == "strategies" else 1, 6, 8):
        blocks = plan("gpu", devices, preset=preset).blocks
        assert all(block.batch % block.mesh.batch_shards == 0 for block in blocks)
        assert len(set(blocks)) == len(blocks)
    assert set(PRESET_TABLE) == {*PRESETS, REGRESS, UPGRADE}
    named = {*PRESET_TABLE[preset].implementations} - {EXACT}
    assert named <= {path.stem for path in (ROOT / "implementations").glob("*.py")}


def test_strategies_run_where_their_meshes_fit() -> None:
    made = [str(block.mesh) for block in plan("gpu", 2, preset="strategies").blocks]
    assert made == ["data=2", "data=2", "data=1,context=2", "data=1,pipe=2", "data=1,expert=2"]
    assert faults("gpu", 1, preset="strategies") == [
        "--preset: no mesh of strategies fits; devices: 1"
    ]
    (pipeline,) = (b for b in plan(preset="strategies").blocks if b.mesh.axis("pipe") > 1)
    assert pipeline.options.microbatches == 8
    asked = plan(preset="strategies", workloads=("mlp",), meshes=("data=4",))
    assert names(asked) == [f"mlp-base/data=4/b256/fp32{part}" for part in ("", ",microbatches=8")]


def test_an_accelerator_is_measured_alone_and_with_all_others() -> None:
    assert names(plan("gpu", 6, preset="accelerator")) == [
        f"gpt2-124m/data={devices}/b{batch}/bf16"
        for batch, devices in ((12, 1), (12, 6), (66, 1), (66, 6))
    ]
    assert names(plan("gpu", 1, preset="accelerator")) == [
        f"gpt2-124m/data=1/b{batch}/bf16" for batch in (8, 64)
    ]


def test_a_gate_has_the_matrix_of_quick_and_more_samples() -> None:
    quick, gate = plan(), plan(base_revision="main")
    assert gate.preset == REGRESS
    assert gate.blocks == quick.blocks
    assert (gate.launches, gate.worker["rounds"]) == (3, 64)
    assert plan(base_revision="main", preset="standard").preset == "standard"
    assert "--preset: unknown 'regress'" in faults(preset=REGRESS)[0]
    # Many launches, because processes of one program differ.
    upgrade = plan(base_revision="jax==0.10.2")
    assert (upgrade.launches, upgrade.worker["rounds"]) == (12, 48)


def test_default_meshes_are_powers_of_two_and_the_count() -> None:
    meshes = dict.fromkeys(str(block.mesh) for block in plan("gpu", 6).blocks)
    assert list(meshes) == ["data=1", "data=2", "data=4", "data=6"]
    meshes = dict.fromkeys(str(block.mesh) for block in plan(workloads=("mlp",)).blocks)
    assert list(meshes) == ["data=1", "data=2", "data=4", "data=8"]


def test_devices_limits_the_meshes() -> None:
    made = make_plan(Options(devices="2", workloads=("mlp",)), catalogue())
    assert [str(block.mesh) for block in made.blocks] == ["data=1", "data=2"]


def test_strong_and_weak_share_the_blocks_that_both_want() -> None:
    made = plan(
        workloads=("mlp-tiny",),
        batch_sizes=("8", "16"),
        meshes=("data=1", "data=2"),
        scaling="both",
    )
    assert names(made) == [
        "mlp-tiny/data=1/b8/fp32",
        "mlp-tiny/data=2/b8/fp32",
        "mlp-tiny/data=2/b16/fp32",
        "mlp-tiny/data=1/b16/fp32",
        "mlp-tiny/data=2/b32/fp32",
    ]


def test_weak_batches_grow_with_the_batch_shards_only() -> None:
    made = plan(
        workloads=("mlp",),
        batch_sizes=("10",),
        meshes=("data=2,model=2", "data=2,fsdp=3"),
        scaling="weak",
    )
    assert [block.batch for block in made.blocks] == [20, 60]


def test_values_may_come_in_one_quoted_string() -> None:
    options = typed("--meshes", "data=1 data=8", "--meshes", "data=2", "--batch-sizes", "8", "16")
    assert options.meshes == ("data=1", "data=8", "data=2")
    assert options.batch_sizes == ("8", "16")


def test_help_names_every_option_and_exit_code() -> None:
    names = Options.__dataclass_fields__.keys() - {"k"}
    options = [f"{flag(name)} " for name in Options.__dataclass_fields__ if name in names]
    texts = tomllib.loads((ROOT / "bench/plan/options.toml").read_text(encoding="utf-8"))
    assert texts.keys() == names
    gate = ["--base-revision ", "--allow-undecided "]
    for text, hidden, codes in (
        (help_page("run"), gate, (0, 1, 2, 3, 4, 5, 130)),
        (help_page("regress"), ["--resume ", gate[0]], (0, 1, 2, 3, 4, 130)),
    ):
        assert [option for option in options if option not in text] == hidden
        assert all(f"\n  {code}  " in text for code in codes)


def test_stored_options_are_read_back() -> None:
    options = Options(preset="full", meshes=("data=2",), profile=True, rounds="3")
    assert Options.from_json(options.to_json()) == options


def test_policies_of_rematerialization_are_swept() -> None:
    words = ("none", "dots", "full", "nothing")
    made = plan(workloads=("mlp-tiny",), meshes=("data=1",), batch_sizes=("8",), remat=words)
    assert [str(block.options) for block in made.blocks] == [
        "fp32",
        "fp32,remat=dots",
        "fp32,remat",
    ]
    for block in made.blocks:
        assert StepOptions.parse(str(block.options)) == block.options
    assert "unknown 'dot'" in str(faults(remat=("dot",)))
    both = {"scan_layers": ("no", "yes"), "remat": ("none", "full")}
    made = plan(workloads=("gpt2-tiny",), meshes=("data=1",), batch_sizes=("8",), **both)
    assert [str(block.options) for block in made.blocks] == [
        "fp32", "fp32,scan_layers", "fp32,remat", "fp32,remat,scan_layers",
    ]  # fmt: skip
    assert StepOptions.parse("fp32,remat,scan_layers") == made.blocks[3].options
    assert faults(workloads=("mlp",), **both) == [
        "--scan-layers: mlp has no stack of equal layers to loop over"
    ]
    for text in ("fp32,remat=full", "fp32,remat=none"):
        with pytest.raises(ValueError, match="is unknown"):
            StepOptions.parse(text)


def test_outside_files_join_what_is_selected() -> None:
    found = catalogue(request={"implementation_paths": ["x/mine.py"], "workload_paths": ["x/w.py"]})
    paths = {"implementation_path": ("x/mine.py",), "workload_path": ("x/w.py",)}
    made = make_plan(Options(**paths, implementations=("pmap",), workloads=("mlp",)), found)
    assert made.implementations == ("pmap", "mine")
    assert made.baseline == "pmap"
    assert {block.workload for block in made.blocks} == {"mlp", "w"}
    assert {block.batch for block in made.blocks if block.workload == "w"} == {64}
    alone = make_plan(Options(**paths), found)
    assert alone.implementations == ("python_loop", "mine"), "it and the baseline"
    assert alone.baseline == "python_loop"
    assert {block.workload for block in alone.blocks} == {"w"}
    assert make_plan(Options(**paths, baseline="pmap"), found).implementations == ("pmap", "mine")


def test_implementations_keep_the_order_in_which_they_are_typed() -> None:
    made = make_plan(Options(implementations=("pmap", "python_loop", "jit_spmd")), catalogue())
    assert made.implementations == ("pmap", "python_loop", "jit_spmd")
    assert made.baseline == "pmap"


def test_steps_in_other_frameworks_run_only_if_they_are_named() -> None:
    found = catalogue()
    found["implementations"][1]["foreign"] = {"torch": ""}
    name = found["implementations"][1]["name"]
    assert name not in make_plan(Options(), found).implementations
    for named in (name, "foreign"):
        assert make_plan(Options(implementations=(named,)), found).implementations == (name,)


def test_a_selected_file_that_cannot_be_imported_is_a_fault() -> None:
    found = catalogue()
    found["implementations"][0]["error"] = "SyntaxError: it is broken"
    with pytest.raises(BadInput, match=r"implementation jit_spmd .*: SyntaxError: it is broken"):
        make_plan(Options(implementations=("jit_spmd",)), found)
    assert "jit_spmd" in make_plan(Options(), found).implementations, "it ends its own cells"


def test_a_mesh_that_cannot_be_read_hides_no_other_fault() -> None:
    found = "; ".join(faults(workloads=("mpl",), meshes=("dta=2",)))
    assert "unknown axis 'dta'" in found
    assert "--workloads: unknown 'mpl'" in found


def test_all_faults_are_reported_at_once() -> None:
    found = faults(
        preset="quik",
        workloads=("mpl", "gpt2-nan"),
        implementations=("jit_smd", "foriegn"),
        meshes=("dta=2", "data=16"),
        batch_sizes=("x",),
        precision=("fp23",),
        rounds="0",
        seconds="nan",
        timeout="-1",
        scaling="string",
        profile_steps="3",
        train_steps="0",
        devices="1.5",
    )
    for part in (
        "--preset: unknown 'quik'; did you mean quick?",
        "--workloads: unknown 'mpl'; did you mean mlp",
        "--workloads: unknown 'gpt2-nan'; did you mean gpt2-nano",
        "--implementations: unknown 'jit_smd'; did you mean jit_spmd?",
        "--implementations: unknown 'foriegn'; did you mean foreign?",
        "unknown axis 'dta'",
        "did you mean data?",
        "data=16 needs 16 devices, there are 8; --devices 16 allows it",
        "--batch-sizes: 'x' is not a positive whole number",
        "--precision: unknown 'fp23'; did you mean fp32 or fp16?",
        "--rounds: '0'",
        "--seconds: 'nan'",
        "--timeout: '-1'",
        "--scaling: unknown 'string'; did you mean strong?",
        "--profile-steps: has no effect without --profile",
        "--train-steps: '0' is not a positive whole number",
        "--devices: '1.5'",
    ):
        assert sum(part in fault for fault in found) == 1, part
    assert len(found) == 16


def test_quick_has_no_more_virtual_devices_than_cores() -> None:
    def sizes(cores: int, **options) -> list[int]:
        made = make_plan(Options(workloads=("mlp",), **options), catalogue(cores=cores))
        return [block.mesh.size for block in made.blocks if block.batch == made.blocks[0].batch]

    assert sizes(1) == [1, 2], "a mesh of one device alone would be no comparison"
    assert sizes(3) == [1, 2, 3]
    assert sizes(64) == [1, 2, 4, 8]
    assert sizes(2, devices="4") == [1, 2, 4], "unless they are asked for"
    assert sizes(2, preset="full", precision=("fp32",), scaling="strong") == [1, 2, 4, 8]


def test_variants_measure_every_block_again() -> None:
    made = plan(workloads=("mlp",), meshes=("data=1",), variant=("lhs=XLA_FLAGS=--a --b=1",))
    assert [str(block.options) for block in made.blocks] == ["fp32", "fp32,variant=lhs"]
    assert made.config["variants"] == {"lhs": "XLA_FLAGS=--a --b=1"}
    assert StepOptions.parse("fp32,variant=lhs") == made.blocks[1].options
    found = faults(variant=("x", "one=A=1", "one=A=2", "two=NPROC=3"))
    assert [fault.partition(":")[0] for fault in found] == ["--variant"] * 3
    assert "the name 'one' is used twice" in found[-1]
    found = faults(variant=("old=no.txt", "new=no.whl"), workloads=("no",))
    for name in ("no.txt", "no.whl"):
        assert f"--variant: there is no file {name}" in found
    assert len(found) == 3


def test_a_batch_that_does_not_divide_names_near_ones() -> None:
    (fault,) = faults(workloads=("mlp",), batch_sizes=("256",), meshes=("data=3",))
    assert "256 cannot be split over the 3 batch shards of data=3" in fault
    assert fault.endswith("; 255 and 258 can")


def test_virtual_devices_of_a_process_have_a_limit() -> None:
    many = {"workloads": ("mlp",), "meshes": ("data=4096",), "batch_sizes": ("4096",)}
    (fault,) = faults(devices="4096", **many)
    assert fault == "--meshes: data=4096 has more than 2,048 virtual devices in a process"
    needs, _ = faults(**many)
    assert needs == "--meshes: data=4096 needs 4096 devices, there are 8", "--devices is no remedy"
    # So many are no fault on accelerators, where only another one is reported.
    (fault,) = faults("gpu", 4096, devices="5000", **many)
    assert fault == "--devices: 5000 requested, only 4096 available"


def test_accelerators_cannot_be_made() -> None:
    assert faults("gpu", 2, devices="4") == ["--devices: 4 requested, only 2 available"]
    (fault,) = faults("gpu", 2, meshes=("data=4",))
    assert fault == "--meshes: data=4 needs 4 devices, there are 2"


def test_a_baseline_has_to_be_selected() -> None:
    assert plan(baseline="pmap").baseline == "pmap"
    assert plan(implementations=("pmap", "jit_spmd")).baseline == "pmap", "the first selected"
    made = replace(plan(), approximate=("pmap",))
    assert made.baseline_of(["jit_spmd", "python_loop"]) == "python_loop"
    assert made.baseline_of(["pmap", "jit_spmd"]) == "jit_spmd", "an exact one"
    (fault,) = faults(implementations=("pmap",), baseline="python_loop")
    assert "'python_loop' is not among the selected implementations" in fault


def test_selected_implementations_may_be_isolated() -> None:
    made = plan(isolate=("pmap", "pmap"))
    assert made.worker["isolated"] == made.config["isolated"] == ["pmap"]
    (fault,) = faults(implementations=("pmap",), isolate=("pmaps",))
    assert fault == (
        "--isolate: 'pmaps' is not among the selected implementations; did you mean pmap?"
    )
    there = catalogue()
    there["implementations"][1]["foreign"] = {"torch": ""}
    with pytest.raises(BadInput, match="--isolate: pmap always runs in processes of its own"):
        make_plan(Options(implementations=("pmap",), isolate=("pmap",)), there)


def test_a_workload_that_cannot_be_imported_is_a_fault_only_if_selected() -> None:
    found = catalogue()
    found["workloads"][1]["error"] = "SyntaxError: line 3"
    with pytest.raises(BadInput, match=r"mlp .*: SyntaxError: line 3"):
        make_plan(Options(), found)
    assert make_plan(Options(workloads=("linear",)), found).blocks


def test_an_implementation_that_cannot_be_imported_has_cells_all_the_same() -> None:
    found = catalogue()
    found["implementations"][1]["error"] = "SyntaxError: line 3"
    assert "pmap" in make_plan(Options(), found).implementations


def test_faults_of_paths(tmp_path) -> None:
    (tmp_path / "a").mkdir()
    for name in ("mine.py", "python_loop.py", "not-a-name.py", "a/mine.py"):
        (tmp_path / name).touch()
    good, taken, odd, double = (
        str(tmp_path / name) for name in ("mine.py", "python_loop.py", "not-a-name.py", "a/mine.py")
    )
    assert file_faults([good], []) == []
    (fault,) = file_faults([str(tmp_path / "mien.py")], [])
    assert fault == f"--implementation-path: there is no file {tmp_path}/mien.py"
    built_in = "has the same name as the built-in implementations/"
    assert f"{built_in}python_loop.py, which is" in file_faults([taken], [])[0]
    assert "not named like a Python module" in file_faults([odd], [])[0]
    assert f"has the same name as {good}; rename it" in file_faults([good, double], [])[0]
    assert (
        f"has the same name as {good}; " in file_faults([good, f"{tmp_path}/a/../mine.py"], [])[0]
    )
    (fault,) = file_faults([str(tmp_path / "a")], [])
    assert fault == f"--implementation-path: {tmp_path}/a is a folder"
    none, folder = str(tmp_path / "none" / "mine.py"), tmp_path / "b" / "mine.py"
    folder.mkdir(parents=True)
    told = [f"--implementation-path: {what}" for what in (f"there is no file {none}",
            f"{folder} is a folder")]  # fmt: skip
    assert file_faults([none, str(folder), good], []) == told
    (tmp_path / "exact.py").touch()
    (fault,) = file_faults([str(tmp_path / "exact.py")], [])
    assert "exact.py has the same name as a class of implementations; rename it" in fault
    assert file_faults([], [str(tmp_path / "exact.py")]) == []
    (tmp_path / "torch_eager.py").touch()
    (fault,) = file_faults([str(tmp_path / "torch_eager.py")], [])
    assert f"{built_in}foreign/torch_eager.py" in fault
    inside = str(ROOT / "implementations" / "python_loop.py")
    assert (
        "which is selected by its name; rename it, or leave it out" in file_faults([inside], [])[0]
    )


@pytest.mark.parametrize(("command", "preset"), [("regress", REGRESS), ("upgrade", UPGRADE)])
def test_the_help_of_a_gate_states_its_launches_and_rounds(command, preset):
    page, own = help_page(command), PRESET_TABLE[preset]
    assert f"By default: quick's workloads and meshes, {own.launches} launches of up to " in page
    assert f"launches of up to {own.rounds} rounds" in page
