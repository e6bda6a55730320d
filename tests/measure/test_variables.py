"""Runs of several processes that need no launcher but variables or a file, and are run by CI."""

from __future__ import annotations

import os
import signal
import socket
import sys

import pytest

from bench.measure.processes.group import free_port
from bench.plan.distributed_config import DistributedConfig
from bench.records.paths import ROOT
from tests.cluster_runs import EXAMPLES, LONG, SMALL, Launches, check, interrupt, pair, stored

pytestmark = pytest.mark.slow


def test_variables(launches: Launches) -> None:
    process = launches.start(EXAMPLES / "variables.sh", *SMALL)
    assert launches.end(process) == 0, launches.output
    check(launches)


@pytest.mark.parametrize("signalled", ["all by Ctrl-C", "only the script, by SIGTERM"])
def test_an_interrupted_script_leaves_a_report_of_what_was_measured(
    launches: Launches, signalled: str
) -> None:
    process = launches.start(EXAMPLES / "variables.sh", *LONG)
    if signalled.startswith("all"):
        interrupt(launches, lambda: os.killpg(process.pid, signal.SIGINT))
    else:
        interrupt(launches, process.terminate)
    assert launches.end(process) == 2
    check(launches)


def test_a_launcher_that_sets_the_variables(launches: Launches) -> None:
    # As torchrun does, which listens at the port itself.
    with socket.create_server(("127.0.0.1", 0)) as agent:
        variables = {"MASTER_PORT": agent.getsockname()[1], "TORCHELASTIC_USE_AGENT_STORE": "True"}
        pair(launches, EXAMPLES / "variables.sh", *SMALL, WORLD_SIZE=2, **variables).check()


def test_a_file(launches: Launches) -> None:
    example = (EXAMPLES / "distributed.toml").read_text(encoding="utf-8")
    config = DistributedConfig.from_toml(example)
    assert config.world_size == 2
    file = launches.folder / "distributed.toml"
    file.write_text(example.replace(str(config.master_port), str(free_port("127.0.0.1"))))
    # The mesh is the file's.
    small = [word for word in SMALL if word not in ("--meshes", "data=2")]
    words = (sys.executable, "-m", "bench", "run", "--distributed", file)
    pair(launches, *words, *small, PYTHONPATH=ROOT).check()


def test_a_process_that_is_killed_costs_its_blocks_which_can_be_resumed(launches: Launches) -> None:
    words = [("data=1 data=2" if word == "data=2" else word) for word in SMALL]
    both = pair(launches, EXAMPLES / "variables.sh", *words, WORLD_SIZE=2)
    launches.wait_for("workers of two processes have met", launches.met)
    both.processes[1].kill()
    both.processes[1].wait()
    assert launches.end(both.processes[0]) == 1, launches.output
    cells = {row["processes"]: row for row in stored(both.folders[0]).last_cell_rows}
    assert cells[1]["status"] == "ok", cells[1]["reason"]
    assert cells[2]["status"] == "crashed"
    assert "process 1 of 2" in cells[2]["reason"]
    assert "the connection to its host was lost" in cells[2]["reason"]
    words = (EXAMPLES / "variables.sh", "--resume", "tried")
    again = [
        launches.start(*words, cwd=folder, RANK=rank, WORLD_SIZE=2)
        for rank, folder in enumerate(both.folders)
    ]
    assert [launches.end(process) for process in again] == [0, 0], launches.output
    cells = {row["processes"]: row for row in stored(both.folders[0]).last_cell_rows}
    assert [cells[1]["status"], cells[2]["status"]] == ["ok", "ok"]
    assert cells[2]["launch"] == 0, "with all that only a first launch does"
    launches.wait_for("all processes have ended", lambda: not launches.alive())
