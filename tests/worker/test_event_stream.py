"""What a process is asked comes out of it whole, and it ends, whatever the files in it do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from textwrap import indent

import pytest

from bench.measure.environment import worker_environment
from bench.records.paths import ROOT

LIMIT_S = 120.0
"""After which a process is one that does not end."""

RUDE = r"""
import os, sys, threading
os.write(1, b"below Python\n")
print("by Python")
print("past sys.stdout", file=sys.__stdout__, flush=True)
threading.Thread(target=threading.Event().wait).start()
"""
"""What a file may do that it should not; its thread never ends."""

MAIN = """
from bench.worker import event_stream

def main(said):
    print("one", file=said)
{rest}

event_stream.run(main)
"""


def ended(*command: str, question: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        input=question,
        capture_output=True,
        text=True,
        env=worker_environment("cpu", 2),
        timeout=LIMIT_S,
        check=False,
    )


def test_only_what_main_says_is_on_stdout_and_no_thread_keeps_it() -> None:
    rest = f'{RUDE}\nprint("two", file=said)'
    done = ended("-c", MAIN.format(rest=indent(rest, "    ")))
    assert (done.returncode, done.stdout) == (0, "one\ntwo\n")
    assert done.stderr.splitlines() == ["below Python", "by Python", "past sys.stdout"]


@pytest.mark.parametrize("raised", ["SystemExit(0)", "KeyboardInterrupt()", "ValueError('x')"])
def test_what_is_raised_is_told_and_fails(raised: str) -> None:
    done = ended("-c", MAIN.format(rest=indent(f"{RUDE}\nraise {raised}", "    ")))
    assert (done.returncode, done.stdout) == (1, "one\n")
    assert done.stderr.splitlines()[-1].startswith(raised.partition("(")[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("available", "implementations"),
        ("compile_only", "row"),
        ("cell_requests fit", "status"),
        ("cell_requests inspect", "parameters"),
    ],
)
def test_a_file_that_writes_to_stdout_and_leaves_a_thread_spoils_no_answer(
    tmp_path: Path, module: str, said: str
) -> None:
    path = tmp_path / "rude.py"
    text = (ROOT / "implementations/jit_spmd.py").read_text(encoding="utf-8")
    path.write_text(f"{text}\n{RUDE}", encoding="utf-8")
    request = {
        "workload": "linear",
        "size": "tiny",
        "mesh": "data=2",
        "batch": 8,
        "options": "fp32",
        "implementation": "rude",
        "implementation_paths": [str(path)],
        "workload_paths": [],
        "elsewhere": True,
        "fatal": {},
    }
    done = ended("-m", *f"bench.worker.answer.{module}".split(), question=json.dumps(request))
    assert done.returncode == 0, done.stderr
    assert "below Python" in done.stderr
    *imported, answer = map(json.loads, done.stdout.splitlines())
    assert (str(path) in imported) == (module == "available")
    assert answer[said], answer
    assert answer.get("status", "ok") == "ok", answer
