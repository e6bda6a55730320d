"""The command that measures a cell again plans that very cell."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import replace

import pytest
import synthetic

from bench.analyse import cell_table
from bench.plan.options import add_options, read_options
from bench.present import cell_columns, command_lines, markdown, page, print_plots
from bench.records import paths, store
from bench.records.cells import StepOptions


def read(command: str):
    """The options that a command line of `nox -s bench` asks for."""
    words = shlex.split(command)
    assert words[:4] == ["nox", "-s", "bench", "--"]
    parser = argparse.ArgumentParser()
    add_options(parser.add_argument)
    return read_options(parser.parse_args(words[4:]))


@pytest.mark.parametrize(
    "options",
    [
        "fp32",
        "bf16,microbatches=4,remat,clip=0.5",
        "fp16,variant=lhs",
        "fp32,remat=dots,scan_layers",
        "fp32,processes=2",
    ],
)
def test_the_command_of_a_block_asks_for_that_block(tmp_path, options) -> None:
    plan = synthetic.Plan(devices=(4,), batches=("weak",))
    run = store.load(synthetic.write(tmp_path, plan))
    run.manifest["config"] |= {
        "launches": 3,
        "rounds": 64,
        "seconds": 0.5,
        "profile_steps": 5,
        "inputs": ["loaded", "prefetched"],
        "ablations": ["local"],
        "checkpoints": ["async"],
        "train_steps": 20,
        "options": {
            "devices": "16",
            "profile_steps": "2",
            "variant": ["lhs=XLA_FLAGS=--xla_a --xla_b", "other=NCCL_ALGO=Ring"],
            "workload_path": ["../my models/mine.py"],
        },
    }
    (comparison,) = cell_table.build(run).comparisons
    asked = StepOptions.parse(options)
    block = replace(comparison, block=replace(comparison.block, options=asked))
    found = read(command_lines.of_cells(block, run.manifest, ["jit_spmd", "pmap"]))
    assert found.workloads == ("mlp-base",)
    assert found.meshes == ("data=4",)
    assert (found.batch_sizes, found.scaling) == (("256",), "strong")
    assert found.devices == "16", "without it, more than 8 devices would be refused"
    assert found.precision == (asked.precision,)
    assert found.microbatches == ((str(asked.microbatches),) if asked.microbatches > 1 else ())
    assert (found.input, found.checkpoint) == (("loaded", "prefetched"), ("async",))
    assert found.train_steps == "20"
    assert found.ablate
    assert found.processes == (("2",) if asked.processes > 1 else ())
    assert found.scan_layers == (("yes",) if asked.scan_layers else ())
    assert found.remat == ((asked.remat,) if asked.remat else ())
    assert found.clip_norm == (None if asked.clip_norm is None else "0.5")
    assert found.variant == (("lhs=XLA_FLAGS=--xla_a --xla_b",) if asked.variant else ())
    assert found.workload_path == ("../my models/mine.py",)
    assert (found.launches, found.rounds, found.seconds) == ("3", "64", "0.5")
    assert found.implementations == ("jit_spmd", "pmap")
    assert found.baseline == "jit_spmd"
    assert found.margin == "2"
    assert found.profile
    assert found.profile_steps == "2"


def test_an_arm_under_another_version_is_measured_again_with_its_variant(tmp_path) -> None:
    ratios = {"jit_spmd": 1.0, "jit_spmd@old": 1.2}
    run = store.load(synthetic.write(tmp_path, synthetic.Plan(devices=(2,), ratios=ratios)))
    variants = ["old=jax==0.10.2", "ring=NCCL_ALGO=Ring"]
    run.manifest["config"]["options"] = {"variant": variants}
    cells = cell_columns.rows(cell_table.build(run), run.manifest)
    (old,) = (cell for cell in cells.values() if cell["implementation"] == "jit_spmd@old")
    (again,) = (column for column in cell_columns.COLUMNS if column.key == "again")
    asked = read(str(again.of(old)))
    assert asked.variant == ("old=jax==0.10.2",)
    assert asked.devices is None
    assert asked.implementations == ("jit_spmd",)


def test_a_cell_is_measured_again_without_the_other_files_of_its_run(tmp_path) -> None:
    ratios = {"jit_spmd": 1.0, "mine": 1.2, "hangs": 1.4}
    run = store.load(synthetic.write(tmp_path, synthetic.Plan(devices=(2,), ratios=ratios)))
    files = ["../my steps/mine.py", "../my steps/hangs.py"]
    run.manifest["config"]["options"] = {"implementation_path": files}
    cells = cell_columns.rows(cell_table.build(run), run.manifest)
    (again,) = (column for column in cell_columns.COLUMNS if column.key == "again")
    asked = {cell["implementation"]: read(str(again.of(cell))) for cell in cells.values()}
    assert asked["mine"].implementation_path == ("../my steps/mine.py",)
    assert asked["mine"].implementations == ("jit_spmd", "mine")
    assert asked["jit_spmd"].implementation_path == ()


def test_no_command_of_an_installed_package_needs_nox(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(paths, "CHECKOUT", False)
    run = store.load(synthetic.write(tmp_path, synthetic.Plan(devices=(2,), traced=True)))
    found = cell_table.build(run)
    html = page.html(found, run.manifest)
    assert "lockstep run --workloads mlp-base" in html
    text = markdown.render(markdown.content(found, run.manifest, print_plots.draw(found)))
    assert "`lockstep tensorboard` serves them" in text
    assert "nox -s" not in html + text


def test_the_command_of_a_run_leaves_out_its_name_which_is_taken(tmp_path) -> None:
    manifest = store.load(synthetic.write(tmp_path, synthetic.Plan())).manifest
    for name in (("--run", "mine"), ("--run=mine",)):
        manifest["argv"] = ["run", *name, "--rounds", "8", "-k", "a or b"]
        told = command_lines.of_run(manifest)
        assert told == f"{paths.PROGRAM} run --rounds 8 -k 'a or b'", name
