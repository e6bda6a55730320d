"""The live display says where the run is, on lines that no terminal wraps."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pytest
from fronts import FRONT, SMALL
from rich.cells import cell_len
from rich.console import Console

from bench.analyse.verdicts import Claim, Verdict
from bench.present.progress import Progress, Remaining
from bench.records.cells import Block, StepOptions
from bench.records.mesh import MeshShape
from bench.records.paths import ROOT
from tests.slow import slow

BLOCK = Block("gpt2", "nano", MeshShape.parse("data=2,model=2"), 1024, StepOptions(processes=2))
LONG = Block(
    "a_workload_with_a_long_name", "huge", MeshShape.parse("data=2,fsdp=2,model=2,pipe=2"), 65536,
    StepOptions("bf16", 16, remat="full", clip_norm=0.5, variant="latency_hiding", processes=4),
)  # fmt: skip


ARMS_30 = [("arms", 30.0)]


def claims(*words):
    return {f"arm{n}": Claim(None, Verdict(word, 0.5, 2.0), 0.0) for n, word in enumerate(words)}


def estimate(_block, arms, _launch):
    return sum(seconds for _, seconds in arms)


def phase(name, arm="", done=0, of=0):
    return {"event": "phase", "phase": name, "arm": arm, "done": done, "of": of}


@pytest.fixture
def clock(monkeypatch):
    """Seconds that time.monotonic tells, to be set."""
    now = [1000.0]
    monkeypatch.setattr("bench.present.progress.time.monotonic", lambda: now[0])
    return now


def shown(display, width):
    console = Console(file=io.StringIO(), width=width)
    console.print(display)
    return console.file.getvalue().splitlines()


def test_shows_how_far_what_and_what_is_decided(clock):
    console = Console(file=io.StringIO(), width=80)
    with Progress(console, 18, Remaining(18 * 30.0), estimate) as display:
        display.begin(BLOCK, 0, ARMS_30)
        clock[0] += 30.0
        display.end(BLOCK, 0, ["ok", "ok", "unsupported"], claims("faster", "undecided"))
        display.begin(LONG, 0, ARMS_30)
        clock[0] += 30.0
        display.end(LONG, 0, ["ok", "wrong", "ok", "crashed"], claims("slower", "same", "faster"))
        display.begin(BLOCK, 1, ARMS_30)
        display.phase(phase("compile", "python_loop", 2, 12))
        # What a block's later launch says takes the place of what the first one said.
        lines = shown(display, 80)
        assert lines[0].startswith("2 of 18 launches ")
        assert lines[0].endswith(" 0:01:00, about 8 min left")
        assert lines[1] == "gpt2-nano/data=2,model=2/b1024/fp32,processes=2"
        assert lines[2] == "launch 2: compile 2/12 python_loop"
        assert lines[3] == "2 faster, 1 same, 1 slower, 1 undecided; 1 wrong, 1 crashed"
        display.end(BLOCK, 1, ["ok", "ok"], claims("faster", "same"))
        assert shown(display, 80)[3] == "2 faster, 2 same, 1 slower; 1 wrong, 1 crashed"
    assert console.file.getvalue().splitlines() == [
        f"{BLOCK.name}  2 ok, 1 unsupported, 1 of 2 decided  30 s",
        f"{LONG.name}  2 ok, 1 wrong, 1 crashed, 3 of 3 decided  30 s",
        f"{BLOCK.name} launch 2  2 ok, 2 of 2 decided  0 s",
    ]


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_is_four_lines_at_any_width(width, clock):
    display = Progress(Console(file=io.StringIO()), 1800, Remaining(3e6), estimate)
    assert len(shown(display, width)) == 4
    display.begin(LONG, 0, [("arms", 900.0)])
    display.phase(phase("compile", "an_implementation_with_quite_a_long_name" * 3, 11, 12))
    display.end(LONG, 0, ["wrong"] * 999, claims(*["faster", "same", "undecided"] * 2000))
    lines = shown(display, width)
    assert len(lines) == 4
    assert max(map(cell_len, lines)) <= width


def test_time_left_follows_what_launches_took(clock):
    remaining = Remaining(400.0)
    assert remaining.words(clock[0]) == "about 7 min left"
    remaining.begin(100.0)
    clock[0] += 50.0
    assert remaining.seconds(clock[0]) == 350.0
    assert remaining.end() == 50.0
    assert remaining.seconds(clock[0]) == 150.0, "half as long as estimated, so the rest as well"
    remaining.begin(100.0)
    clock[0] += 20.0
    assert remaining.seconds(clock[0]) == 130.0
    clock[0] += 80.0
    assert remaining.seconds(clock[0]) == 100.0, "what is late now says nothing of what follows yet"
    remaining.end()
    assert remaining.seconds(clock[0]) == 150.0
    remaining.begin(200.0)
    clock[0] += 1000.0
    assert remaining.words(clock[0]) == "over the estimate"


def test_time_left_with_a_budget_or_an_interval_to_reach(clock):
    remaining = Remaining(30.0, 600.0)
    clock[0] += 120.0
    assert remaining.words(clock[0]) == "at most 8 min left"
    clock[0] += 1000.0
    assert remaining.words(clock[0]) == "at most 0 s left"
    assert Remaining(30.0, more=True).words(clock[0]) == "at least 30 s left"


def test_forced_colours_make_no_pipe_a_terminal(clock):
    console = Console(file=io.StringIO(), force_terminal=True, color_system="standard", width=80)
    with Progress(console, 1, Remaining(1.0), estimate) as display:
        display.begin(BLOCK, 0, [("arms", 1.0)])
        display.end(BLOCK, 0, ["ok"], {})
    line = console.file.getvalue()
    assert line.count("\n") == 1
    assert "\x1b[32m1 ok" in line
    assert not CONTROL.search(line)


COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])(?:;\d+)*m")
CONTROL = re.compile(r"\x1b\[\??[\d;]*[A-Za-ln-z]")
"""Codes that are not of colours or weights: they move the cursor, or erase."""
ANY_CODE = re.compile(r"\x1b\[\??[\d;]*[A-Za-z]")


def in_a_terminal(folder, *words, columns=80, **environment):
    """What a run writes to a terminal of its own, of so many columns."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    unset = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")
    inherited = {name: value for name, value in os.environ.items() if name not in unset}
    child = subprocess.Popen(
        [sys.executable, str(FRONT), *words],
        cwd=folder,
        env={**inherited, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", **environment},
        stdin=follower,
        stdout=follower,
        stderr=follower,
    )
    os.close(follower)
    written = b""
    while True:
        try:
            found = os.read(leader, 65536)
        except OSError:  # Linux: nobody has the other end any more
            break
        if not found:
            break
        written += found
    os.close(leader)
    return child.wait(), written.decode()


@pytest.mark.parametrize(("columns", "no_color"), [(80, ""), *slow((40, "1"))])
def test_a_real_run_on_a_terminal(columns, no_color, tmp_path):
    behaviour = '{"pmap": "wrong"}'
    code, text = in_a_terminal(
        tmp_path, "run", *SMALL, columns=columns, NO_COLOR=no_color, FAKE_WORKER=behaviour
    )
    assert code == 1
    assert bool(COLOUR.search(text)) == (not no_color)
    assert CONTROL.search(text), "it is live"
    assert "0 of 2 launches" in text
    assert "reports/" in text
    lines = [ANY_CODE.sub("", line) for line in re.split(r"[\r\n]+", text)]
    whole = ("reports/", "python -m bench")  # paths and commands must not be broken
    assert max(cell_len(line) for line in lines if not any(w in line for w in whole)) <= columns
