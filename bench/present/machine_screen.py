"""The findings of `doctor`, on one screen."""

from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from bench.present import terminal
from bench.records.machine_rows import Board, Machine
from bench.records.numbers import MISSING, bytes_, count


def show(console: Console, machine: Machine) -> None:
    """Print the hardware, what can be measured on it, and recommended changes."""
    console.print(Text("This machine", style="bold"))
    console.print(terminal.table("", "", rows=_hardware_lines(machine), header=False))
    console.print(Text("\nLockstep can measure", style="bold"))
    marks = [(name, why or "yes") for name, why in machine["measures"].items()]
    console.print(terminal.table("", "", rows=marks, header=False))
    console.print(Text("\nRecommended changes", style="bold"))
    for sentence in machine["advice"] or ["nothing"]:
        console.print(terminal.plain(f"- {sentence}"))


def _hardware_lines(machine: Machine) -> Iterator[tuple[str, str]]:
    host, limits, devices = machine["host"], machine["limits"], machine["devices"]
    kinds = sorted({*devices["kinds"]})
    named = ", ".join(f"{devices['kinds'].count(kind)} x {kind}" for kind in kinds)
    memory = f", {bytes_(devices['memory_bytes'])} each" if devices["memory_bytes"] else ""
    backend = "" if kinds == [devices["backend"]] else f" ({devices['backend']})"
    yield "devices", f"{named}{memory}{backend}" if kinds else devices["backend"]
    yield "packages", ", ".join(f"{name} {one}" for name, one in machine["versions"].items())
    gpus = machine["gpus"]
    if gpus["boards"]:
        yield "driver", f"{gpus['driver']}, for CUDA up to {gpus['cuda']}"
        yield from ((f"GPU {n}", _board(board)) for n, board in enumerate(gpus["boards"]))
    else:
        yield "GPUs", f"none known ({gpus['reason']})"
    quota = limits["group_cores"]
    granted = "" if quota is None else f", {quota:.3g} granted"
    governor = f", governor {limits['governor']}" if limits["governor"] else ""
    cores = count(host["usable_cores"], "usable core")
    yield "processor", f"{host['cpu']}, {cores}{granted}{governor}, load {host['load']:.2g}"
    most = "" if limits["group_bytes"] is None else f", {bytes_(limits['group_bytes'])} granted"
    free = bytes_(limits["available_bytes"])
    yield "memory", f"{bytes_(host['memory_bytes'])}, {free} available{most}"
    if machine["variables"]:
        yield "variables", ", ".join(f"{k}={v}" for k, v in machine["variables"].items())


def _board(board: Board) -> str:
    """Describe a board in a line: clock, power, temperature, memory and processes."""

    def known(value: float | None, unit: str) -> str:
        return MISSING if value is None else f"{value:.0f}{unit}"

    used = board["processes"]
    users = "processes unknown" if used is None else count(used, "process", "processes")
    return "; ".join(
        (
            board["name"],
            f"{known(board['clock_mhz'], '')} of {known(board['most_mhz'], ' MHz')}",
            f"{known(board['power_w'], '')} of {known(board['limit_w'], ' W')}",
            known(board["temperature_c"], " °C"),
            f"{bytes_(board['used_bytes'])} of {bytes_(board['memory_bytes'])} used",
            users,
        )
    )
