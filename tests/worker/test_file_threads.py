"""Threads belong to the file that started them, and may not work in other arms' turns."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bench.worker import file_threads
from bench.worker.file_threads import LEAST_S, SHARE, FileThreads
from bench.worker.read.device_memory import polling


@pytest.fixture
def clock(monkeypatch):
    """Seconds that have passed, and those in which the process, and each thread, ran or waited."""
    told = {"now": 0.0, "process": 0.0}
    monkeypatch.setattr(file_threads.time, "monotonic", lambda: told["now"])
    monkeypatch.setattr(file_threads.time, "process_time", lambda: told["process"])

    def scheduled(thread):
        return int(1e9 * told.get(thread, 0.0)), int(1e9 * told.get((thread, "waits"), 0.0))

    monkeypatch.setattr(file_threads, "_scheduled_ns", scheduled)
    return told


@pytest.fixture
def idle():
    """Start threads that wait until the test ends."""
    done = threading.Event()
    started = []

    def start(target=done.wait):
        started.append(threading.Thread(target=target, daemon=True))
        started[-1].start()
        return started[-1]

    yield start
    done.set()
    for thread in started:
        thread.join()


@pytest.mark.parametrize(
    ("turn", "share", "convicted"),
    [
        ("b", 1.2 * SHARE, True),
        ("b", 0.8 * SHARE, False),  # as loggers do
        ("a", 1.0, False),  # in its own turn
        ("", 1.0, False),  # between the rounds
    ],
)
def test_work_in_the_turns_of_others_convicts(clock, idle, turn, share, convicted):
    threads = FileThreads()
    thread = idle()
    threads.look("a")
    threads.begin()
    for _ in range(10):
        clock["now"] += 1.0
        clock[thread] = clock.get(thread, 0.0) + share
        threads.look(turn)
    assert set(threads.reasons()) == ({"a"} if convicted else set())
    assert set(threads.busy) == ({"a"} if turn == "b" else set())


@pytest.mark.parametrize(
    ("waited", "process", "convicted"),
    [
        (0.0, 0.1, False),  # the main thread sleeps, as beside a device
        (3.0, 0.5, True),  # a loaded host: the main thread has a quarter of a core
        (3.0, 1.0, False),  # many devices: the process has a whole core, and waits for more
    ],
)
def test_less_convicts_on_a_loaded_host(clock, idle, waited, process, convicted):
    threads = FileThreads()
    thread, main = idle(), threading.main_thread()
    threads.look("a")
    threads.begin()
    clock |= {"now": 10.0, "process": 10 * process, main: 1.0, (main, "waits"): waited}
    clock[thread] = 0.6 * SHARE * 10
    threads.look("b")
    assert bool(threads.reasons()) == convicted


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="Linux shows it")
def test_a_threads_cpu_time_is_read():
    before, _ = file_threads._scheduled_ns(threading.current_thread())
    while file_threads._scheduled_ns(threading.current_thread())[0] == before:
        sum(range(10_000))
    assert before > 0


def test_little_time_convicts_nobody(clock, idle):
    threads = FileThreads()
    thread = idle()
    threads.look("a")
    clock["now"], clock[thread] = 0.9 * LEAST_S, 0.9 * LEAST_S
    threads.look("b")
    assert threads.reasons() == {}


def test_threads_that_no_file_has_started_belong_to_nobody(clock, idle):
    before = idle()
    threads = FileThreads()
    between = idle()
    threads.look("")
    polled = threading.Event()
    with polling(polled.set, 60.0), ThreadPoolExecutor(1) as pool:
        polled.wait()
        (harness,) = set(threading.enumerate()) - {*threads._known}
        pool.submit(int).result()
        threads.look("a")
        threads.begin()
        (own,) = pool._threads
        clock["now"] = 10.0
        clock |= dict.fromkeys((before, between, harness), 10.0)
        threads.look("b")
        assert threads.reasons() == {}
        clock[own] = 10.0
        threads.look("b")
        assert set(threads.reasons()) == {"a"}


def test_a_thread_cannot_pass_for_the_harness(clock):
    done, begun = threading.Event(), threading.Barrier(3)

    def work():
        begun.wait()
        done.wait()

    work.__module__ = "bench.worker.block"
    _DummyThread = type("_DummyThread", (threading.Thread,), {})  # noqa: N806 - as the native ones
    threads = FileThreads()
    forged = [threading.Thread(target=work), _DummyThread(target=work)]
    for thread in forged:
        thread.start()
    forged[1]._target = polling
    begun.wait()
    threads.look("a")
    threads.begin()
    clock["now"] = 10.0
    clock |= dict.fromkeys(forged, 5.0)
    threads.look("b")
    done.set()
    for thread in forged:
        thread.join()
    assert "10.0" in threads.reasons()["a"].replace("\N{NARROW NO-BREAK SPACE}", " ")


@pytest.mark.skipif(not file_threads._children_of(os.getppid()), reason="Linux shows them")
def test_processes_belong_to_the_file_that_started_them(clock, monkeypatch):
    threads = FileThreads(guard=0)
    words = [sys.executable, "-c", "import time; time.process_time(); print(flush=True); input()"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(words, **pipes) as child:
        child.stdout.readline()
        threads.look("a")
        threads.begin()
        assert file_threads._cpu_ns(child.pid) >= 0
        monkeypatch.setattr(file_threads, "_cpu_ns", lambda _: int(4e9))
        clock["now"] = 10.0
        threads.look("b")
        child.communicate(b"\n")
    assert set(threads.reasons()) == {"a"}


def test_a_daemon_is_a_child_of_the_guard(monkeypatch):
    told = {os.getpid(): [7], 1: [os.getpid(), 8], 7: [9]}
    monkeypatch.setattr(file_threads, "_children_of", lambda pid: told.get(pid, []))
    assert FileThreads(1)._known >= {7, 8, 9}
    assert os.getpid() not in FileThreads(1)._known
