"""The processes of a launch: what they tell one another, and whose end is whose."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from bench.measure.processes import group as processes
from bench.measure.processes.group import End, Group, LocalProcess, free_port

FAR_OFF = 60.0


def run(*acts: list[list], limit_s: float = FAR_OFF) -> tuple[End, list[tuple[int, dict]], Group]:
    """Start a process for each list of acts, and follow them to the end."""
    heard: list[tuple[int, dict]] = []

    def start(rank: int, on_line) -> LocalProcess:
        place = {"rank": rank, "processes": len(acts), "coordinator": ""}
        order = processes.Order(
            job={"attempt": "7", "place": place, "acts": acts}, platform="cpu", devices=1,
            variables={}, place=place, ranks=[*range(len(acts))],
        )  # fmt: skip
        return LocalProcess(order, on_line)

    began = time.monotonic()
    with Group(start, len(acts), "7") as group:
        end = group.follow(
            lambda rank, event: heard.append((rank, event)),
            lambda _: "too late" if time.monotonic() > began + limit_s else "",
        )
    assert all(process.code(0) is not None for process in group.processes), "all are gone"
    return end, heard, group


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Path(__file__).parents[1] / "fakes" / "peer.py"
    monkeypatch.setattr(processes, "COMMAND", (sys.executable, str(peer)))


def test_all_hear_what_each_tells_by_rank() -> None:
    acts = [[["tell", {"rank": rank}], ["tell", rank * 10]] for rank in range(3)]
    end, heard, _ = run(*acts)
    assert end == End(0, 0)
    ranks = [{"rank": 0}, {"rank": 1}, {"rank": 2}]
    for rank in range(3):
        values = [event["values"] for who, event in heard if who == rank]
        # Rank 0 ends the launch: the last words of others may not be waited for.
        assert values == [ranks, [0, 10, 20]][: len(values) if rank else 2]


@pytest.mark.parametrize("rank", [0, 1])
def test_the_first_that_fails_is_the_one_to_blame(rank: int) -> None:
    acts = [[["tell", 1], ["sleep", 60]], [["tell", 1], ["sleep", 60]]]
    acts[rank][1] = ["signal", signal.SIGKILL]
    end, _, _ = run(*acts)
    assert end == End(-signal.SIGKILL, rank)


def test_an_exit_code_is_a_failure_too() -> None:
    end, _, _ = run([["tell", 1], ["sleep", 60]], [["tell", 1], ["exit", 7]])
    assert end == End(7, 1)


def test_a_stopped_process_ends_when_the_deadline_passes() -> None:
    end, _, _ = run(
        [["tell", 1], ["sleep", 60]], [["tell", 1], ["signal", signal.SIGSTOP]], limit_s=1.5
    )
    assert end.late == "too late"


def test_the_others_may_leave_after_rank_0() -> None:
    done = {"event": "phase", "phase": "done", "arm": ""}
    end, heard, _ = run([["say", done]], [["sleep", 0.5], ["say", done]])
    assert end == End(0, 0)
    assert (0, done) in heard


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="this system has no SCHED_BATCH")
def test_each_of_several_has_cores_of_its_own_and_does_not_interrupt_the_others() -> None:
    available = sorted(os.sched_getaffinity(0))
    _, heard, _ = run([["about"], ["tell", 0]], [["about"], ["tell", 0]])
    about = {rank: event for rank, event in heard if event["phase"] == "about"}
    assert {event["policy"] for event in about.values()} == {os.SCHED_BATCH}
    assert about[0]["cores"] == [available[0]]
    assert about[1]["cores"] == [available[1 % len(available)]]
    _, heard, _ = run([["about"]])
    assert heard[0][1]["policy"] == os.SCHED_OTHER
    assert sorted(heard[0][1]["cores"]) == available


def test_a_free_port_can_be_listened_on() -> None:
    assert 1024 <= free_port("127.0.0.1") <= 65535
