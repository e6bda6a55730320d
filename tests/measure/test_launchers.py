"""Runs that a launcher starts, by the scripts in examples/: `nox -s cluster` runs these."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.measure.processes.group import free_port
from bench.records.paths import ROOT
from tests.cluster_runs import EXAMPLES, LONG, SMALL, Launches, check, interrupt, needs

pytestmark = pytest.mark.cluster

# Open MPI.

AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": 1, "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": 1}
ON_ONE_CORE = {"OMPI_MCA_rmaps_base_oversubscribe": 1, **AS_ROOT}


@needs("mpirun")
def test_open_mpi(launches: Launches) -> None:
    process = launches.start(EXAMPLES / "openmpi.sh", *SMALL, **ON_ONE_CORE)
    assert launches.end(process) == 0, launches.output
    check(launches)


@needs("mpirun", cores=2)
def test_open_mpi_may_keep_each_process_to_its_own_core(launches: Launches) -> None:
    words = ("mpirun", "-n", "2", "--bind-to", "core", sys.executable, "-m", "bench", "run")
    process = launches.start(*words, "--distributed", "auto", *SMALL, PYTHONPATH=ROOT, **AS_ROOT)
    assert launches.end(process) == 0, launches.output
    assert check(launches).manifest["host"]["usable_cores"] == 2


@needs("mpirun")
def test_an_interrupted_mpirun_leaves_a_report_of_what_was_measured(launches: Launches) -> None:
    process = launches.start(EXAMPLES / "openmpi.sh", *LONG, **ON_ONE_CORE)
    interrupt(launches, lambda: process.send_signal(signal.SIGINT))
    assert launches.end(process) != 0
    check(launches)


# Slurm.


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A cluster of this machine alone, which is gone afterwards."""
    folder, host = tmp_path / "slurm", socket.gethostname().partition(".")[0]
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    config = folder / "slurm.conf"
    config.write_text(f"""\
ClusterName=lockstep
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={free_port("127.0.0.1")}
SlurmdPort={free_port("127.0.0.1")}
AuthType=auth/none
CredType=cred/none
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
NodeName={host} NodeAddr=127.0.0.1 CPUs={os.cpu_count()} State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
""")
    monkeypatch.setenv("SLURM_CONF", str(config))
    log = (folder / "log").open("wb")
    daemons = [
        subprocess.Popen(command, stdout=log, stderr=log)
        for command in (["slurmctld", "-D", "-c"], ["slurmd", "-D"])
    ]
    try:
        until, state = time.monotonic() + 60, ""
        while state != "idle":
            assert time.monotonic() < until, (folder / "log").read_text()
            time.sleep(0.2)
            command = ["sinfo", "--noheader", "--format=%T"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            state = done.stdout.strip()
        yield
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
            daemon.wait(60)
        log.close()


def submit(launches: Launches, *words: str) -> subprocess.Popen[bytes]:
    """From the checkout, as the script says, to run where the test is."""
    options = ("--wait", "--chdir", launches.folder, "--output", launches.log())
    script = EXAMPLES / "slurm.sbatch"
    return launches.start("sbatch", *options, script, *words, cwd=ROOT)


@needs("slurmctld", "slurmd", "sbatch", "srun", root=True, cores=2)
@pytest.mark.usefixtures("slurm")
def test_slurm(launches: Launches) -> None:
    assert launches.end(submit(launches, *SMALL)) == 0, launches.output
    # Each process has a core of its own, as the script asks.
    assert check(launches).manifest["host"]["usable_cores"] == 2


@needs("slurmctld", "slurmd", "sbatch", "srun", root=True, cores=2)
@pytest.mark.usefixtures("slurm")
def test_a_cancelled_job_leaves_a_report_of_what_was_measured(launches: Launches) -> None:
    process = submit(launches, *LONG)
    interrupt(launches, lambda: subprocess.run(["scancel", "--name", "lockstep"], check=True))
    assert launches.end(process) != 0
    check(launches)
