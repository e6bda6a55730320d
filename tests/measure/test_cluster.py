"""Rank 0 and the processes that follow it, on 127.0.0.1, with workers that behave as told."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import TypeVar

import pytest
import yaml
from fakes.catalogue import catalogue

from bench.measure.cluster import leader, membership
from bench.measure.cluster.leader import Hello, Leader, RemoteProcess, follow, hello
from bench.measure.cluster.membership import ClusterError, Membership
from bench.measure.processes import group
from bench.measure.processes.group import Order, free_port
from bench.measure.supervisor import Launch
from bench.plan.distributed_config import DistributedConfig
from bench.plan.option_values import BadInput
from bench.plan.options import add_options, read_options
from bench.records.cells import Block, StepOptions
from bench.records.mesh import MeshShape
from bench.records.messages import PhaseEvent, Place
from bench.records.paths import ROOT
from tests.fakes.settings import worker_settings

HOST = "127.0.0.1"
TOKEN = b"a secret"


def membership_of(rank: int, world_size: int, port: int, token: bytes = TOKEN) -> Membership:
    config = DistributedConfig(
        enabled=True, world_size=world_size, rank=rank, master_addr=HOST, master_port=port
    )
    return Membership(config, token)


class Cluster:
    """A leader and followers in threads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, pool: ThreadPoolExecutor) -> None:
        self.monkeypatch = monkeypatch
        self.port = free_port(HOST)
        self.pool = pool
        self.leader: Leader | None = None
        # Only the main thread of a process may say what signals do.
        monkeypatch.setattr(leader.signal, "signal", lambda *_: None)
        self.waits(20)

    def waits(self, seconds: float) -> None:
        for module in (leader, membership):
            self.monkeypatch.setattr(module, "COME_S", seconds)

    def lead(self, world_size: int = 2) -> Future[Leader]:
        return self.pool.submit(Leader, membership_of(0, world_size, self.port))

    def follow(self, rank: int = 1, world_size: int = 2, token: bytes = TOKEN) -> Future[int]:
        return self.pool.submit(follow, membership_of(rank, world_size, self.port, token))

    def says(self, found: Hello) -> Connection:
        """Come as a follower that says this of itself."""
        connection = patiently(lambda: Client((HOST, self.port), authkey=TOKEN))
        connection.send_bytes(json.dumps(found).encode())
        return connection


T = TypeVar("T")


def patiently(act: Callable[[], T], until_then: type[OSError] = ConnectionRefusedError) -> T:
    """Connect as soon as somebody listens, or do what else fails at first."""
    until = time.monotonic() + 60
    while True:
        try:
            return act()
        except until_then:
            assert time.monotonic() < until
            time.sleep(0.02)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    with ThreadPoolExecutor() as pool:
        yield Cluster(monkeypatch, pool)


def config_of(rank: int, world_size: int = 2) -> DistributedConfig:
    return DistributedConfig(enabled=True, world_size=world_size, rank=rank)


# Whose files are measured.


def test_files_that_differ_are_refused(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "shared_helper.py").write_text("FACTOR = 1\n")
    step = tmp_path / "step.py"
    step.write_text("import shared_helper\n")
    asked = {**catalogue(), "implementation_paths": [str(step)]}
    led, followed = cluster.lead(), cluster.follow()
    found, read = led.result(), leader._hashes
    assert found.extend(asked)["processes"] == 2
    host = f"rank 1, on host {socket.gethostname()}"

    def of_rank_1(change: Callable[[dict[str, str]], dict[str, str]]) -> None:
        """Both read in this process: rank 0 first."""
        rank = itertools.count()
        monkeypatch.setattr(
            leader, "_hashes", lambda path: change(read(path)) if next(rank) else read(path)
        )

    imported = f"shared_helper.py, which is imported by {step}"
    for change, told in (
        (lambda own: own | {"shared_helper.py": "x"}, f"has another {imported} than rank 0"),
        (lambda _: {"step.py": "x", "a_helper.py": "x"}, f"has another {step} than rank 0"),
        (lambda _: {}, f"cannot read {step}$"),
    ):
        of_rank_1(change)
        with pytest.raises(ClusterError, match=f"different files: {host}, {told}"):
            found.extend(asked)
    monkeypatch.setattr(leader, "_hashes", read)
    found.extend({**asked, "implementation_paths": []})
    found.close()
    assert followed.result() == 0
    with pytest.raises(ClusterError, match="the connection to a host was lost"):
        found.extend(asked)


# Who may come.


def test_all_come_and_leave_when_the_run_has_ended(cluster: Cluster) -> None:
    led = cluster.lead(3)
    followed = [cluster.follow(rank, 3) for rank in (2, 1)]
    found = led.result()
    assert found.processes == 3
    assert not any(one.done() for one in followed)
    found.close()
    assert [one.result() for one in followed] == [0, 0]


def test_who_did_not_come_is_named(cluster: Cluster) -> None:
    cluster.waits(1.0)
    led, followed = cluster.lead(4), cluster.follow(2, 4)
    with pytest.raises(ClusterError, match=r"ranks 1, 3 of 4 did not connect to"):
        led.result()
    assert followed.result() == 0  # it did what it was told to; rank 0's exit code says the rest


def test_rank_0_that_is_not_there_is_named(cluster: Cluster) -> None:
    cluster.waits(0.3)
    with pytest.raises(ClusterError, match=f"rank 0 cannot be reached at {HOST}:{cluster.port}"):
        cluster.follow().result()


def test_nobody_is_let_in_without_the_token(cluster: Cluster) -> None:
    led = cluster.lead()
    impostor = cluster.follow(token=b"a guess")
    with pytest.raises(ClusterError, match="belongs to another run"):
        impostor.result()
    assert not led.done()
    followed = cluster.follow()
    led.result().close()
    assert followed.result() == 0


def test_strangers_that_say_nothing_or_nonsense_keep_nobody_waiting(cluster: Cluster) -> None:
    led = cluster.lead()
    silent, loud = (
        patiently(lambda: socket.create_connection((HOST, cluster.port))) for _ in range(2)
    )
    with silent, loud:
        loud.sendall(b"GET / HTTP/1.1\r\n\r\n")
        followed = cluster.follow()
        led.result().close()
        assert followed.result() == 0


def test_no_two_processes_have_a_rank(cluster: Cluster) -> None:
    led = cluster.lead(3)
    first = cluster.says(hello(config_of(1, 3)))
    second = cluster.says(hello(config_of(1, 3)))
    message = "a process connected as rank 1 of 3, and so did another"
    with pytest.raises(ClusterError, match=message):
        led.result()
    for connection in (first, second):
        assert json.loads(connection.recv_bytes()) == {"end": True}
        connection.close()


def test_all_must_know_of_equally_many(cluster: Cluster) -> None:
    led, followed = cluster.lead(2), cluster.follow(2, 4)
    told = "a process connected as rank 2 of 4, but rank 0 expects 2 processes"
    with pytest.raises(ClusterError, match=told):
        led.result()
    assert followed.result() == 0


def test_versions_that_differ_are_named(cluster: Cluster) -> None:
    led, other = cluster.lead(), hello(config_of(1))
    ours = other["versions"]["jax"]
    other["versions"] |= {"jax": "0.1", "lockstep": "", "added": "1"}
    del other["versions"]["flax"]  # it is installed without its metadata
    connection = cluster.says(other)
    message = "the processes have different versions"
    with connection, pytest.raises(ClusterError, match=message) as caught:
        led.result()
    assert f"rank 1 has jax 0.1, rank 0 has {ours}" in str(caught.value)
    for name in ("lockstep", "flax"):
        assert f"rank 1 has {name} unknown, rank 0 has" in str(caught.value)
    assert "rank 1 has added 1, rank 0 has unknown" in str(caught.value)


def test_a_port_in_use_is_named(cluster: Cluster) -> None:
    fault = f"cannot listen at {HOST}:{cluster.port}: Address already in use$"
    with socket.create_server((HOST, cluster.port)), pytest.raises(ClusterError, match=fault):
        cluster.lead().result()


# What they have together.


@pytest.mark.parametrize(
    ("host", "cores", "expected"), [("here", [0, 1], 2), ("here", [1, 2], 3), ("there", [0, 1], 4)]
)
def test_a_core_counts_once(cluster: Cluster, host: str, cores: list[int], expected: int) -> None:
    own = {"host": "here", "cores": [0, 1]}
    cluster.monkeypatch.setattr(leader, "hello", lambda config: hello(config) | own)
    led = cluster.lead()
    with cluster.says({**hello(config_of(1)), "host": host, "cores": cores}):
        found = led.result().extend(catalogue())
    assert (found["usable_cores"], found["processes"]) == (expected, 2)


@pytest.mark.parametrize(("host", "expected"), [("here", 4), ("there", 8)])
def test_processes_of_a_host_share_its_accelerators(
    cluster: Cluster, host: str, expected: int
) -> None:
    cluster.monkeypatch.setattr(leader, "hello", lambda config: hello(config) | {"host": "here"})
    led = cluster.lead()
    with cluster.says({**hello(config_of(1)), "host": host}):
        found = led.result().extend(catalogue(platform="gpu", devices=4))
    assert found["device_count"] == expected


# Launches.

BLOCK = Block("mlp", "tiny", MeshShape.parse("data=2"), 8, StepOptions(processes=2))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Path]:
    """Makes workers behave; they write their jobs to the file that it gives."""
    worker = Path(__file__).parents[1] / "fakes" / "worker.py"
    monkeypatch.setattr(group, "COMMAND", (sys.executable, str(worker)))

    def behave(**behaviour: object) -> Path:
        told = {"log": str(tmp_path / "log"), "pids": str(tmp_path / "pids"), **behaviour}
        monkeypatch.setenv("FAKE_WORKER", json.dumps(told))
        return tmp_path / "log"

    return behave


def launch_on(found: Leader) -> Launch:
    return Launch(BLOCK, "cpu", "A", worker_settings(), hosts=found)


def test_a_launch_has_a_process_on_each_host(cluster: Cluster, fake: Callable[..., Path]) -> None:
    log = fake(B="wrong")
    led, followed = cluster.lead(), cluster.follow()
    found = led.result()
    for _ in range(2):
        [attempt] = launch_on(found).run(["A", "B"])
        assert {row["implementation"]: row["status"] for row in attempt.cells} == {
            "A": "ok",
            "B": "wrong",
        }
    found.close()
    assert followed.result() == 0
    places = [json.loads(line)["place"] for line in log.read_text().splitlines()]
    assert sorted(place["rank"] for place in places) == [0, 0, 1, 1]
    assert {place["processes"] for place in places} == {2}
    assert len({place["coordinator"] for place in places}) == 2
    assert all(place["coordinator"].startswith(f"{HOST}:") for place in places)


def test_what_ends_a_followers_worker_is_told(cluster: Cluster, fake: Callable[..., Path]) -> None:
    fake(ranks=[{"A": "babble"}, {"A": "segv"}])
    led, followed = cluster.lead(), cluster.follow()
    found = led.result()
    [attempt] = launch_on(found).run(["A"])
    found.close()
    assert followed.result() == 0
    [row] = attempt.cells
    assert row["status"] == "crashed"
    assert row["reason"].startswith("process 1 of 2 was killed by SIGSEGV")
    assert "last words of A" in row["reason"]


def test_a_connection_that_breaks_ends_a_worker_there_and_is_a_reason_here(
    cluster: Cluster,
    fake: Callable[..., Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fake(ranks=[{"A": "babble"}, {"A": "hang"}])
    led, followed = cluster.lead(), cluster.follow()
    found, pids, proving = led.result(), tmp_path / "pids", threading.Event()

    def watch(event: PhaseEvent) -> None:
        if event["phase"] == "gate":
            proving.set()

    launch = cluster.pool.submit(replace(launch_on(found), progress=watch).run, ["A"])
    assert proving.wait(60)  # a launch that ends in an earlier phase may be started again
    patiently(pids.read_text, FileNotFoundError)
    with socket.socket(fileno=os.dup(found._links[1]._connection.fileno())) as line:
        line.shutdown(socket.SHUT_RDWR)
    assert followed.result() == leader.LEFT_ALONE
    assert "error: rank 1 has lost its connection to rank 0\n" in capsys.readouterr().err
    assert not [pid for pid in pids.read_text().split() if running(pid)]
    first = launch.result()  # launches run one after the other, as in a run
    later = launch_on(found).run(["A"])
    for [attempt], when in ((first, "was lost"), (later, "was lost before")):
        [row] = attempt.cells
        assert row["status"] == "crashed"
        assert row["reason"].startswith("process 1 of 2")
        assert row["reason"].endswith(f"the connection to its host {when}")
    found.close()


def test_a_host_that_does_not_answer_ends_the_launch(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, fake: Callable[..., Path]
) -> None:
    monkeypatch.setattr(leader, "_KILL_S", 0.1)
    fake(A="babble")
    led, connection = cluster.lead(), cluster.says(hello(config_of(1)))
    found = led.result()
    [attempt] = replace(launch_on(found), timeout_s=1.0).run(["A"])
    [row] = attempt.cells
    assert row["status"] == "timeout"
    found.close()
    connection.close()


def test_both_ends_notice_a_host_without_power(cluster: Cluster) -> None:
    led = cluster.lead()
    follower = leader._connect(membership_of(1, 2, cluster.port))
    follower.send_bytes(json.dumps(hello(config_of(1))).encode())
    for connection in (follower, led.result()._links[1]._connection):
        with socket.socket(fileno=os.dup(connection.fileno())) as line:
            assert line.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            if sys.platform == "linux":
                options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
                idle, each, count = (line.getsockopt(socket.IPPROTO_TCP, one) for one in options)
                assert idle + each * count == 120
                assert line.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 120_000
    follower.close()


def running(pid: str) -> bool:
    status = Path("/proc", pid, "status")
    return status.exists() and "State:\tZ" not in status.read_text()


def test_what_an_earlier_launch_said_is_not_heard(cluster: Cluster) -> None:
    led, connection = cluster.lead(), cluster.says(hello(config_of(1)))
    found, heard = led.result(), []
    order = Order(
        job={"attempt": "second"}, platform="cpu", devices=1, variables={}, ranks=[0, 1],
        place=Place(rank=0, processes=2, coordinator=f"{HOST}:1"),
    )  # fmt: skip
    process = found.start(order, 1, heard.append)
    assert isinstance(process, RemoteProcess)
    assert json.loads(connection.recv_bytes())["start"]["place"]["rank"] == 1
    for message in (
        {"attempt": "first", "said": "old"},
        {"attempt": "first", "ended": 1, "tail": ["old"], "killed_by_kernel": None},
        {"attempt": "second", "said": "new"},
        {"attempt": "second", "ended": 0, "tail": ["bye"], "killed_by_kernel": None},
    ):
        connection.send_bytes(json.dumps(message).encode())
    assert process.code(10) == 0
    assert heard == ["new", None]
    assert process.ended()["tail"] == ["bye"]
    process.kill()  # what has ended is not asked to
    found.close()
    assert json.loads(connection.recv_bytes()) == {"end": True}
    connection.close()


# How a process finds its place.


def test_ranks_by_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"MASTER_ADDR": "node0", "WORLD_SIZE": "4", "RANK": "3"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(membership.TOKEN, "known")
    for how in ("auto", "env"):
        found = membership.membership(how)
        assert (found.config.rank, found.config.world_size) == (3, 4)
        assert found.config.coordinator == "node0:29500"
        assert found.token == b"known"


def test_ranks_by_a_file_and_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        found = membership.membership(str(ROOT / "examples" / "distributed.toml")).config
        assert (found.rank, found.world_size, found.master_port) == (rank, 2, 29500)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    file = tmp_path / "launch.toml"
    for content, fault in ((b"\xff", "it is not UTF-8"), (None, "No such file or directory")):
        file.unlink(missing_ok=True)
        if content is not None:
            file.write_bytes(content)
        what = f"'{file}' is neither auto nor env, and no file that can be read: {fault}"
        with pytest.raises(ClusterError, match=f"--distributed: {what}"):
            membership.membership(str(file))
    with pytest.raises(ClusterError, match="'' is neither auto nor env"):
        membership.membership("")
    file.write_text("rank 0")
    with pytest.raises(BadInput, match=f"--distributed {file}: this is not TOML: "):
        membership.membership(str(file))


def test_one_process_is_no_run_of_several(monkeypatch: pytest.MonkeyPatch) -> None:
    for size in ("1", "2"):  # without RANK, every one of two processes would lead
        monkeypatch.setenv("WORLD_SIZE", size)
        with pytest.raises(ClusterError, match="env: this is not known to be one of several"):
            membership.membership("env")


def test_variables_that_are_not_set_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("LOCAL_WORLD_SIZE", "2"), ("RANK", "1"), ("LOCAL_RANK", "1")):
        monkeypatch.setenv(name, value)
    with pytest.raises(ClusterError, match=r"one of several processes \(not set: WORLD_SIZE\)"):
        membership.membership("env")
    monkeypatch.delenv("RANK")
    with pytest.raises(ClusterError, match=r"\(not set: WORLD_SIZE, RANK\)"):
        membership.membership("env")


def test_what_jax_says_where_it_detects_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "import sys; sys.exit('jax knows no such cluster')"
    monkeypatch.setattr(membership, "RENDEZVOUS", (sys.executable, "-c", said))
    with pytest.raises(ClusterError, match=r"are not all set, and jax's(.|\n)*no such cluster"):
        membership.membership("auto")


def test_the_pods_of_the_manifest_have_distinct_ranks_and_one_address() -> None:
    text = (ROOT / "examples" / "kubernetes-jobset.yaml").read_text(encoding="utf-8")
    claim, jobset = yaml.safe_load_all(text)
    name = jobset["metadata"]["name"]
    [job] = jobset["spec"]["replicatedJobs"]
    pods = job["template"]["spec"]
    [container] = pods["template"]["spec"]["containers"]
    assert (job["replicas"], pods["completionMode"]) == (1, "Indexed")
    assert pods["completions"] == pods["parallelism"]

    def environment(index: int) -> dict[str, str]:
        """As the pod of a completion index sees it."""
        annotation = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
        said = {}
        for variable in container["env"]:
            match variable:
                case {"value": str(value)}:
                    said[variable["name"]] = value
                case {"valueFrom": {"fieldRef": {"fieldPath": path}}} if path == annotation:
                    said[variable["name"]] = str(index)
                case {"valueFrom": {"secretKeyRef": {"name": str(), "key": str()}}}:
                    said[variable["name"]] = "secret"
        assert said.keys() == {variable["name"] for variable in container["env"]}
        return said

    found = [
        DistributedConfig.from_environment(environment(index))
        for index in range(pods["completions"])
    ]
    assert [config.rank for config in found] == [*range(pods["completions"])]
    for config in found:
        assert config.enabled
        assert config.world_size == config.num_nodes == pods["completions"]
        # JobSet's name of the pod of index 0: see its field `network`.
        assert config.master_addr == f"{name}-{job['name']}-0-0.{name}"
    assert membership.TOKEN in environment(0)
    [volume], [mount] = pods["template"]["spec"]["volumes"], container["volumeMounts"]
    assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert (mount["name"], mount["mountPath"]) == (volume["name"], container["workingDir"])
    # Its arguments are those of a run, of as many devices as there are processes.
    parser = argparse.ArgumentParser()
    add_options(parser.add_argument)
    words = [*container["command"], *container["args"]]
    assert words[:4] == ["python", "-m", "bench", "run"]
    options = read_options(parser.parse_args(words[4:]))
    assert options.distributed == "env"
    assert MeshShape.parse(options.meshes[-1]).size == pods["completions"]
