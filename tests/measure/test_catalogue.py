"""Asking what there is survives files that end the process that imports them."""

from __future__ import annotations

import queue
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.measure import catalogue
from bench.measure.catalogue import read_catalogue
from bench.measure.processes.guarded import Child, ChildError

CHILD = """
import json, os, signal, sys, time
request = json.load(sys.stdin)
for path in request["implementation_paths"]:
    if path in request["fatal"]:
        continue
    print(json.dumps(path), flush=True)
    match os.path.basename(path):
        case "ends.py":
            os._exit(0)
        case "crashes.py":
            print("about to crash", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGSEGV)
        case "hangs.py":
            time.sleep(300)
        case "prints.py":
            print("{not json")
print(json.dumps({"platform": "cpu", **request}))
"""


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(catalogue, "COMMAND", (sys.executable, "-c", CHILD))
    return tmp_path


def test_files_that_end_the_process_have_that_as_their_error(child: Path) -> None:
    paths = [child / f"{name}.py" for name in ("ends", "good", "crashes", "prints")]
    found = read_catalogue([str(path) for path in paths])
    assert found["platform"] == "cpu"
    assert found["fatal"] == {
        str(child / "ends.py"): "the process that imported it ended with exit code 0",
        str(child / "crashes.py"): (
            "the process that imported it was killed by SIGSEGV; its last line: about to crash"
        ),
    }


def test_a_link_is_known_by_its_own_name(child: Path) -> None:
    """Under the name of its file, a plan would not find it, and measure nothing in its place."""
    (child / "mine.py").touch()
    (child / "latest.py").symlink_to("mine.py")
    given = [str(child / "latest.py")]
    found = read_catalogue(given, given)
    assert found["implementation_paths"] == found["workload_paths"] == given


def test_a_file_that_is_imported_for_ever_is_named(
    child: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(command, question, environment, _):
        lines: queue.Queue[str] = queue.Queue()
        with Child(command, question, environment, lines.put) as process:
            # Only a process that has begun to import a file has to be quick: Python itself starts
            # and ends slowly on a loaded machine.
            imports = lines.get(timeout=60).startswith('"')
            return process.answer(1.0 if imports else 60.0)

    monkeypatch.setattr(catalogue, "ask", ask)
    found = read_catalogue([str(child / "hangs.py")])
    assert found["fatal"] == {str(child / "hangs.py"): "the process that imported it took too long"}


def test_other_versions_are_not_started_to_ask_what_they_support(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each is a process; a race of flags has more of them than start before the time is over."""
    answer = "{'unsupported': json.load(sys.stdin), 'faults': []}"
    child = f"import json, sys; print(json.dumps({answer}))"
    monkeypatch.setattr(catalogue, "SUPPORT_COMMAND", (sys.executable, "-c", child))
    plan = SimpleNamespace(
        blocks=(),
        implementations=("pmap", "pmap@fast-math", "pmap@old"),
        worker={"implementation_paths": [], "workload_paths": []},
    )
    asked = catalogue.find_unsupported(plan, {"processes": 1, "platform": "cpu"})
    assert asked["implementations"] == ["pmap"]


def test_where_no_file_is_to_blame_the_last_lines_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = "import sys; sys.exit('no device here')"
    monkeypatch.setattr(catalogue, "COMMAND", (sys.executable, "-c", script))
    with pytest.raises(ChildError, match=r"ended with exit code 1[^!]*no device here"):
        read_catalogue()
