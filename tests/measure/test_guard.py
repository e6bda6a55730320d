"""Whatever a worker starts ends with it, and with the front."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO

import psutil
import pytest

from bench.measure.environment import child_environment
from bench.measure.processes import guard as guard_module
from bench.measure.processes.guard import Guard
from bench.measure.processes.guarded import Child, Guarded, ask

SLEEPER = "import time; time.sleep(300)"
FRONT = """
import os, signal, sys
from bench.measure.processes.guarded import Guarded
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
guarded = Guarded(sys.argv[1:], os.environ, lambda line: print(line, end="", flush=True))
print(guarded.pid, guarded.process.pid, flush=True)
guarded.code(None)
"""
FAMILY = f"""
import os, subprocess, sys, time
words = [sys.executable, "-c", {SLEEPER!r}]
apart = subprocess.Popen(words, start_new_session=True)
if not os.fork():
    os.setsid()
    if os.fork():
        os._exit(0)
    child = subprocess.Popen(words, start_new_session=True, env={{}})
    print(apart.pid, os.getpid(), child.pid, flush=True)
    os.execve(sys.executable, words, {{}})
os.wait()
time.sleep(float(sys.argv[1]))
"""
"""Starts a process in a session of its own, and a daemon with a child, both without environment."""

needs_proc = pytest.mark.skipif(
    not Path("/proc/self/environ").exists(), reason="processes are found by /proc"
)


def soon(holds) -> bool:
    """Whether it comes true within a minute."""
    end = time.monotonic() + 60
    while not holds() and time.monotonic() < end:
        time.sleep(0.02)
    return holds()


def lives(process: int) -> bool:
    try:
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def family(file: IO[str]) -> list[int]:
    """Read the processes that a worker has started, all of which live."""
    found = [int(word) for word in file.readline().split()]
    assert len(found) == 3
    assert all(map(lives, found))
    return found


def worker(seconds: str) -> list[str]:
    return [sys.executable, "-c", FAMILY, seconds]


@needs_proc
@pytest.mark.parametrize("seconds", ["300", "0"])
def test_what_a_worker_started_ends_with_it(seconds: str) -> None:
    """Whether the worker ends by itself or is killed."""
    with Guard(worker(seconds), stdout=subprocess.PIPE, text=True) as guard:
        started = family(guard.process.stdout)
        if seconds == "0":
            assert guard.code() == 0
            assert soon(lambda: psutil.Process(started[1]).ppid() == guard.process.pid)
        assert all(map(lives, started)), "the guard waits for the front"
    assert guard.code() == (0 if seconds == "0" else -signal.SIGKILL)
    assert not list(filter(psutil.pid_exists, [guard.pid, *started])), "none is left as a zombie"
    guard.process.stdout.close()


@needs_proc
def test_an_adopted_orphan_that_ends_is_no_zombie() -> None:
    with Guard(worker("300"), stdout=subprocess.PIPE, text=True) as guard:
        _, orphan, _ = family(guard.process.stdout)
        assert soon(lambda: psutil.Process(orphan).ppid() == guard.process.pid)
        os.kill(orphan, signal.SIGKILL)
        assert soon(lambda: not psutil.pid_exists(orphan))
    guard.process.stdout.close()


@needs_proc
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_front_that_is_killed_leaves_nothing(number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", FRONT, *worker("300")],
        env=child_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as front:
        lines = [front.stdout.readline().split() for _ in range(2)]
        processes = [int(word) for line in lines for word in line]
        assert len(processes) == 5
        assert all(map(lives, processes))
        front.send_signal(number)
        assert soon(lambda: not any(map(lives, processes)))


@needs_proc
def test_a_front_may_die_before_it_has_read_what_the_guard_wrote() -> None:
    near, far = socket.socketpair()
    words = [sys.executable, "-IS", guard_module.__file__, str(far.fileno())]
    with (
        subprocess.Popen(
            [*words, *worker("300")], stdout=subprocess.PIPE, text=True, pass_fds=[far.fileno()]
        ) as guard,
        far,
    ):
        started = family(guard.stdout)
        near.close()
        far.close()
        assert soon(lambda: not any(map(lives, started)))
    assert guard.returncode == 0


@needs_proc
def test_a_front_ends_a_worker_whose_guard_is_killed() -> None:
    with Guard(worker("300"), stdout=subprocess.PIPE, text=True) as guard:
        started = family(guard.process.stdout)
        guard.process.kill()
        assert guard.code() == -signal.SIGKILL
        assert soon(lambda: not lives(guard.pid))
    for process in started:  # without the guard, nothing tells whose sessions they are
        os.kill(process, signal.SIGKILL)
    guard.process.stdout.close()


@needs_proc
def test_a_guard_that_is_stopped_does_not_stop_the_front(monkeypatch) -> None:
    monkeypatch.setattr(guard_module, "GONE_S", 0.1)
    with Guard([sys.executable, "-c", SLEEPER]) as guard:
        guard.process.send_signal(signal.SIGSTOP)
    assert soon(lambda: not lives(guard.pid))


def test_processes_of_the_libraries_user_live() -> None:
    """Those that were started before, and meanwhile by another thread, orphans included."""
    users = []

    def start() -> None:
        words = [sys.executable, "-c", FAMILY, "0"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={}) as parent:
            users.extend(family(parent.stdout))

    start()
    with Guarded([sys.executable, "-c", SLEEPER], os.environ, lambda _: None) as guarded:
        thread = threading.Thread(target=start)
        thread.start()
        thread.join()
    assert guarded.code(0) == -signal.SIGKILL
    assert len(users) == 6
    assert all(map(lives, users))
    assert not {child.pid for child in psutil.Process().children()} & set(users), "none is adopted"
    for process in users:
        os.kill(process, signal.SIGKILL)


def test_a_command_that_cannot_be_started_is_named() -> None:
    with pytest.raises(OSError, match="No such file or directory: 'nothing'"):
        Guard(["nothing"])


def test_a_child_is_asked_and_answers() -> None:
    script = "import sys; print(sys.stdin.read()[-2::-1]); sys.stderr.write('noise'); sys.exit(3)"
    answer = ask([sys.executable, "-c", script], "abc", os.environ, 60)
    assert (answer.out, answer.code, answer.ending) == ("cba\n", 3, "ended with exit code 3")
    assert answer.tail == ["noise"]


def test_the_last_line_of_an_abort_is_not_one_of_its_stack_trace() -> None:
    """As absl prints it, for instance where a device waits for another that has no memory left."""
    trace = (
        "F1201 x.cc:1] Termination timeout\n*** Check failure stack trace: ***\n    @  0x7f f()\n"
    )
    script = f"import os, sys; sys.stderr.write({trace!r}); sys.stderr.flush(); os.abort()"
    answer = ask([sys.executable, "-c", script], "", os.environ, 60)
    last = "F1201 x.cc:1] Termination timeout"
    assert answer.blame == f"was killed by SIGABRT; its last line: {last}"


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
        assert child.code(60) == 0
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
