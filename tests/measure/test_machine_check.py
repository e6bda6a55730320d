"""`doctor` on planted machines: what it reads, what that allows, and what it advises."""

from __future__ import annotations

import io
import json
import sys
from types import SimpleNamespace

import pytest
from rich.console import Console
from typer.testing import CliRunner

from bench.__main__ import app
from bench.contract import divided_sequences
from bench.measure import machine_check
from bench.measure.processes.guarded import Answer
from bench.present import machine_screen
from bench.worker.answer import machine_devices

GIB = 1 << 30


class NVMLError(Exception):
    """As pynvml's."""


def unsupported(*_):
    raise NVMLError("Not Supported")


def nvml(boards=1, **changed):
    """An NVML of H100 boards that nobody uses; `changed` replaces its functions."""
    values = {
        "System": {"DriverVersion": "580.65", "CudaDriverVersion": 13000},
        "Device": {
            "Count": boards,
            "HandleByIndex": lambda number: number,
            "Name": "NVIDIA H100 80GB HBM3",
            "MemoryInfo": SimpleNamespace(total=80 * GIB, used=GIB),
            "ClockInfo": 345,
            "MaxClockInfo": 1980,
            "Temperature": 31,
            "PowerUsage": 70_500,
            "EnforcedPowerLimit": 700_000,
            "PowerManagementDefaultLimit": 700_000,
            "CurrentClocksThrottleReasons": 0x1,  # idle, which is no fault
            "PersistenceMode": 1,
            "MigMode": unsupported,
            "ComputeMode": 0,
            "ComputeRunningProcesses": [],
        },
    }
    functions = {
        f"nvml{what}Get{name}": value if callable(value) else lambda *_, value=value: value
        for what, named in values.items()
        for name, value in {**named, **(changed if what == "Device" else {})}.items()
    }
    return SimpleNamespace(NVMLError=NVMLError, nvmlInit=lambda: None, **functions)


ABLE = {"Traces": "", "Energy": "", "Fused attention": ""}
GPU = {
    "platform": "gpu", "kinds": ["NVIDIA H100 80GB HBM3"] * 2, "memory_bytes": 76 * GIB,
    "backend": "PJRT C API cuda 13000", "missing": ABLE,
}  # fmt: skip
CPU = {
    "platform": "cpu", "kinds": ["cpu"], "memory_bytes": None, "backend": "cpu",
    "missing": ABLE | {"Energy": "none here", "Fused attention": "no kernel for CPUs"},
}  # fmt: skip


@pytest.fixture
def examine(monkeypatch, tmp_path):
    """Examine a planted machine: its devices, its NVML, its files, and changes of its host."""

    def run(devices, library=None, files=None, **host):
        usual = {"os": "Linux", "cpu": "a CPU", "usable_cores": 8, "load": 0.1}
        usual |= {"memory_bytes": 64 * GIB, **host}
        monkeypatch.setattr(machine_check, "describe_host", lambda: usual)
        monkeypatch.setattr(machine_check, "read_devices", lambda: devices)
        for name, text in (files or {}).items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        absent = SimpleNamespace(NVMLError=NVMLError, nvmlInit=unsupported)
        monkeypatch.setitem(sys.modules, "pynvml", library or absent)
        return machine_check.examine(tmp_path)

    return run


def test_a_board_is_read(examine):
    machine = examine(GPU, nvml(2))
    assert machine["advice"] == []
    assert machine["gpus"]["driver"] == "580.65"
    assert machine["gpus"]["cuda"] == "13.0"
    board = machine["gpus"]["boards"][1]
    assert (board["power_w"], board["limit_w"]) == (70.5, 700.0)
    assert (board["shared"], board["divided"], board["throttled"]) == (True, None, "")
    reserved = {name for name, why in machine["measures"].items() if why}
    assert reserved <= {"--input", "--checkpoint"}, "all is well"


@pytest.mark.parametrize("versions", [{}, {"grain": "0.2"}])
def test_an_option_whose_package_is_missing_names_it(examine, monkeypatch, versions):
    monkeypatch.setattr(machine_check, "installed", lambda _: versions)
    needed = examine(CPU)["measures"]["--input"]
    assert needed == ("" if versions else "needs the package grain")


def test_cpu_devices_scale_up_to_the_cores(examine):
    measures = examine(CPU, usable_cores=2)["measures"]
    assert measures["Scaling over devices"].startswith("up to 2 cores; more virtual devices")
    assert measures["MFU"] == "no published peak for CPUs"


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        (
            {"ComputeRunningProcesses": [1, 2]},
            "it is used by 2 other processes, so timings will be unreliable",
        ),
        (
            {"MemoryInfo": SimpleNamespace(total=80 * GIB, used=20 * GIB)},
            "20.0\N{NARROW NO-BREAK SPACE}GiB of its memory",
        ),
        ({"CurrentClocksThrottleReasons": 0x44}, "its clock is held down now by power and heat"),
        ({"ComputeMode": 3}, "it admits one process at a time"),
        ({"MigMode": (1, 1)}, "MIG is enabled"),
        ({"EnforcedPowerLimit": 500_000}, "its power limit is 500 W of 700 W"),
        ({"PersistenceMode": 0}, "persistence mode is off"),
    ],
)
def test_a_boards_fault_has_advice(examine, changed, fault):
    (advice,) = examine(GPU, nvml(**changed))["advice"]
    assert advice.startswith(f"GPU 0: {fault}")


def test_what_a_board_does_not_tell_is_unknown(examine):
    names = ("MemoryInfo", "PersistenceMode", "PowerUsage", "ComputeRunningProcesses")
    (board,) = examine(GPU, nvml(**dict.fromkeys(names, unsupported)))["gpus"]["boards"]
    unknown = ("memory_bytes", "persistent", "power_w", "processes")
    assert [board[key] for key in unknown] == [None] * 4


@pytest.mark.parametrize(
    ("devices", "library", "files", "host", "advice"),
    [
        (GPU, None, {}, {}, "the GPUs could not be queried (NVML: Not Supported)"),
        (
            GPU | {"missing": ABLE | {"Fused attention": "jax finds no cuDNN for this device"}},
            nvml(),
            {},
            {},
            "attention will be several times slower than it could be: jax finds no cuDNN",
        ),
        (
            GPU | {"missing": ABLE | {"Traces": "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"}},
            nvml(),
            {"proc/driver/nvidia/params": "ResmanDebugLevel: 1\nRmProfilingAdminOnly: 1\n"},
            {},
            "only root may profile",
        ),
        (CPU, None, {}, {"load": 5.0}, "the load is 5 on 8 usable cores"),
        (
            CPU,
            None,
            {"proc/self/cgroup": "0::/box\n", "sys/fs/cgroup/box/cpu.max": "250000 100000\n"},
            {},
            "the control group may use 2.5 of 8 cores",
        ),
        (
            CPU,
            None,
            {"sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave\n"},
            {},
            "the CPU's governor is powersave",
        ),
    ],
)
def test_a_machines_fault_has_advice(examine, devices, library, files, host, advice):
    (found,) = examine(devices, library, files, **host)["advice"]
    assert found.startswith(advice)


@pytest.mark.parametrize("driver", ["", "RmProfilingAdminOnly: 0\n"])
def test_traces_that_fail_for_another_reason_are_not_blamed_on_the_driver(examine, driver):
    devices = GPU | {"missing": ABLE | {"Traces": "libcupti was not found"}}
    assert examine(devices, nvml(), {"proc/driver/nvidia/params": driver})["advice"] == []


def test_limits_of_the_group_are_read_or_unknown(tmp_path):
    empty = machine_check.read_limits(tmp_path)
    assert (empty["group_cores"], empty["group_bytes"], empty["governor"]) == (None, None, "")
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "cpu.max").write_text("max 100000\n")
    (group / "memory.max").write_text(f"{4 * GIB}\n")
    found = machine_check.read_limits(tmp_path)
    assert (found["group_cores"], found["group_bytes"]) == (None, 4 * GIB)
    for folder, cores, size in (("slice", "150000", f"{GIB}"), ("slice/job", "max", "max")):
        (group / folder).mkdir()
        (group / folder / "cpu.max").write_text(f"{cores} 100000\n")
        (group / folder / "memory.max").write_text(f"{size}\n")
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/slice/job\n")
    found = machine_check.read_limits(tmp_path)
    assert (found["group_cores"], found["group_bytes"]) == (1.5, GIB), "those of an outer group"


def test_it_fits_a_screen(examine):
    machine = examine(GPU, nvml(2, PersistenceMode=0))
    out = io.StringIO()
    machine_screen.show(Console(file=out, width=100), machine)
    text = out.getvalue()
    assert len(text.splitlines()) <= 40
    assert "2 x NVIDIA H100 80GB HBM3, 76.0" in text
    assert "345 of 1980 MHz; 70 of 700 W; 31 °C" in text
    assert "used; 0 processes" in " ".join(text.split())
    assert "- GPU 1: persistence mode is off" in text


@pytest.mark.parametrize(
    ("variables", "versions", "cuda", "advice"),
    [
        ({"CUDA_VISIBLE_DEVICES": ""}, {}, 13000, "CUDA_VISIBLE_DEVICES hides them; unset it"),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, {}, 13000, "CUDA_VISIBLE_DEVICES hides them; unset it"),
        ({"JAX_PLATFORMS": "cpu"}, {}, 13000, "JAX_PLATFORMS is cpu; unset it"),
        ({"CUDA_VISIBLE_DEVICES": "0"}, {}, 13000, "it is installed for CPUs only"),
        (
            {},
            {"jax-cuda13-plugin": "0.12.0"},
            12040,
            "jax-cuda13-plugin needs a driver for CUDA 13, and this one supports CUDA up to 12.4;",
        ),
        ({}, {"jax-cuda12-plugin": "0.12.0"}, 12040, "`JAX_PLATFORMS=cuda python -c"),
    ],
)
@pytest.mark.parametrize("devices", [CPU, None])
def test_gpus_that_jax_does_not_use_have_a_reason(
    monkeypatch, examine, devices, variables, versions, cuda, advice
):
    found = devices or failing(monkeypatch)
    monkeypatch.setattr(machine_check, "recorded_variables", lambda: variables)
    monkeypatch.setattr(machine_check, "installed", lambda _: versions)
    library = nvml()
    library.nvmlSystemGetCudaDriverVersion = lambda: cuda
    (text,) = examine(found, library)["advice"]
    assert text.startswith(f"jax does not use the GPUs: {advice}")


def failing(monkeypatch):
    """What is known of the devices if jax fails."""
    answer = Answer("", ["RuntimeError: Unable to initialize backend"], 1)
    monkeypatch.setattr(machine_check, "ask", lambda *_: answer)
    return machine_check.read_devices()


def test_a_machine_whose_jax_fails_says_so(monkeypatch, examine):
    machine = examine(failing(monkeypatch))
    (advice,) = machine["advice"]
    assert advice.startswith("jax finds no device: its process ended with exit code 1")
    assert advice.endswith("RuntimeError: Unable to initialize backend")
    assert machine["measures"] == {"Times and verdicts": advice}
    out = io.StringIO()
    machine_screen.show(Console(file=out, width=200), machine)
    assert f"devices    {advice}" in out.getvalue()


def test_gpus_of_another_vendor_are_not_advised_to_use_cuda(examine):
    missing = ABLE | {"Fused attention": "none"}
    rocm = GPU | {"backend": "PJRT C API rocm 70000", "missing": missing}
    assert examine(rocm)["advice"] == []


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [(lambda q, k, v: q + k + v, ""), (lambda *_: 1 / 0, "ZeroDivisionError: division by zero")],
)
def test_fused_attention_is_tried(monkeypatch, kernel, expected):
    monkeypatch.setattr(divided_sequences, "cudnn_attention", lambda _: kernel)
    trial = machine_devices.fuse_attention
    assert machine_devices.why_missing(trial, "gpu") == expected
    assert trial("tpu") == "jax finds no cuDNN for this device"


def test_the_command_prints_what_is_here():
    done = CliRunner().invoke(app, ["doctor", "--json"])
    assert done.exit_code == 0, done.output
    machine = json.loads(done.output)
    assert machine["devices"]["platform"] == "cpu"
    assert machine["devices"]["missing"]["Traces"] == "", "the profiler was tried"
    assert machine["versions"]["jax"]
