"""Counters of energy: planted ones are read, summed, and told with what they cannot resolve."""

from __future__ import annotations

import math
import os
import sys
import time
from types import SimpleNamespace

import pandas as pd
import pytest
import synthetic

from bench.analyse import cell_table
from bench.present import report_files, run_environment
from bench.records import store
from bench.records.nvml import UnknownError
from bench.worker import process_exchange
from bench.worker.block_rounds import MERGES
from bench.worker.time import energy_counters
from bench.worker.time.energy_counters import (
    Meter,
    board,
    packages,
    period,
)
from bench.worker.time.turn_slots import merged

US = 1_000_000


def package(root, folder, name, uj=5 * US, most=100 * US):
    domain = root / folder
    domain.mkdir(parents=True)
    (domain / "name").write_text(f"{name}\n")
    (domain / "max_energy_range_uj").write_text(f"{most}\n")
    (domain / "energy_uj").write_text(f"{uj}\n")
    return domain / "energy_uj"


def topology(root, packages_of_cores):
    for core, number in packages_of_cores.items():
        folder = root / f"cpu{core}/topology"
        folder.mkdir(parents=True)
        (folder / "physical_package_id").write_text(f"{number}\n")
    return root


class Planted:
    """A counter whose readings are given."""

    def __init__(self, name="c", watts=10.0, every_s=0.0):
        self.name, self.kind = name, "board"
        self.watts, self.every_s = watts, every_s

    def joules(self):
        now = time.monotonic()
        if self.every_s:
            now -= now % self.every_s
        return self.watts * now


@pytest.fixture
def clock(monkeypatch):
    """Time that passes where somebody sleeps."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    return now


def meter_of(monkeypatch, *planted):
    monkeypatch.setattr(energy_counters, "counters", lambda _: [*planted])
    return Meter([])


def test_packages_count_and_parts_of_them_do_not(tmp_path, monkeypatch):
    package(tmp_path, "intel-rapl:0", "package-0", uj=5 * US)
    package(tmp_path, "intel-rapl:0:0", "core")
    package(tmp_path, "intel-rapl:0:1", "dram")
    package(tmp_path, "intel-rapl:1", "package-1")
    package(tmp_path, "intel-rapl:2", "psys")
    package(tmp_path, "intel-rapl-mmio:0", "package-0", uj=77 * US)
    (tmp_path / "intel-rapl").mkdir()
    found = packages(tmp_path, tmp_path / "none")
    assert [one.name for one in found] == ["package-0", "package-1"]
    (tmp_path / "intel-rapl:0/energy_uj").write_text(str(6 * US))
    assert [one.joules() for one in found] == [1.0, 0.0], "since they were made"
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {2, 3}, raising=False)
    cores = topology(tmp_path / "cpu", {0: 0, 1: 0, 2: 1, 3: 1})
    assert [one.name for one in packages(tmp_path, cores)] == ["package-1"], "of its own cores"


def test_a_counter_that_starts_over_goes_on(tmp_path):
    path = package(tmp_path, "intel-rapl:0", "package-0-die-1", uj=90 * US, most=100 * US)
    (found,) = packages(tmp_path, tmp_path)
    for uj, joules in ((99 * US, 9.0), (4 * US, 14.0), (3 * US, 113.0)):
        path.write_text(str(uj))
        assert found.joules() == joules


def test_what_cannot_be_read_is_unknown_with_its_reason(tmp_path, monkeypatch):
    with pytest.raises(UnknownError, match="shows no energy of its CPU packages"):
        packages(tmp_path, tmp_path)
    path = package(tmp_path, "intel-rapl:0", "package-0")

    def refuse(self, *_args, **_options):
        if self == path:
            raise PermissionError(13, "Permission denied")
        return original(self)

    original = type(path).read_text
    monkeypatch.setattr(type(path), "read_text", refuse)
    with pytest.raises(UnknownError, match="only root may read energy_uj of package-0"):
        packages(tmp_path, tmp_path)


class NVMLError(Exception):
    """As pynvml's."""


def nvml(joules, names=(), fails=""):
    """Stands in for the module pynvml, with boards that have used so many joules."""
    boards_mj = [1000 * each for each in joules]
    kinds = names or ["NVIDIA H100"] * len(boards_mj)
    calls = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: len(boards_mj),
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetHandleByUUID": lambda uuid: int(uuid.removeprefix("GPU-")),
        "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle}",
        "nvmlDeviceGetName": lambda handle: kinds[handle],
        "nvmlDeviceGetTotalEnergyConsumption": lambda handle: boards_mj[handle],
    }

    def failing(*_arguments):
        raise NVMLError("Not Supported")

    if fails:
        calls[fails] = failing
    return SimpleNamespace(NVMLError=NVMLError, mj=boards_mj, **calls)


@pytest.mark.parametrize(
    ("shown", "names"),
    [
        ("", ["GPU-0", "GPU-1"]),
        ("2,1", ["GPU-2", "GPU-1"]),
        ("GPU-1,0", ["GPU-1", "GPU-0"]),
    ],
)
def test_boards_are_those_that_the_devices_are(monkeypatch, shown, names):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    planted = nvml([10, 20, 30])
    monkeypatch.setitem(sys.modules, "pynvml", planted)
    found = [board(0), board(1)]
    assert [one.name for one in found] == names
    before = [one.joules() for one in found]
    planted.mj[:] = [mj + 1500 for mj in planted.mj]
    assert [one.joules() for one in found] == [joules + 1.5 for joules in before]


@pytest.mark.parametrize(
    ("planted", "shown", "reason"),
    [
        (nvml([1], fails="nvmlInit"), "", "NVML: Not Supported"),
        (nvml([1], fails="nvmlDeviceGetTotalEnergyConsumption"), "", "NVML: Not Supported"),
        (nvml([1]), "MIG-4", "a part of a board"),
        (nvml([1, 2], ["A", "B"]), "", "set CUDA_DEVICE_ORDER=PCI_BUS_ID to make them agree"),
    ],
)
def test_boards_that_tell_nothing_are_unknown(monkeypatch, planted, shown, reason):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    monkeypatch.setitem(sys.modules, "pynvml", planted)
    with pytest.raises(UnknownError, match=reason):
        board(0)


def test_without_the_package_it_says_which(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(UnknownError, match="nvidia-ml-py"):
        board(0)


def test_how_often_a_counter_moves_is_seen(clock):
    assert period([Planted(every_s=0.02), Planted(every_s=0.001)]) == pytest.approx(0.02, rel=0.05)
    assert period([Planted(watts=0)]) == energy_counters.LOOK_S


def test_a_meter_sums_what_was_used_between_readings(clock, monkeypatch):
    meter = meter_of(monkeypatch, Planted("a", 10), Planted("b", 30, every_s=0.05))
    assert meter.description["counted"] == ["board", "board"]
    assert meter.description["period_s"] == pytest.approx(0.05, rel=0.05)
    joules = seconds = 0.0
    for _ in range(100):
        time.sleep(0.073)
        slot = meter.slot()
        joules, seconds = joules + slot["joules"], seconds + slot["seconds"]
    assert seconds == pytest.approx(7.3)
    assert joules == pytest.approx(40 * 7.3, abs=30 * 0.05 + 1e-3), "coarse moves do not add up"


def test_a_package_that_two_processes_see_counts_once(clock, monkeypatch):
    meters = []
    others = [
        [["host", [["p", "board"]], 0.1, ""], ["host", [["p", "board"], ["q", "board"]], 0.0, ""]]
    ]
    for rank in (0, 1):
        monkeypatch.setattr(process_exchange, "gather", lambda _value: others[0])
        monkeypatch.setattr(energy_counters.jax, "process_index", lambda rank=rank: rank)
        own = [Planted("p", 10)] if rank == 0 else [Planted("p", 10), Planted("q", 5)]
        meters.append(meter_of(monkeypatch, *own))
    time.sleep(2)
    slots = [meters[0].slot(), meters[1].slot()]
    assert slots[1]["joules"] / slots[1]["seconds"] == pytest.approx(5), "the package is rank 0's"
    assert slots[0]["joules"] / slots[0]["seconds"] == pytest.approx(10)
    assert merged(slots, MERGES["energy"])["joules"] == pytest.approx(
        sum(slot["joules"] for slot in slots)
    )
    for meter in meters:
        assert meter.description == {"counted": ["board", "board"], "period_s": 0.1, "reason": ""}


def test_a_counter_that_fails_later_leaves_the_times_alone(clock, monkeypatch):
    counter = Planted()
    meter = meter_of(monkeypatch, counter)
    counter.joules = lambda: {}["gone"]
    assert meter.slot() is None
    assert meter.description["reason"] == "KeyError: 'gone'"
    monkeypatch.undo()
    assert (
        Meter([SimpleNamespace(platform="tpu")])
        .description["reason"]
        .endswith("for the platform tpu")
    )


PLAN = synthetic.Plan(devices=(1,), ratios={"jit_spmd": 1.0, "hungry": 1.2}, rounds=50)
WATTS = {"jit_spmd": 100.0, "twin": 100.0, "hungry": 200.0}


def counted(folder, period_s, reason="", seconds=2.0):
    """A run whose turns last 2 s, of 41 steps each."""
    directory = synthetic.write(folder, PLAN)

    def sample(row):
        if not reason:
            row["energy"] = {"joules": seconds * WATTS[row["arm"]], "seconds": seconds}

    def launch(row):
        kinds = [] if reason else ["CPU package"] * 2
        row["energy"] = {"counted": kinds, "period_s": period_s, "reason": reason}

    synthetic.rewrite(directory, "samples", sample)
    synthetic.rewrite(directory, "blocks", launch)
    run = store.load(directory)
    return run, cell_table.build(run)


def test_joules_of_a_step_are_those_of_all_turns(tmp_path):
    run, found = counted(tmp_path, 0.001)
    cells = found.cells.set_index("implementation")
    assert cells["joules_per_step"].to_dict() == {
        "jit_spmd": pytest.approx(200 / 41), "hungry": pytest.approx(400 / 41),
    }  # fmt: skip
    assert cells["joules_per_unit"]["hungry"] == pytest.approx(400 / 41 / 64)
    assert cells["watts"].to_dict() == {"jit_spmd": 100, "hungry": 200}
    assert cells["energy_ratio"]["hungry"] == 2
    assert pd.isna(cells["energy_ratio"]["jit_spmd"])
    # 50 turns of 2 s: 2 sqrt(50/6) T / 100 s by chance, and T / 4 s of the gap to a mean of 133 W.
    chance, booked = 2 * (50 / 6) ** 0.5 * 1e-5, 0.00025
    expected = chance + booked / (1 - booked) * (200 - 400 / 3) / 200
    assert cells["joules_error"]["hungry"] == pytest.approx(expected * 400 / 41)
    other = chance + booked / (1 - booked) * (400 / 3 - 100) / 100
    assert cells["energy_ratio_error"]["hungry"] == pytest.approx(2 * math.hypot(expected, other))
    assert run_environment.energy(found) == (
        "of whole CPU packages, with idle power and other programs; the counters advance every "
        "1.00\N{NARROW NO-BREAK SPACE}ms, and turns that are too short for them have no figure: a "
        "larger --seconds makes them longer"
    )
    report_files.build(run)
    text = (run.directory / "report.md").read_text()
    assert "| Energy (per step, 95 % interval) | Energy (per sample or token) |" in text
    assert "| Energy | of whole CPU packages" in text
    assert pd.read_csv(run.directory / "samples.csv")["energy_joules"].max() == 400


def test_turns_that_are_too_short_for_the_counter_have_no_figure(tmp_path):
    _, found = counted(tmp_path, 2.1)
    assert found.cells["joules_per_step"].isna().all()


def test_where_no_counter_tells_one_line_says_why(tmp_path):
    run, found = counted(tmp_path, 0.0, reason="no counter here")
    assert found.cells["watts"].isna().all()
    assert run_environment.energy(found) == "unknown: no counter here"
    environment = run_environment.environment(run.manifest, found)
    assert ("Energy", "unknown: no counter here") in environment
    earlier = store.load(synthetic.write(tmp_path / "earlier", PLAN))
    assert run_environment.energy(cell_table.build(earlier)) == ""
