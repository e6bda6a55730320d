"""The action for GitHub: its inputs are used, and its scripts do what they say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench.records.paths import ROOT

yaml = pytest.importorskip("yaml")
TEXT = (ROOT / "action.yml").read_text(encoding="utf-8")
ACTION = yaml.safe_load(TEXT)
STEPS = {step.get("name"): step for step in ACTION["runs"]["steps"]}

PYTHON = f"""#!{sys.executable}
import os, pathlib, sys
if sys.argv[1] == "-c":
    os.execv({sys.executable!r}, [{sys.executable!r}, *sys.argv[1:]])
pathlib.Path("called").write_text("\\n".join(sys.argv[1:]))
if code := int(os.environ["CODE"]):
    sys.exit(code)
"""


def run_script(folder: Path, name: str, **variables: str) -> int:
    command = folder / "bin"
    command.mkdir(exist_ok=True)
    for tool in ("python", "gh"):
        (command / tool).write_text(PYTHON)
        (command / tool).chmod(0o755)
    environment = {
        **os.environ, **variables, "PATH": f"{command}:{os.environ['PATH']}",
        "GITHUB_OUTPUT": str(folder / "output"), "GITHUB_STEP_SUMMARY": str(folder / "summary"),
    }  # fmt: skip
    words = ("bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", STEPS[name]["run"])
    return subprocess.run(words, cwd=folder, env=environment, check=False).returncode


def test_every_input_is_declared_and_used() -> None:
    used = set(re.findall(r"inputs\.([\w-]+)", TEXT))
    assert used == set(ACTION["inputs"])
    assert all(one["description"] and "default" in one for one in ACTION["inputs"].values())


def test_no_script_contains_an_expression() -> None:
    """What a pull request may choose reaches the shell in variables, and never as its code."""
    assert not [step for step in STEPS.values() if "${{" in step.get("run", "")]


@pytest.mark.parametrize("code", ["0", "1", "3"])
def test_the_gate_gets_the_options_and_gives_its_code_and_summary(tmp_path, code) -> None:
    page = tmp_path / "reports/lockstep-gate/regress.md"
    page.parent.mkdir(parents=True)
    page.write_text("what changed\n")
    options = "--meshes data=1 -k \"jit_spmd or pmap\" '$(touch never)'"
    assert run_script(tmp_path, "Gate", BASE="main", OPTIONS=options, CODE=code) == int(code)
    assert (tmp_path / "called").read_text().split("\n") == [
        *("-P", "-m", "bench", "regress", "main", "--run", "lockstep-gate"),
        *("--meshes", "data=1", "-k", "jit_spmd or pmap", "$(touch never)"),
    ]  # fmt: skip
    assert (tmp_path / "output").read_text() == f"code={code}\n"
    assert (tmp_path / "summary").read_text() == "what changed\n"
    assert not (tmp_path / "never").exists()


def test_the_gate_takes_no_options_too_and_lockstep_s_own_checkout(tmp_path) -> None:
    (tmp_path / "bench/commands").mkdir(parents=True)
    (tmp_path / "bench/commands/regress.py").touch()
    assert run_script(tmp_path, "Gate", BASE="main", OPTIONS="", CODE="0") == 0
    words = (tmp_path / "called").read_text().split("\n")
    assert words == [*("-m", "bench", "regress", "main", "--run", "lockstep-gate")]


def test_a_comment_is_posted_where_there_is_a_summary(tmp_path) -> None:
    assert run_script(tmp_path, "Comment", NUMBER="7", CODE="0") == 0
    assert not (tmp_path / "called").exists()
    page = tmp_path / "reports/lockstep-gate/regress.md"
    page.parent.mkdir(parents=True)
    page.touch()
    assert run_script(tmp_path, "Comment", NUMBER="7", CODE="0") == 0
    assert (tmp_path / "called").read_text().split("\n")[:3] == ["pr", "comment", "7"]
