"""Runs over two hosts, which are network namespaces with a name, a /etc/hosts and a cable each."""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest

from bench.analyse import cell_table, scaling_curves
from bench.records import store
from tests.cluster_runs import EXAMPLES, SMALL, Launches, needs, pair, stored

pytestmark = pytest.mark.cluster

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


def run_over(launches: Launches, two_hosts: TwoHosts, name: str, *words: str) -> store.Run:
    """One launch, in a folder of this name, with a process on each host."""
    own = Launches(launches.folder / name)
    words = (*words, "--launches", "1", "--run", "tried")
    try:
        both = pair(own, EXAMPLES / "variables.sh", *words, on=two_hosts.command, **LINE)
        for process in both.processes:
            assert own.end(process) == 0, own.output
    finally:
        own.kill()
    return stored(both.folders[0])


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
    )
    run = run_over(launches, two_hosts, name, *words)
    [curve] = scaling_curves.find(cell_table.build(run).cells)
    samples = run.samples.merge(pd.DataFrame(run.block_rows)[["block", "processes"]], on="block")
    fastest = (samples["throughput_ns"] / samples["steps"] / 1e9).groupby(samples["processes"])
    cells = pd.DataFrame(run.last_cell_rows).set_index("processes")
    found = Scaled(
        *fastest.min()[[1, 2]],
        sent_bytes=sum(part["wire_bytes"] for part in cells.loc[2, "communication"]),
        efficiency=curve.points.set_index("devices").loc[2, "efficiency"],
    )
    print(f"{name}: {found}")
    return found


FREE = ("noqueue",)
RATES = {"1gbit": 1e9, "100mbit": 1e8}
"""Names, and bits per second."""
# A bucket much smaller than a step's bytes, and a queue that holds all of them.
QUEUES = {name: ("tbf", "rate", name, "burst", "128kb", "limit", "32mb") for name in RATES}


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
    best: dict[str, Scaled] = {}
    unlike: list[str] = []
    for again in range(3):  # others may use the cores
        for name, queue in {"free": FREE, **QUEUES}.items():
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


def fastest(launches: Launches, two_hosts: TwoHosts, name: str) -> dict[str, float]:
    """Seconds of the fastest step of four devices, two on each host, by mesh."""
    words = (
        *("--workloads", "mlp", "--meshes", "data=4 data=2,fsdp=2", "--batch-sizes", "512"),
        *("--implementations", "shard_map_psum hierarchical_shard_map"),
        *("--rounds", "4", "--seconds", "2"),
    )
    run = run_over(launches, two_hosts, name, *words)
    samples = run.samples.merge(
        pd.DataFrame(run.block_rows)[["block", "mesh", "baseline"]], on="block"
    )
    own_samples = samples[samples["arm"] == samples["baseline"]]
    steps_s = own_samples["throughput_ns"] / own_samples["steps"] / 1e9
    found: dict[str, float] = steps_s.groupby(own_samples["mesh"]).min().to_dict()
    print(f"{name}: {found}")
    return found


@needs("ip", "tc", "unshare", "mount", "hostname", root=True)
def test_a_hierarchical_reduction_wins_over_a_slow_line(
    launches: Launches, two_hosts: TwoHosts
) -> None:
    bits_per_s = RATES["100mbit"]
    found = {}
    for name, queue in {"free": FREE, "slow": QUEUES["100mbit"]}.items():
        if reason := two_hosts.slow_down(*queue):
            pytest.skip(f"tc cannot limit bandwidth here: {reason}")
        found[name] = fastest(launches, two_hosts, name)
    # In the flat ring of four devices, one device of each host sends to the other host, as much as
    # every device sends: 3/2 of the parameters. In the hierarchical reduction, both devices send
    # half of the parameters.
    parameters_bytes = 6_300_672
    crossing = {"data=4": 3 / 2 * parameters_bytes, "data=2,fsdp=2": parameters_bytes}
    for mesh, sent_bytes in crossing.items():
        waits_s = found["slow"][mesh] - found["free"][mesh]
        assert waits_s == pytest.approx(sent_bytes * 8 / bits_per_s, rel=0.25)
    assert found["slow"]["data=2,fsdp=2"] < 0.8 * found["slow"]["data=4"]
