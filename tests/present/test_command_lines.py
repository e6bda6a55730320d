"""The command that measures a cell again selects that very cell, in a run of the same plan."""

from __future__ import annotations

import shlex

import pytest
import synthetic

from bench.analyse import cell_table
from bench.plan.selection import selector
from bench.present import cell_columns, command_lines, markdown, page, print_plots
from bench.records import paths, store


def again(run: store.Run) -> dict[str, list[str]]:
    """The words of the command that measures each cell again, after the program's name."""
    (column,) = (column for column in cell_columns.COLUMNS if column.key == "again")
    cells = cell_columns.rows(cell_table.build(run), run.manifest)
    commands = {name: str(column.of(cell)) for name, cell in cells.items()}
    start = f"{paths.PROGRAM} "
    assert all(command.startswith(start) for command in commands.values())
    return {name: shlex.split(command.removeprefix(start)) for name, command in commands.items()}


def test_a_cell_is_measured_again_beside_its_baseline_with_all_options_of_its_run(tmp_path) -> None:
    ratios = {"jit_spmd": 1.0, "mine": 1.2, "hangs": 1.4}
    run = store.load(synthetic.write(tmp_path, synthetic.Plan(devices=(1, 2, 16), ratios=ratios)))
    typed = ["run", "--implementation-path", "../my steps/mine.py", "--profile-steps", "2"]
    run.manifest["argv"] = [*typed, "--run", "first", "-k", "jit_spmd or mine"]
    commands = again(run)
    assert commands
    for name, words in commands.items():
        *same, option, expression = words
        assert (same, option) == (typed, "-k")
        chosen = {cell for cell in commands if selector(expression)(cell)}
        block = name.rpartition("/")[0]
        assert chosen == {name, f"{block}/jit_spmd"}


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
def test_the_names_of_cells_with_options_are_expressions(tmp_path, options) -> None:
    manifest = store.load(synthetic.write(tmp_path, synthetic.Plan())).manifest
    names = [f"gpt2-nano/data=2,fsdp=2/b8/{options}/{name}" for name in ("jit_spmd", "pmap")]
    *_, expression = shlex.split(command_lines.of_cells(manifest, names))
    chosen = selector(expression)
    assert all(map(chosen, names))
    assert not chosen(names[0].replace("b8", "b16"))
    assert not chosen(names[0].replace("jit_spmd", "fsdp_spmd"))


def test_an_arm_under_another_version_is_measured_again_with_its_variant(tmp_path) -> None:
    ratios = {"jit_spmd": 1.0, "jit_spmd@old": 1.2}
    run = store.load(synthetic.write(tmp_path, synthetic.Plan(devices=(2,), ratios=ratios)))
    run.manifest["argv"] = ["run", "--variant", "old=jax==0.10.2"]
    commands = again(run)
    (old,) = (name for name in commands if name.endswith("@old"))
    assert commands[old] == [
        "run", "--variant", "old=jax==0.10.2", "-k", old.removesuffix("@old"),
    ]  # fmt: skip
    assert selector(commands[old][-1])(old)


def test_no_command_of_an_installed_package_needs_nox(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(paths, "CHECKOUT", False)
    run = store.load(synthetic.write(tmp_path, synthetic.Plan(devices=(2,), traced=True)))
    found = cell_table.build(run)
    html = page.html(found, run.manifest)
    text = markdown.render(markdown.content(found, run.manifest, print_plots.draw(found)))
    assert "`lockstep tensorboard` serves them" in text
    assert "nox -s" not in html + text


def test_the_command_of_a_run_leaves_out_its_name_which_is_taken(tmp_path) -> None:
    manifest = store.load(synthetic.write(tmp_path, synthetic.Plan())).manifest
    for name in (("--run", "mine"), ("--run=mine",)):
        manifest["argv"] = ["run", *name, "--rounds", "8", "-k", "a or b"]
        told = command_lines.of_run(manifest)
        assert told == f"{paths.PROGRAM} run --rounds 8 -k 'a or b'", name
