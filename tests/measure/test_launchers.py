"""Runs that a launcher starts, by the scripts in examples/: `nox -s cluster` runs these."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from bench.analyse import cell_table, scaling_curves
from bench.measure.processes.group import free_port
from bench.plan.distributed_config import DistributedConfig
from bench.records import store
from bench.records.host import usable_cores
from bench.records.paths import ROOT

pytestmark = pytest.mark.cluster

EXAMPLES = ROOT / "examples"
SMALL = (
    *("--workloads", "mlp-tiny", "--meshes", "data=2", "--batch-sizes", "8"),
    *("--implementations", "shard_map_psum", "--rounds", "4", "--seconds", "0.3"),
    *("--launches", "1", "--run", "tried"),
)
LONG = tuple("100" if word == "1" else word for word in SMALL)
"""As many launches."""
LIMIT_S = 300


def needs(*programs: str, root: bool = False, cores: int = 1) -> pytest.MarkDecorator:
    absent = [program for program in programs if shutil.which(program) is None]
    if root and os.geteuid() != 0:
        absent.append("the rights of root")
    if usable_cores() < cores:
        absent.append(f"{cores} cores")
    return pytest.mark.skipif(bool(absent), reason=f"needs {', '.join(absent)}")


class Launches:
    """Starts commands whose processes, wherever they end up, are found by a variable."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._mark = secrets.token_hex(8)
        self._logs: list[Path] = []
        # What conftest sets is for the tests' own jax.
        without = ("XLA_FLAGS", "NPROC", "JAX_NUM_CPU_DEVICES", "PYTHONPATH")
        self.environment = {
            **{name: value for name, value in os.environ.items() if name not in without},
            "LOCKSTEP_TEST": self._mark,
            "LOCKSTEP_TOKEN": self._mark,
            "PYTHON": sys.executable,
            "MASTER_PORT": str(free_port("127.0.0.1")),
        }

    def log(self) -> Path:
        """A new file for what is printed."""
        self._logs.append(self.folder / f"log{len(self._logs)}")
        return self._logs[-1]

    def start(
        self, *words: str | Path, cwd: Path | None = None, **variables: str | int
    ) -> subprocess.Popen[bytes]:
        with self.log().open("wb") as log:
            return subprocess.Popen(
                [str(word) for word in words],
                cwd=cwd or self.folder,
                env={**self.environment, **{name: str(v) for name, v in variables.items()}},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def end(self, process: subprocess.Popen[bytes]) -> int:
        """Its exit code."""
        try:
            return process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            pytest.fail(f"not ended after {LIMIT_S} s:\n{self.output}")

    @property
    def output(self) -> str:
        """All that was printed."""
        return "\n".join(log.read_text(errors="replace") for log in self._logs if log.exists())

    def alive(self, module: str = "") -> list[psutil.Process]:
        """Processes that are left of all that was started, or those that run a module."""
        found = []
        for process in psutil.process_iter():
            try:
                ours = process.environ().get("LOCKSTEP_TEST") == self._mark
                if ours and (not module or module in process.cmdline()):
                    found.append(process)
            except psutil.Error:
                pass
        return found

    def workers(self) -> int:
        """How many worker processes there are."""
        return len(self.alive("bench.worker"))

    def met(self) -> bool:
        """Whether two worker processes have a connection, as to nobody but one another."""
        workers = self.alive("bench.worker")
        return len(workers) == 2 and all(worker.net_connections("tcp") for worker in workers)

    def wait_for(self, what: str, condition: Callable[[], object]) -> None:
        until = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < until, f"{what}: not within {LIMIT_S} s:\n{self.output}"
            time.sleep(0.2)

    def kill(self) -> None:
        for process in self.alive():
            process.kill()


@pytest.fixture
def launches(tmp_path: Path) -> Iterator[Launches]:
    launches = Launches(tmp_path)
    yield launches
    launches.kill()


def stored(folder: Path) -> store.Run:
    """The one run in a folder, which has a report."""
    [run] = (folder / "reports").iterdir()
    assert run.name == "tried"
    assert (run / "report.html").stat().st_size > 10_000
    return store.load(run)


def check(launches: Launches, folder: Path | None = None) -> store.Run:
    """All that was measured of SMALL went well, over two processes, and none is left of them."""
    run = stored(folder or launches.folder)
    assert set(run.cells["status"]) == {"ok"}, launches.output
    assert set(run.cells["processes"]) == {2}
    assert len(run.samples) == 2 * 4 * len(run.cells)
    for span in ("throughput_ns", "latency_ns"):
        for times, longest in zip(run.samples[f"process_{span}"], run.samples[span], strict=True):
            assert len(times) == 2
            assert max(times) == longest
    assert launches.output.count("report: reports/tried/report.html") == 1
    launches.wait_for("all processes have ended", lambda: not launches.alive())
    return run


def interrupt(launches: Launches, how: Callable[[], object]) -> None:
    """Once a run of LONG has stored a launch, and is at the next."""
    log = launches.folder / "reports" / "tried" / store.LAUNCHES
    launches.wait_for("a launch is stored", lambda: log.exists() and any(log.glob("*.jsonl")))
    launches.wait_for("the next has begun", lambda: launches.workers() == 2)
    how()


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


# Variables and a file.


def test_variables(launches: Launches) -> None:
    process = launches.start(EXAMPLES / "variables.sh", *SMALL)
    assert launches.end(process) == 0, launches.output
    check(launches)


def test_an_interrupted_script_leaves_a_report_of_what_was_measured(launches: Launches) -> None:
    process = launches.start(EXAMPLES / "variables.sh", *LONG)
    interrupt(launches, lambda: os.killpg(process.pid, signal.SIGINT))
    assert launches.end(process) == 2
    check(launches)


@dataclass
class Pair:
    """The two processes of a run, each started in a folder of its own."""

    launches: Launches
    processes: list[subprocess.Popen[bytes]]

    @property
    def folders(self) -> list[Path]:
        return [self.launches.folder / f"rank{rank}" for rank in range(2)]

    def check(self) -> store.Run:
        """Both have ended well, and rank 0 alone has written anything."""
        codes = [self.launches.end(process) for process in self.processes]
        assert codes == [0, 0], self.launches.output
        assert not list(self.folders[1].iterdir())
        return check(self.launches, self.folders[0])


def pair(
    launches: Launches,
    *words: str | Path,
    on: Callable[[int], tuple[str, ...]] = lambda _: (),
    **variables: str | int,
) -> Pair:
    """Start both; `on` gives what makes a command run on the host of a rank."""
    pair = Pair(launches, [])
    for rank, folder in enumerate(pair.folders):
        folder.mkdir(parents=True)
        command = (*on(rank), *words)
        pair.processes.append(launches.start(*command, cwd=folder, RANK=rank, **variables))
    return pair


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


def test_a_process_that_is_killed_costs_its_blocks_and_not_the_run(launches: Launches) -> None:
    words = [("data=1 data=2" if word == "data=2" else word) for word in SMALL]
    both = pair(launches, EXAMPLES / "variables.sh", *words, WORLD_SIZE=2)
    launches.wait_for("workers of two processes have met", launches.met)
    both.processes[1].kill()
    both.processes[1].wait()
    assert launches.end(both.processes[0]) == 1, launches.output
    cells = stored(both.folders[0]).cells.set_index("processes")
    assert cells.loc[1, "status"] == "ok", cells.loc[1, "reason"]
    assert cells.loc[2, "status"] == "crashed"
    assert "process 1 of 2" in cells.loc[2, "reason"]
    assert "the connection to its host was lost" in cells.loc[2, "reason"]
    launches.wait_for("all processes have ended", lambda: not launches.alive())


# Two hosts: network namespaces with a name, a /etc/hosts and an end of a cable each.

ADDRESSES = ("192.0.2.1", "192.0.2.2")
"""Kept for documentation: nobody has them, and nothing leads out of the namespaces."""
INSIDE = 'hostname "$0" && mount --bind "$1" /etc/hosts && shift && exec "$@"'


def ip(*words: str | Path) -> None:
    subprocess.run(["ip", *map(str, words)], check=True)


@dataclass
class TwoHosts:
    names: tuple[str, str]
    hosts: Path

    def command(self, rank: int) -> tuple[str, ...]:
        """What makes a command run on a host."""
        inside = ("unshare", "--uts", "--mount", "sh", "-c", INSIDE, f"host{rank}", str(self.hosts))
        return ("ip", "netns", "exec", self.names[rank], *inside)

    def slow_down(self, *queue: str) -> str:
        """Send what either sends through such a queue; why not, where the kernel has none."""
        for name in self.names:
            words = ["tc", "-netns", name, "qdisc", "replace", "dev", "cable", "root", *queue]
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            if done.returncode:
                return done.stderr.strip()
        return ""


@pytest.fixture
def two_hosts(tmp_path: Path) -> Iterator[TwoHosts]:
    own = secrets.token_hex(4)
    hosts = TwoHosts((f"lockstep-{own}-0", f"lockstep-{own}-1"), tmp_path / "hosts")
    lines = [f"{address} host{rank}" for rank, address in enumerate(ADDRESSES)]
    hosts.hosts.write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))
    made = []
    try:
        for name in hosts.names:
            done = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
            if done.returncode:
                pytest.skip(f"no network namespaces: {done.stderr.decode().strip()}")
            made.append(name)
        one, other = hosts.names
        ends = ("cable", "netns", one, "type", "veth", "peer", "name", "cable", "netns", other)
        ip("link", "add", *ends)
        for name, address in zip(hosts.names, ADDRESSES, strict=True):
            ip("-netns", name, "address", "add", f"{address}/24", "dev", "cable")
            for device in ("lo", "cable"):
                ip("-netns", name, "link", "set", device, "up")
        yield hosts
    finally:
        for name in made:
            ip("netns", "delete", name)


LINE = {"WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 1, "LOCAL_RANK": 0, "MASTER_ADDR": ADDRESSES[0]}


@needs("ip", "unshare", "mount", "hostname", root=True)
def test_two_hosts(launches: Launches, two_hosts: TwoHosts) -> None:
    pair(launches, EXAMPLES / "variables.sh", *SMALL, on=two_hosts.command, **LINE).check()


@dataclass(frozen=True)
class Scaled:
    """A curve from one process to one on each host, with the same global batch."""

    alone_s: float
    """Fastest step of one process. Others that use the cores only ever make one slower."""
    both_s: float
    """Fastest step of two processes."""
    sent_bytes: float
    """That a device sends in such a step, as stored."""
    efficiency: float
    """As reported, from medians."""

    def least(self, other: Scaled) -> Scaled:
        """What both say of a host that nobody else uses."""
        return Scaled(
            min(self.alone_s, other.alone_s),
            min(self.both_s, other.both_s),
            self.sent_bytes,
            max(self.efficiency, other.efficiency),
        )


def scaled(launches: Launches, two_hosts: TwoHosts, name: str) -> Scaled:
    words = (
        *("--workloads", "mlp", "--meshes", "data=1 data=2", "--batch-sizes", "512"),
        *("--implementations", "shard_map_psum", "--rounds", "15", "--seconds", "6"),
        *("--launches", "1", "--run", "tried"),
    )
    own = Launches(launches.folder / name)
    try:
        both = pair(own, EXAMPLES / "variables.sh", *words, on=two_hosts.command, **LINE)
        for process in both.processes:
            assert own.end(process) == 0, own.output
    finally:
        own.kill()
    run = stored(both.folders[0])
    [curve] = scaling_curves.find(cell_table.build(run).cells)
    samples = run.samples.merge(run.blocks[["block", "processes"]], on="block")
    fastest = (samples["throughput_ns"] / samples["steps"] / 1e9).groupby(samples["processes"])
    cells = run.cells.set_index("processes")
    found = Scaled(
        *fastest.min()[[1, 2]],
        sent_bytes=sum(part["wire_bytes"] for part in cells.loc[2, "communication"]),
        efficiency=curve.points.set_index("devices").loc[2, "efficiency"],
    )
    print(f"{name}: {found}")
    return found


FREE = ("noqueue",)
RATES = {"1gbit": 1e9, "100mbit": 1e8}
"""Names, and bits a second."""


def unlike_predicted(free: Scaled, slow: Scaled, bits_per_s: float) -> str:
    """In what a line of a bandwidth differs from what its bytes and one without limit predict."""
    predicted = slow.sent_bytes / (bits_per_s / 8)
    # What the free line takes as well, for copies and packets, a slow one hides: at most what two
    # processes are short of halving the step.
    hidden = free.both_s - free.alone_s / 2
    if not 0.75 * predicted - hidden < slow.both_s - free.both_s < 1.25 * predicted:
        return f"{slow} takes longer than {free} by other than {predicted} s"
    # One process alone takes what it took, and two lose what they wait.
    left = free.both_s / (free.both_s + predicted)
    if (slow.alone_s / slow.both_s) / (free.alone_s / free.both_s) != pytest.approx(left, rel=0.25):
        return f"{slow} is other than {left} times as efficient as {free}"
    return ""


@needs("ip", "tc", "unshare", "mount", "hostname", root=True)
def test_scaling_bends_as_communication_predicts(launches: Launches, two_hosts: TwoHosts) -> None:
    # A bucket much smaller than a step's bytes, and a queue that holds all of them.
    queues = {name: ("tbf", "rate", name, "burst", "128kb", "limit", "32mb") for name in RATES}
    best: dict[str, Scaled] = {}
    unlike: list[str] = []
    for again in range(3):  # others may use the cores
        for name, queue in {"free": FREE, **queues}.items():
            if reason := two_hosts.slow_down(*queue):
                pytest.skip(f"tc cannot limit bandwidth here: {reason}")
            found = scaled(launches, two_hosts, f"{name}{again}")
            best[name] = best.get(name, found).least(found)
        unlike = [
            fault
            for name, bits_per_s in RATES.items()
            if (fault := unlike_predicted(best["free"], best[name], bits_per_s))
        ]
        if not unlike:
            break
    assert not unlike
    assert best["free"].efficiency > best["1gbit"].efficiency > best["100mbit"].efficiency


@needs("ip", "tc", "unshare", "mount", "hostname", root=True)
def test_delay_costs_a_round_trip_a_step(launches: Launches, two_hosts: TwoHosts) -> None:
    each_way_s = 0.02
    if reason := two_hosts.slow_down(
        "netem", "delay", f"{each_way_s * 1e3:g}ms", "limit", "100000"
    ):
        pytest.skip(f"this kernel has no netem: {reason}")
    slow = scaled(launches, two_hosts, "delayed")
    assert not two_hosts.slow_down(*FREE)
    free = scaled(launches, two_hosts, "unlimited")
    assert slow.both_s - free.both_s > 2 * each_way_s
