"""Whatever a worker starts ends with it, and with the front."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from bench.measure.environment import child_environment
from bench.measure.processes.ask import Child, ask
from bench.measure.processes.guard import MARK, Guard, marked
from bench.measure.processes.guarded import Guarded

SLEEPER = "import time; time.sleep(300)"
FRONT = """
import os, subprocess, sys
from bench.measure.processes.guard import Guard
guard = Guard()
words = [sys.executable, "-c", sys.argv[1]]
worker = subprocess.Popen(words, env={**os.environ, **guard.environment}, start_new_session=True)
guard.watch(worker.pid)
print(worker.pid, guard.environment["LOCKSTEP_WORKER"], flush=True)
worker.wait()
"""
PARENT = f"""
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", {SLEEPER!r}], start_new_session=True)
time.sleep(300)
"""
DAEMON = f"""
import pathlib, subprocess, sys, time
words = [sys.executable, "-c", {SLEEPER!r}]
child = subprocess.Popen(words, start_new_session=True, env={{}})
pathlib.Path(sys.argv[1]).write_text(f"{{child.pid}}\\n")
time.sleep(300)
"""
FORKING = """
import os, sys, time
_, daemon, file, seconds = sys.argv
if not os.fork():
    os.setsid()
    if os.fork():
        os._exit(0)
    os.execve(sys.executable, [sys.executable, "-c", daemon, file], {})
os.wait()
time.sleep(float(seconds))
"""

needs_proc = pytest.mark.skipif(
    not Path("/proc/self/environ").exists(), reason="processes are found by /proc"
)


def within(seconds: float, holds) -> bool:
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.02)
    return holds()


@needs_proc
def test_what_left_the_workers_session_ends_too() -> None:
    guard = Guard()
    environment = {**os.environ, **guard.environment}
    words = [sys.executable, "-c", PARENT]
    with subprocess.Popen(words, env=environment, start_new_session=True) as worker:
        guard.watch(worker.pid)
        mark = guard.environment[MARK]
        assert within(30, lambda: len(marked(mark)) == 2), "it has started another"
        guard.end_all()
        assert not marked(mark)
        assert worker.wait() == -signal.SIGKILL
    guard.dismiss()


@needs_proc
def test_a_daemon_without_session_and_environment_ends_too(tmp_path) -> None:
    """Whether its worker ends by itself or is killed, and what it has started in turn as well."""
    own = subprocess.Popen([sys.executable, "-c", SLEEPER], start_new_session=True)
    for number, seconds in enumerate(("300", "0")):
        told = tmp_path / str(number)
        words = [sys.executable, "-c", FORKING, DAEMON, str(told), seconds]
        with Guarded(words, os.environ, lambda _: None) as guarded:
            assert within(30, lambda told=told: told.exists() and told.read_text().endswith("\n"))
            child = psutil.Process(int(told.read_text()))
            parent = child.parent()
            assert parent is not None
            assert within(30, lambda parent=parent: parent.ppid() == os.getpid()), "it is adopted"
            if seconds == "0":
                assert guarded.code(30) == 0
            assert child.is_running()
        assert not parent.is_running()
        assert not child.is_running()
    assert own.poll() is None, "it was started here, by somebody else"
    own.kill()
    own.wait()


@needs_proc
def test_a_front_that_is_killed_leaves_nothing() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", FRONT, PARENT],
        env=child_environment(),
        stdout=subprocess.PIPE,
        text=True,
    ) as front:
        _, mark = front.stdout.readline().split()
        assert within(30, lambda: len(marked(mark)) == 2)
        front.kill()
        assert within(30, lambda: not marked(mark))


def test_a_guard_that_is_dismissed_ends_nothing() -> None:
    guard = Guard()
    words = [sys.executable, "-c", SLEEPER]
    environment = {**os.environ, **guard.environment}
    with subprocess.Popen(words, env=environment, start_new_session=True) as worker:
        guard.watch(worker.pid)
        guard.dismiss()
        assert worker.poll() is None
        worker.kill()


def test_a_child_is_asked_and_answers() -> None:
    script = "import sys; print(sys.stdin.read()[-2::-1]); sys.stderr.write('noise'); sys.exit(3)"
    answer = ask([sys.executable, "-c", script], "abc", os.environ, 60)
    assert (answer.out, answer.code, answer.ending) == ("cba\n", 3, "ended with exit code 3")
    assert answer.tail == ["noise"]


@pytest.mark.parametrize(
    ("script", "limit_s", "ending"),
    [
        ("import os; os.kill(os.getpid(), 11)", 60, "was killed by SIGSEGV"),
        (SLEEPER, 0.5, "took too long"),
    ],
)
def test_a_child_that_does_not_answer(script: str, limit_s: float, ending: str) -> None:
    answer = ask([sys.executable, "-c", script], "", os.environ, limit_s)
    assert answer.ending == ending


def test_lines_are_heard_when_they_come(tmp_path) -> None:
    said = tmp_path / "heard"
    script = (
        "import pathlib, time; print('a', flush=True)\n"
        f"while not pathlib.Path({str(said)!r}).exists(): time.sleep(0.01)\n"
        "print('b'); print('cut off', end='')"
    )
    lines = []

    def heard(line: str) -> None:
        lines.append(line)
        said.touch()
        raise BrokenPipeError

    with Child([sys.executable, "-c", script], "", os.environ, heard) as child:
        answer = child.answer(60)
    assert (answer.out, lines) == ("a\nb\ncut off", ["a\n", "b\n"])


@pytest.mark.slow
def test_a_child_that_goes_on_answering_is_not_ended() -> None:
    script = "import time\nfor _ in range(7): time.sleep(1); print('one', flush=True)"
    with Child([sys.executable, "-c", script], "", os.environ) as child:
        answer = child.answer(5)
    assert (answer.code, answer.out.count("one")) == (0, 7)


def test_a_child_that_has_ended_long_ago_has_answered() -> None:
    with Child([sys.executable, "-c", "print('one')"], "", os.environ) as child:
        child.process.wait()
        assert child.answer(0).ending == "ended with exit code 0"


def test_children_whose_answers_nobody_waits_for_are_ended() -> None:
    command = [sys.executable, "-c", SLEEPER]
    with Child(command, "", os.environ) as first, Child(command, "", os.environ) as second:
        assert first.answer(0).ending == "took too long"
        started = time.monotonic()
    assert second.answer(250).ending == "was killed by SIGKILL"
    assert time.monotonic() - started < 200


def test_a_child_that_does_not_read_is_asked_too() -> None:
    assert ask([sys.executable, "-c", "pass"], "x" * 10**6, os.environ, 60).code == 0


def test_what_a_child_started_does_not_keep_its_output_open() -> None:
    script = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SLEEPER!r}])"
    answer = ask([sys.executable, "-c", script], "", os.environ, 250)
    assert answer.code == 0
