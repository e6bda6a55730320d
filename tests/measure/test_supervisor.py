from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.measure import supervisor
from bench.measure.environment import worker_cores, worker_environment
from bench.measure.processes import group, oom_kills
from bench.measure.supervisor import Attempt, Launch
from bench.records.cells import Block, StepOptions
from bench.records.mesh import MeshShape
from bench.records.messages import WorkerSettings
from bench.records.paths import ROOT
from tests.fakes.settings import worker_settings

ARMS = ["A", "B", "C"]
BLOCK = Block("mlp", "tiny", MeshShape.parse("data=2"), 8, StepOptions())


class Bench:
    """Runs the block with a worker that behaves as told, and keeps the jobs it was given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.monkeypatch = monkeypatch
        self.folder = folder
        worker = Path(__file__).parents[1] / "fakes" / "worker.py"
        monkeypatch.setattr(group, "COMMAND", (sys.executable, str(worker)))
        monkeypatch.setattr(supervisor, "shipped_implementations", lambda: set(ARMS))

    def run(self, behaviour: dict[str, object], **settings) -> list[Attempt]:
        told = {"log": str(self.folder / "log"), "pids": str(self.folder / "pids"), **behaviour}
        self.monkeypatch.setenv("FAKE_WORKER", json.dumps(told))
        keys = settings.keys() & WorkerSettings.__annotations__
        worker = worker_settings(**{key: settings.pop(key) for key in keys})
        launch = Launch(BLOCK, "cpu", settings.pop("baseline", "A"), worker, **settings)
        self.attempts = launch.run(ARMS)
        return self.attempts

    @property
    def jobs(self) -> list[dict]:
        return [json.loads(line) for line in (self.folder / "log").read_text().splitlines()]

    @property
    def cells(self) -> dict[str, dict]:
        """The one row of each cell."""
        rows = [row for attempt in self.attempts for row in attempt.cells]
        assert sorted(row["implementation"] for row in rows) == ARMS
        for attempt in self.attempts:
            # Readers join rows by the attempt of the block row.
            joined = {row["attempt"] for row in (*attempt.cells, *attempt.samples, attempt.block)}
            assert len(joined) == 1
            measured = {row["arm"] for row in attempt.samples}
            assert measured == {
                row["implementation"] for row in attempt.cells if row["status"] == "ok"
            }
        return {row["implementation"]: row for row in rows}

    @property
    def statuses(self) -> dict[str, str]:
        return {name: row["status"] for name, row in self.cells.items()}


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Bench:
    return Bench(monkeypatch, tmp_path)


def gone(pid: int) -> bool:
    """Whether a process has ended, at the latest a moment from now."""
    for _ in range(100):
        status = Path(f"/proc/{pid}/status")
        if not status.exists() or "State:\tZ" in status.read_text():
            return True
        time.sleep(0.05)
    return False


def test_a_worker_that_finishes(bench: Bench) -> None:
    (attempt,) = bench.run({"B": "wrong", "C": "unsupported"})
    assert bench.statuses == {"A": "ok", "B": "wrong", "C": "unsupported"}
    assert len(attempt.samples) == 4
    assert attempt.block["baseline"] == "A"
    (job,) = bench.jobs
    assert job["implementations"] == ARMS
    assert job["mesh"] == "data=2"
    assert job["interleaved"]


def test_looks_are_answered(bench: Bench) -> None:
    asked = []

    def arms_to_continue(event: dict) -> list[str]:
        asked.append((len(event["rows"]), event["progress"]))
        return ARMS if len(event["rows"]) < 3 * 32 else []

    (attempt,) = bench.run(
        {},
        number=2,
        proved={"C": {"kernels": []}},
        arms_to_continue=arms_to_continue,
        rounds=128,
        program_cache="programs",
    )
    assert asked == [(3 * 16, 1 / 8), (3 * 32, 1 / 4)]
    assert attempt.block["rounds"] == 32
    assert len(attempt.samples) == 3 * 32
    (job,) = bench.jobs
    assert job["interleaved"]
    assert (job["launch"], job["proved"]) == (2, {"C": {"kernels": []}})
    assert job["program_cache"] == "programs"
    assert {row["launch"] for row in (*attempt.cells, *attempt.samples, attempt.block)} == {2}


def test_death_by_a_signal_costs_the_arm_in_the_gate(bench: Bench) -> None:
    bench.run({"B": "segv"})
    assert bench.statuses == {"A": "ok", "B": "crashed", "C": "ok"}
    assert "killed by SIGSEGV during gate" in bench.cells["B"]["reason"]
    assert "last words of B" in bench.cells["B"]["reason"]
    assert [job["implementations"] for job in bench.jobs] == [ARMS, ["A", "C"]]
    assert len({job["attempt"] for job in bench.jobs}) == 2


def test_the_baseline_may_be_the_one_that_dies(bench: Bench) -> None:
    (attempt,) = bench.run({"A": "segv"})
    assert bench.statuses == {"A": "crashed", "B": "ok", "C": "ok"}
    assert attempt.block["baseline"] == "B"


def test_all_arms_may_die(bench: Bench) -> None:
    (attempt,) = bench.run({"A": "segv", "B": "segv", "C": "quit"})
    assert bench.statuses == dict.fromkeys(ARMS, "crashed")
    assert "before its block was complete" in bench.cells["C"]["reason"]
    assert len(bench.jobs) == 3
    assert attempt.block["steps"] == 0
    assert attempt.block["baseline"] == ""


@pytest.mark.parametrize("how", ["segv", "exhausted"])
def test_death_while_ceilings_are_measured_costs_them_alone(bench: Bench, how: str) -> None:
    (attempt,) = bench.run({"ceilings": how, "B": "wrong"})
    assert bench.statuses == {"A": "ok", "B": "wrong", "C": "ok"}
    assert attempt.block["ceilings"] is None
    assert [job["ceilings"] for job in bench.jobs] == [True, False]


def test_ceilings_are_measured_in_the_first_launch_beside_others(bench: Bench) -> None:
    bench.run({"C": "oom"})
    assert [(job["interleaved"], job["ceilings"]) for job in bench.jobs] == [
        (True, True),
        (False, False),
    ]
    bench.run({"C": "oom"}, number=1)
    assert not any(job["ceilings"] for job in bench.jobs[2:])


def test_death_at_the_start_is_not_repeated(bench: Bench) -> None:
    bench.run({"start": "exhausted"})
    assert set(bench.statuses.values()) == {"oom"}
    assert len(bench.jobs) == 1


def test_death_that_no_arm_is_to_blame_for_ends_the_block(bench: Bench) -> None:
    bench.run({"B": "wrong", "measure": "segv"})
    assert bench.statuses == {"A": "crashed", "B": "wrong", "C": "crashed"}
    assert len(bench.jobs) == 2


def test_out_of_memory_that_no_arm_is_to_blame_for_gives_each_the_memory(bench: Bench) -> None:
    bench.run({"measure": "exhausted"})
    assert bench.statuses == dict.fromkeys(ARMS, "ok")
    assert all(row["interleaved"] is False for row in bench.cells.values())
    assert [job["implementations"] for job in bench.jobs] == [ARMS, ["A"], ["B"], ["C"]]


@pytest.mark.parametrize("behaviour", ["exhausted", "oom always"])
def test_out_of_memory_alone_is_final(bench: Bench, behaviour: str) -> None:
    bench.run({"B": behaviour})
    assert bench.statuses == {"A": "ok", "B": "oom", "C": "ok"}
    assert bench.jobs[-1]["implementations"] == ["B"]
    assert not bench.jobs[-1]["interleaved"]


@pytest.mark.parametrize(
    ("counts", "status", "told"),
    [
        (itertools.repeat(3), "crashed", "not by the kernel's out-of-memory killer"),
        (itertools.count(), "oom", "by the kernel's out-of-memory killer: its"),
        (itertools.repeat(None), "oom", "killer or another process"),
    ],
    ids=("steady", "rising", "unknown"),
)
def test_who_killed_it_is_read_from_the_kernels_counters(
    bench: Bench, counts: Iterator[int | None], status: str, told: str
) -> None:
    bench.monkeypatch.setattr(group, "count_kills", lambda: next(counts))
    bench.monkeypatch.setattr(oom_kills, "count_kills", lambda: next(counts))
    bench.run({"B": "kill"})
    assert bench.statuses == {"A": "ok", "B": status, "C": "ok"}
    assert "killed by SIGKILL" in bench.cells["B"]["reason"]
    assert told in bench.cells["B"]["reason"]


def test_what_a_killed_worker_leaves_is_removed_with_the_folder_of_the_run(bench: Bench) -> None:
    folder = bench.folder / "run"
    folder.mkdir()
    bench.run({"B": "litter"}, program_cache=str(folder / "block"))
    assert list(folder.glob("left-*"))
    assert bench.statuses == {"A": "ok", "B": "crashed", "C": "ok"}


def test_who_has_the_turn_is_blamed_for_a_death_in_the_rounds(bench: Bench) -> None:
    bench.run({"turn": "B", "measure": "segv"})
    assert bench.statuses == {"A": "ok", "B": "crashed", "C": "ok"}
    assert "SIGSEGV during measure" in bench.cells["B"]["reason"]
    assert [job["implementations"] for job in bench.jobs] == [ARMS, ["A", "C"]]


@pytest.mark.parametrize(("seconds", "blamed"), [(0.1, "B"), (60.0, "")])
def test_a_late_worker_is_only_blamed_on_a_turn_longer_than_all_rounds(
    bench: Bench, seconds: float, blamed: str
) -> None:
    bench.run({"turn": "B", "measure": "hang"}, timeout_s=2, seconds=seconds)
    late = [name for name in ARMS if bench.statuses[name] == "timeout"]
    assert late == ([blamed] if blamed else ARMS)


def test_what_a_worker_prints_is_cut_and_cleaned(bench: Bench) -> None:
    bench.run({"B": "binary"})
    reason = bench.cells["B"]["reason"]
    assert "\x1b" not in reason
    assert "more characters" in reason
    assert len(reason) < 3000


def test_out_of_memory_beside_others_only(bench: Bench) -> None:
    together, alone = bench.run({"B": "oom"})
    assert bench.statuses == dict.fromkeys(ARMS, "ok")
    assert [row["implementation"] for row in alone.cells] == ["B"]
    assert bench.cells["B"]["interleaved"] is False
    assert bench.cells["A"]["interleaved"] is True
    assert together.block["attempt"] != alone.block["attempt"]
    assert [job["interleaved"] for job in bench.jobs] == [True, False]


def test_a_hanging_worker_is_ended_with_its_children(bench: Bench, tmp_path: Path) -> None:
    bench.run({"B": "hang"}, silence_s=3)
    assert bench.statuses == {"A": "ok", "B": "timeout", "C": "ok"}
    assert "no progress for 3 s during gate" in bench.cells["B"]["reason"]
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 2
    assert all(gone(pid) for pid in pids)


def test_a_worker_that_only_seems_to_get_on_is_ended(bench: Bench) -> None:
    bench.run({"B": "babble"}, timeout_s=3)
    assert bench.statuses == {"A": "ok", "B": "timeout", "C": "ok"}


def test_an_interruption_leaves_no_process(bench: Bench, tmp_path: Path) -> None:
    def interrupt(event: object) -> None:
        # B hangs as soon as its gate is announced.
        while event["arm"] == "B" and not (tmp_path / "pids").exists():
            time.sleep(0.01)
        if event["arm"] == "B":
            raise KeyboardInterrupt

    told = {"B": "hang", "pids": str(tmp_path / "pids")}
    bench.monkeypatch.setenv("FAKE_WORKER", json.dumps(told))
    with pytest.raises(KeyboardInterrupt):
        Launch(BLOCK, "cpu", "A", worker_settings(), progress=interrupt).run(ARMS)
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 2
    assert all(gone(pid) for pid in pids)


@pytest.mark.parametrize(
    ("behaviour", "line"),
    [
        ("garbage", "{not json'"),
        ("forge", '{"event": "samples", "rows": [1]}\''),
        ("forge all", '{"event": "samples", "rows": [1], "attempt":'),
    ],
)
def test_a_file_that_writes_to_the_channel_is_named(
    bench: Bench, behaviour: str, line: str
) -> None:
    bench.run({"B": behaviour})
    assert bench.statuses == {"A": "ok", "B": "crashed", "C": "ok"}
    reason = bench.cells["B"]["reason"]
    assert reason.startswith(f"a file writes to the worker's channel '{line}")
    assert reason.endswith("' during gate")


@pytest.mark.parametrize(
    ("phase", "behaviour"),
    [("trace", "segv"), ("trace", "kill"), ("trace", "hang"), ("checkpoint", "segv")],
)
def test_what_was_measured_survives_a_death_after_the_rounds(
    bench: Bench, phase: str, behaviour: str
) -> None:
    (attempt,) = bench.run({phase: behaviour}, silence_s=3)
    assert bench.statuses == dict.fromkeys(ARMS, "ok")
    assert attempt.block["rounds"] == 4
    assert f"during {phase}" in attempt.block["ended"]
    assert len(bench.jobs) == 1, "nothing is measured again"


@pytest.mark.parametrize("behaviour", ["segv", "hang"])
def test_a_death_while_training_costs_only_curves(bench: Bench, behaviour: str) -> None:
    (attempt,) = bench.run({"train": behaviour}, silence_s=3, phases={"train": {"steps": 5}})
    assert bench.statuses == dict.fromkeys(ARMS, "ok")
    assert [(row["arm"], row["losses"]) for row in attempt.losses] == [("A", [2.0, 1.0])]
    (job,) = bench.jobs
    assert job["phases"] == {"train": {"steps": 5}}


def test_only_the_first_launch_trains(bench: Bench) -> None:
    bench.run({}, number=1, phases={"train": {"steps": 5}})
    assert bench.jobs[0]["phases"] == {}


@pytest.mark.parametrize("behaviour", ["no row", "no samples"])
def test_a_worker_is_held_to_a_row_and_samples_for_each_cell(bench: Bench, behaviour: str) -> None:
    bench.run({"B": behaviour})
    assert bench.statuses == {"A": "ok", "B": "crashed", "C": "ok"}
    assert "ended without" in bench.cells["B"]["reason"]


def test_a_child_that_holds_the_output_open_does_not_delay(bench: Bench) -> None:
    bench.run({"child": True}, silence_s=60, timeout_s=50)
    assert bench.statuses == dict.fromkeys(ARMS, "ok")


def test_a_cpu_device_is_about_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = "--xla_force_host_platform_device_count=8 --xla_dump_to=x"
    monkeypatch.setenv("XLA_FLAGS", flags)
    monkeypatch.setenv("NPROC", "4")
    environment = worker_environment("cpu", 8)
    assert environment["XLA_FLAGS"] == "--xla_dump_to=x"
    assert environment["NPROC"] == "16"
    assert environment["JAX_NUM_CPU_DEVICES"] == "8"
    assert environment["JAX_PLATFORMS"] == "cpu"
    assert environment["PYTHONPATH"].split(os.pathsep)[0] == str(ROOT)
    monkeypatch.setenv("XLA_FLAGS", flags.split(maxsplit=1)[0])
    assert "XLA_FLAGS" not in worker_environment("cpu", 2)


@pytest.mark.parametrize(
    ("devices", "pool", "cores"),
    [(1, "1", None), (2, "4", {3, 5}), (3, "6", {3, 5, 7}), (8, "16", {3, 5, 7, 9})],
)
def test_several_devices_have_spare_threads_but_no_spare_cores(
    monkeypatch: pytest.MonkeyPatch, devices: int, pool: str, cores: set[int] | None
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5, 7, 9})
    assert worker_environment("cpu", devices)["NPROC"] == pool
    assert worker_cores("cpu", devices) == cores
    assert worker_cores("gpu", devices) is None


def test_accelerators_keep_their_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPROC", "4")
    monkeypatch.delenv("JAX_PLATFORMS")
    environment = worker_environment("gpu", 2)
    assert environment["NPROC"] == "4"
    assert "JAX_PLATFORMS" not in environment
    assert environment["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
    assert environment["XLA_CLIENT_MEM_FRACTION"] == "0.9"
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.5")
    assert "XLA_CLIENT_MEM_FRACTION" not in worker_environment("gpu", 2), "XLA refuses both"


MILLISECONDS = {"A": 1000, "B": 1000, "C": 1000}
WINS = {"equal": True, "times": MILLISECONDS | {"B": 200}}


@pytest.mark.parametrize(
    ("behaviour", "status", "reason", "asked"),
    [
        (WINS, "ok", "", True),
        (
            {**WINS, "isolated": {"times": MILLISECONDS}},
            *("wrong", "depend on the process", True),
        ),
        ({"equal": True, "times": {"B": 0.2}, "isolated": {"times": {}}}, "ok", "", True),
        ({**WINS, "isolated": {"B": "wrong"}}, "wrong", "of its own, B is wrong: grad", True),
        ({**WINS, "isolated": {"B": "segv"}}, "ok", "", True),
        ({"equal": True}, "ok", "", False),
    ],
)
def test_a_suspicious_winner_is_measured_again_in_isolation(
    bench: Bench, behaviour: dict, status: str, reason: str, asked: bool
) -> None:
    files = ["/tmp/B.py"]
    (attempt,) = bench.run(behaviour, rounds=8, implementation_paths=files)
    assert bench.statuses == {"A": "ok", "B": status, "C": "ok"}
    assert reason in bench.cells["B"]["reason"]
    assert len(bench.jobs) == 1 + asked + (status == "wrong")
    assert ("isolation" in bench.cells["B"]) == asked
    assert {row["arm"] for row in attempt.samples} == {"A", "C"} | (
        {"B"} if status == "ok" else set()
    )
    if asked:
        _, again, *rerun = bench.jobs
        assert again["isolated"] == again["implementations"] == list(again["proved"]) == ["A", "B"]
        assert (again["interleaved"], again["ceilings"]) == (False, False)
        # It may have slowed the others down.
        assert [job["implementations"] for job in rerun] == [["A", "C"]] * (status == "wrong")
        assert {row["attempt"] for row in attempt.samples} == {(rerun or bench.jobs)[0]["attempt"]}


def test_arms_beside_busy_threads_are_measured_again_without_them(bench: Bench) -> None:
    spoiled = {"C": {"times": {"B": 0.2}}}  # B is slowed down less than A
    files = ["/tmp/B.py"]
    behaviour = {"equal": True, "C": "busy", "beside": spoiled}
    (attempt,) = bench.run(behaviour, rounds=8, implementation_paths=files)
    assert bench.statuses == {"A": "ok", "B": "ok", "C": "wrong"}
    assert [job["implementations"] for job in bench.jobs] == [ARMS, ["A", "B"]]
    assert {row["attempt"] for row in attempt.samples} == {bench.jobs[1]["attempt"]}


def test_a_users_file_that_works_late_beside_another_is_measured_alone(bench: Bench) -> None:
    """The other one's thread looks like late work of both."""
    files = ["/tmp/B.py", "/tmp/C.py"]
    behaviour = {"equal": True, "C": "late", "beside": {"C": {"B": "late"}}}
    bench.run(behaviour, implementation_paths=files)
    assert bench.statuses == {"A": "ok", "B": "ok", "C": "wrong"}
    assert [job["implementations"] for job in bench.jobs] == [ARMS, ["B"], ["C"]]
    assert [job["interleaved"] for job in bench.jobs] == [True, False, False]


@pytest.mark.parametrize(
    ("how", "status"), [("wrong", "wrong"), ("segv", "crashed"), ("forge", "crashed")]
)
def test_shipped_arms_that_fail_beside_a_users_file_are_measured_again_without_it(
    bench: Bench, how: str, status: str
) -> None:
    behaviour = {"equal": True, "beside": {"B": {"A": how}}}
    bench.run(behaviour, implementation_paths=["/tmp/B.py"])
    assert bench.statuses == dict.fromkeys(ARMS, "ok")
    assert [job["implementations"] for job in bench.jobs] == [ARMS, ["A"], ["A", "C"], ["B"]]
    bench.run({"equal": True, "A": how}, implementation_paths=["/tmp/B.py"])
    assert bench.statuses == {"A": status, "B": "ok", "C": "ok"}


def test_shipped_arms_survive_a_users_file_that_ends_the_worker_between_turns(
    bench: Bench,
) -> None:
    bench.run({"beside": {"B": {"measure": "segv"}}}, implementation_paths=["/tmp/B.py"])
    assert bench.statuses == dict.fromkeys(ARMS, "ok")
    assert [job["implementations"] for job in bench.jobs] == [ARMS, ["A", "C"], ["B"]]


def test_a_users_file_that_ends_the_worker_in_the_rounds_has_a_worker_of_its_own(
    bench: Bench,
) -> None:
    bench.monkeypatch.setattr(supervisor, "shipped_implementations", lambda: {"A"})
    bench.run({"turn": "B", "measure": "segv"})
    assert bench.statuses == dict.fromkeys(ARMS, "ok")
    assert [job["implementations"] for job in bench.jobs] == [ARMS, ["A", "C"], ["B"]]
    bench.monkeypatch.setattr(supervisor, "shipped_implementations", lambda: {"A", "C"})
    bench.run({"turn": "B", "measure": "segv"})
    assert bench.statuses == {"A": "ok", "B": "crashed", "C": "ok"}


def test_a_winner_that_was_not_shipped_is_measured_again_wherever_it_lies(bench: Bench) -> None:
    bench.monkeypatch.setattr(supervisor, "shipped_implementations", lambda: {"A", "C"})
    bench.run(WINS, rounds=8)
    assert len(bench.jobs) == 2


@pytest.mark.parametrize(
    "more",
    [
        {"implementation_paths": []},
        {"repeated": frozenset("B")},
        {"base_files": {"C": {"path": "", "worktree": "", "repository": ""}}},
    ],
)
def test_no_winner_is_measured_again_without_need(bench: Bench, more: dict) -> None:
    bench.run(WINS, **{"rounds": 8, "implementation_paths": ["/tmp/B.py"], **more})
    assert len(bench.jobs) == 1
