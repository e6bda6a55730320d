"""Exit codes are those that the help of each command and docs/failures.md list."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import synthetic
from typer.testing import CliRunner

import lockstep
from bench import __main__ as command_line
from bench.commands import exits
from bench.measure.run_folder import resumed_options
from bench.plan.option_values import BadInput
from bench.plan.options import Options
from bench.records.paths import ROOT

BAD = [
    [],
    ["--nonsense"],
    ["nonsense"],
    ["report"],
    ["report", "nowhere"],
    ["report", 300 * "r"],
    ["gallery"],
    ["gallery", "nonsense"],
    ["publish"],
    ["publish", "nowhere"],
    ["compare", "one"],
    ["compare", "one", "other"],
    ["compare", "one", "other", "--margin", "0"],
    ["explain", "one"],
    ["explain", "one", "one"],
    ["explain", "one", "other", "--run", "nowhere"],
    ["project"],
    ["project", "nowhere"],
    ["project", "nowhere", "--hardware", "nonsense"],
    ["maxbatch"],
    ["maxbatch", "nowhere"],
    ["plan"],
    ["plan", "mlp-base", "--hardware", "nonsense"],
    ["plan", "mlp-base", "--chips", "0"],
    ["plan", "mlp-tiny", "--chips", "2", "--batch", "8", "--scan-layers"],
    ["inspect"],
    ["inspect", "no-cell"],
    ["inspect", "mlp/data=1/b8/fp32,nonsense/python_loop"],
    ["inspect", "mlp/data=2/b8/fp32,processes=3/jit_spmd"],
    ["selftest", "--trials", "0"],
    ["selftest", "--load", "nonsense"],
    ["selftest", "--again", "nowhere"],
    ["faults", "nonsense"],
    ["faults", "--jobs", "0"],
    ["faults", "--limit", "3"],
    ["faults", "--list", "nonsense"],
    ["faults", "--run", "../up"],
    ["tensorboard"],
    ["tensorboard", "--port", "nonsense"],
    ["regress"],
    ["upgrade"],
    ["upgrade", "--from", "nonsense"],
    ["referee", "one.py"],
    ["referee", "one.py", "other.py"],
]
"""Command lines that nothing can be done with, in an empty folder."""

COMMANDS = {info.name or info.callback.__name__ for info in command_line.app.registered_commands}
COMMANDS -= {"run"}  # which test_run.py tries


@pytest.mark.parametrize(
    "words", [*BAD, *([name, "--nonsense"] for name in sorted(COMMANDS))], ids=" ".join
)
def test_bad_input_ends_with_its_code(words, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    ended = CliRunner().invoke(command_line.app, words)
    assert ended.exit_code == exits.BAD_INPUT, ended.output
    assert ended.output.startswith("error: " if words else "Usage: ")
    assert "\N{BOX DRAWINGS LIGHT HORIZONTAL}" not in ended.output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("explain", "missing argument 'CELL_A'; see `root explain --help`"),
        ("explian", "no such command 'explian'. Did you mean 'explain', 'plan'?"),
        (
            "report x --all",
            "no such option: --all (Possible options: --all-plots); see `root report",
        ),
        ("maxbatch x --memory", "option '--memory' requires an argument"),
        ("doctor extra", "unexpected extra argument: extra; see `root doctor --help`"),
        ("faults --jobs 0", "'--jobs': '0'; it should be greater than or equal to 1; see `root"),
        ("faults nosuch", "error: fault: unknown 'nosuch'; choose from: host-memory, "),
        ("tensorboard --port x", "'--port': 'x'; it should be a valid integer; see `root tensor"),
    ],
)
def test_a_mistyped_command_line_is_answered_in_one_line(words, said) -> None:
    ended = CliRunner().invoke(command_line.app, words.split(), prog_name="root")
    assert said in ended.output
    assert ended.output.count("\n") == 1


@pytest.mark.parametrize("option", ["--implementation-path", "--workload-path"])
def test_a_missing_file_is_one_fault(option, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["inspect", "mlp/data=1/b8/fp32/mine", option, "mine.py"]
    ended = CliRunner().invoke(command_line.app, words)
    assert ended.output == f"error: {option}: there is no file mine.py\n"


def test_a_file_that_cannot_be_used_is_named_in_words(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("old.py", "new.py"):
        (tmp_path / name).touch()
    (tmp_path / "folder").mkdir()
    words = ["referee", "old.py", "new.py", "--ledger", "folder"]
    assert CliRunner().invoke(command_line.app, words).output == "error: folder: is a directory\n"
    missing = CliRunner().invoke(command_line.app, ["referee", "old.py", "newer.py"]).output
    assert missing == "error: there is no file newer.py\n"


def test_a_report_that_cannot_be_written_names_its_file(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = synthetic.write(tmp_path / "reports", synthetic.Plan(devices=(1,), rounds=6))
    (run / "report.html").mkdir()
    ended = CliRunner().invoke(command_line.app, ["report", str(run)])
    assert re.fullmatch(r"error: .*report\.html: is a directory", ended.output.splitlines()[-1])


def test_several_faults_are_a_list() -> None:
    words = ["inspect", "mlp/data=1/b8/fp32/mine", "--implementation-path", "a.py"]
    ended = CliRunner().invoke(command_line.app, [*words, "--workload-path", "b.py"])
    assert ended.output.startswith("error: 2 things are wrong:\n  - --implementation-path: there")


@pytest.mark.parametrize(
    ("words", "cannot"),
    [
        ("project race", "projected"),
        ("maxbatch race --memory 1GiB", "searched"),
        ("explain jit_spmd other --run race", "explained"),
    ],
)
def test_a_race_of_functions_has_no_files(words, cannot, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    race = synthetic.write(Path("reports"), synthetic.Plan(devices=(1,), rounds=6), "race")
    synthetic.rewrite(race, "manifest", lambda manifest: manifest["config"].update(functions={}))
    ended = CliRunner().invoke(command_line.app, words.split())
    assert ended.output == f"error: race is a race of functions, which cannot be {cannot}\n"
    with pytest.raises(BadInput, match="which cannot be resumed"):
        resumed_options(Options(resume="race"))


def test_a_cell_without_a_trace_says_how_it_ended(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    plan = synthetic.Plan(devices=(1,), rounds=6, endings={("pmap", 0): ("crashed", "why")})
    synthetic.write(Path("reports"), plan, "run")
    ended = CliRunner().invoke(command_line.app, ["explain", "jit_spmd", "pmap", "--run", "run"])
    assert ended.exit_code == exits.BAD_INPUT
    assert "pmap has no trace in reports/run; it is crashed" in ended.output
    assert "jit_spmd has no trace in reports/run; record it with --profile" in ended.output


@pytest.mark.parametrize("words", [("--version",), ("run", "--version"), ("run", "-V")])
def test_the_version_is_the_packages(words) -> None:
    ended = CliRunner().invoke(command_line.app, words)
    assert (ended.exit_code, ended.output) == (0, f"lockstep {lockstep.__version__}\n")


def test_the_list_of_commands_is_not_cut() -> None:
    told = CliRunner().invoke(command_line.app, ["--help"]).output
    listed = told[told.index("Commands:") :]
    assert "..." not in listed
    assert "became faster or slower in RUN_B?" in " ".join(listed.split())


@pytest.mark.parametrize("fault", [RuntimeError("torn"), OSError(5, "Input/output error")])
def test_a_fault_of_its_own_is_no_outcome(fault, monkeypatch, capsys) -> None:
    def fail(*_):
        raise fault

    monkeypatch.setattr("bench.commands.shared_options.find_run", fail)
    monkeypatch.setattr("sys.argv", ["bench", "report", "run"])
    with pytest.raises(SystemExit) as end:
        command_line.main()
    assert end.value.code == exits.FAILED
    assert str(fault) in capsys.readouterr().err


def test_interrupted(monkeypatch) -> None:
    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr("bench.commands.shared_options.find_run", interrupt)
    assert CliRunner().invoke(command_line.app, ["report", "run"]).exit_code == exits.INTERRUPTED


@pytest.mark.parametrize("command", sorted(COMMANDS | {"run"}))
def test_the_manual_and_help_list_the_same_codes(command) -> None:
    words = " ".join(CliRunner().invoke(command_line.app, [command, "--help"]).output.split())
    told = re.split("exit codes: ", words, flags=re.IGNORECASE)[1]
    listed = re.findall(r"(?<!\S)(\d+)(?= )", told)
    table = MANUAL[MANUAL.index("| | `run`") :].split("\n\n")[0].splitlines()
    heading, _, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table]
    own = [number for number, names in enumerate(heading) if f"`{command}`" in names.split(", ")]
    column = own[0] if own else len(heading) - 1
    assert [row[0] for row in rows if row[column]] == listed


MANUAL = (ROOT / "docs/failures.md").read_text(encoding="utf-8")


def test_every_option_says_what_it_is_for() -> None:
    group = command_line.typer.main.get_command(command_line.app)
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        for option in command.params:
            assert option.help, f"{name} {option.name}"


def test_a_full_disk_is_no_bad_input(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)

    def build(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")  # as of a write: it names no file

    synthetic.write(Path("reports"), synthetic.Plan(devices=(1,)), "run")
    monkeypatch.setattr("bench.present.report_files.build", build)
    ended = CliRunner().invoke(command_line.app, ["report", "run"])
    assert ended.output.startswith("error: cannot write into reports/run: No space left on device;")
    assert ended.exit_code == exits.FAILED
    monkeypatch.setattr("bench.present.gallery.index.build", build)
    ended = CliRunner().invoke(command_line.app, ["gallery"])
    assert (ended.exit_code, ended.output) == (exits.FAILED, "error: no space left on device\n")
