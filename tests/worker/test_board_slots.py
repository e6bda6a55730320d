"""GPUs at the end of turns: a substitute of pynvml is read, merged, stored, and told."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pandas as pd
import pytest
import synthetic

from bench.analyse import cell_table
from bench.analyse.turn_details import Throttling
from bench.present.caveats import caveats
from bench.records import frames, store
from bench.worker.read.compilation import CompilationLog
from bench.worker.time import clock
from bench.worker.time.turn_slots import BOARDS, BoardWatch, merged


class NVMLError(Exception):
    """As pynvml's."""


def unsupported(*_):
    raise NVMLError("Not Supported")


def nvml(reasons, kind="Event", **changed):
    """Two boards, of which the second one's clock is held down; names are pynvml's."""
    functions = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda number: number,
        "nvmlDeviceGetName": lambda _: "NVIDIA H100 80GB HBM3",
        "nvmlDeviceGetClockInfo": lambda handle, _: (1980, 1200)[handle],
        "nvmlDeviceGetTemperature": lambda handle, _: (61, 88)[handle],
        "nvmlDeviceGetPowerUsage": lambda handle: (650_500, 400_000)[handle],
        f"nvmlDeviceGetCurrentClocks{kind}Reasons": lambda handle: (0x1, reasons)[handle],
    }
    return SimpleNamespace(**{**functions, "NVMLError": NVMLError, **changed})


def gpus(count):
    return [SimpleNamespace(platform="gpu", local_hardware_id=n) for n in range(count)]


@pytest.fixture
def watch(monkeypatch):
    """Return the slot of the first GPUs of a planted machine, none of which is hidden."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def run(devices, library):
        monkeypatch.setitem(sys.modules, "pynvml", library)
        return BoardWatch(devices).slot()

    return run


@pytest.mark.parametrize("kind", ["Event", "Throttle"])
@pytest.mark.parametrize(
    ("reasons", "words"),
    [
        (0x0, ""), (0x1, ""), (0x4, "power"), (0x40, "heat"), (0x20 | 0x4, "heat; power"),
        (0x80, "power brake"),
    ],
)  # fmt: skip
def test_the_slowest_and_hottest_board_is_kept(watch, kind, reasons, words):
    assert watch(gpus(2), nvml(reasons, kind)) == {
        "clock_mhz": 1200, "temperature_c": 88, "power_w": 1050.5, "throttled": words,
    }  # fmt: skip
    assert watch(gpus(1), nvml(reasons, kind))["throttled"] == "", "of its own board"


def test_what_a_board_does_not_say_is_unknown(watch):
    old = nvml(0x4, nvmlDeviceGetPowerUsage=unsupported, nvmlDeviceGetTemperature=unsupported)
    slot = watch(gpus(2), old)
    assert (slot["clock_mhz"], slot["temperature_c"], slot["power_w"]) == (1200, None, None)
    silent = nvml(0x4, nvmlDeviceGetCurrentClocksEventReasons=unsupported)
    assert watch(gpus(2), silent)["throttled"] is None, "not said is not unthrottled"


def test_without_boards_nothing_is_read(watch):
    assert watch([SimpleNamespace(platform="cpu")], nvml(0)) is None
    assert watch(gpus(1), nvml(0, nvmlInit=unsupported)) is None
    assert watch(gpus(1), None) is None, "the package is not installed"


def test_the_boards_of_all_processes_are_merged():
    one = {"clock_mhz": 1500.0, "temperature_c": 60.0, "power_w": 500.0}
    slots = [one | {"throttled": "power"}, one | {"clock_mhz": 1400.0, "throttled": "heat; power"}]
    assert merged(slots, BOARDS) == {
        "clock_mhz": 1400, "temperature_c": 60, "power_w": 1000, "throttled": "heat; power",
    }  # fmt: skip
    assert merged([*slots, one | {"throttled": None}], BOARDS)["throttled"] is None
    assert merged([one | {"throttled": ""}] * 2, BOARDS)["throttled"] == ""


def test_boards_are_read_between_spans(monkeypatch):
    """Each turn has the slot that was read right after its last span, before the energy."""
    calls, slots = [], iter(range(9))

    def run(arm, steps, *, wait_each=False):
        calls.append(f"span {steps}")
        return 1

    def boards():
        calls.append("boards")
        return {"throttled": str(next(slots))}

    monkeypatch.setattr(clock.Arm, "run", run)
    arm = clock.Arm("a", None, None, None)
    with CompilationLog() as log:
        turns, _ = clock.measure(
            [arm], 2, 0, log, lambda turns: () if len(turns) == 2 else None,
            used=lambda: calls.append("energy"), boards=boards,
        )  # fmt: skip
    assert [turn["boards"]["throttled"] for turn in turns] == ["0", "1"]
    spans = [f"span {steps}" for steps in (1, 2, clock.latency_steps(2)) if steps]
    assert calls == ["energy", *spans, "boards", "energy"] * 2


def test_throttled_turns_are_marked_and_told(tmp_path):
    run = store.load(synthetic.write(tmp_path, synthetic.Plan(rounds=4)))
    first = run.samples["arm"] == min(run.samples["arm"])
    name = run.samples.loc[first, "arm"].iloc[0]
    run.samples["boards_throttled"] = ""
    assert cell_table.build(run).throttling is None
    own = run.samples.index[first]
    run.samples.loc[own[0], "boards_throttled"] = "heat; power"
    run.samples.loc[own[1], "boards_throttled"] = "heat"
    run.samples.loc[own[2], "boards_throttled"] = None
    found = cell_table.build(run)
    block = run.samples.loc[own[0], "block"]
    of = len(run.samples) - 1
    assert found.throttling == Throttling(2, of, {"heat": 2, "power": 1}, block, name)
    told = caveats(found, run.manifest)["Throttled GPUs"]
    assert f"after 2 of {of} turns (2 by heat, 1 by power), most often of {name} in {block}" in told


def test_a_stored_slot_becomes_columns():
    slot = {"clock_mhz": 1200.0, "throttled": "heat"}
    frame = frames.samples_frame([json.dumps({"arm": "a", "boards": slot}).encode() + b"\n"])
    assert isinstance(frame, pd.DataFrame)
    row = frame.iloc[0]
    assert [row[f"boards_{key}"] for key in ("clock_mhz", "throttled")] == [1200, "heat"]
