"""Faulty implementations and workloads, each of which goes wrong in one way and at one moment.

A run is given a small file that calls `plant`; `observed_run` writes it. No planted file can be
found by name, because none belongs to Lockstep's own implementations.
"""

import contextlib
import ctypes
import itertools
import json
import os
import resource
import signal
import stat
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental import multihost_utils
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from bench.contract import Implementation, Problem, TrainStep
from bench.contract.workloads import linear
from bench.trials.faults import FOLDER, WAITING
from bench.trials.faults.planted_foreign import spin
from bench.trials.faults.planted_steps import CHANGES, frame_with, timed

SIZES = linear.SIZES
DEFAULT_SIZE = "tiny"

Action = Callable[[], object]

IN_STEP = ("in_step", "in_rounds", "in_peer")
"""Moments of a step: every call, those of the timed rounds, or those of the second of two
processes, for which the first one waits."""
MOMENTS = ("at_import", "when_asked", "in_build", *IN_STEP)
"""When an action runs; `when_asked` means in `why_unsupported`."""


def plant(
    name: str, right: Implementation
) -> tuple[Callable[[Problem, Mesh], TrainStep], Callable[[Problem, Mesh], str | None]]:
    """Return `build` and `why_unsupported` of an implementation that otherwise equals `right`.

    `name` is `good`, a key of CHANGES, or a key of ACTIONS and a moment: `raise_in_build`.
    """
    planned = next((moment for moment in MOMENTS if name.endswith(moment)), "")
    action = ACTIONS[name.removesuffix(f"_{planned}")] if planned else int

    def reach(moment: str) -> None:
        if moment == planned:
            action()

    reach("at_import")

    def build(problem: Problem, mesh: Mesh) -> TrainStep:
        reach("in_build")
        correct = right.build(problem, mesh)

        def step(state: Any, batch: Any) -> Any:
            reach("in_step")
            if timed():
                reach("in_rounds")
            if jax.process_index() == 1:
                reach("in_peer")
            return correct.step(state, batch)

        changed: TrainStep = CHANGES.get(name, lambda same: same)(correct)
        return replace(correct, step=step) if planned in IN_STEP else changed

    def why_unsupported(problem: Problem, mesh: Mesh) -> str | None:
        reach("when_asked")
        return right.why_unsupported(problem, mesh)

    return build, why_unsupported


_sleep = threading.Event().wait


def _raise(error: type[BaseException] = RuntimeError) -> NoReturn:
    raise error("planted")


def _allocate_on_host() -> None:
    """Allocate 64 GiB under an address space limit that leaves 1 GiB, also to other arms."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limits = pages * resource.getpagesize() + (1 << 30), resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, limits)
    np.ones(1 << 33)


def _compile_without_end() -> None:
    """Compile 300 lines, each of which reads two elements of the previous line.

    Tracing takes less than a second. XLA:CPU did not finish within minutes.
    """

    def grow(x: jax.Array) -> jax.Array:
        for number in range(300):
            x = jnp.sin(x) + jnp.roll(x, number + 1)
        return x

    jax.jit(grow).lower(jnp.ones((64, 64))).compile()


def _print_garbage() -> None:
    """Write large amounts of binary data, endless lines and forged events."""
    event = {"event": "block", "row": {"implementation": "good"}}
    for descriptor in (1, 2):
        os.write(descriptor, bytes(range(256)) * 64)
        os.write(descriptor, f"{json.dumps(event)}\n{{\n[1]\n\x1b[2J".encode())
    for stream in (sys.stdout, sys.stderr):
        print(json.dumps({"event": "cell"}), "no end" * 1_000_000, end="", file=stream)
        stream.flush()


def _forge_samples() -> None:
    """Write samples to every pipe of the process, one of which carries the worker's events."""
    event = {"event": "samples", "rows": [1]}
    for descriptor in range(3, 64):
        with contextlib.suppress(OSError):
            if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
                os.write(descriptor, f"{json.dumps(event)}\n".encode())


@cache  # once per process
def _wait_in_second_process() -> None:
    """Wait in the second process that builds it until the trial creates the file `go`."""
    folder = Path(os.environ[FOLDER])
    with (folder / "built").open("ab", buffering=0) as file:
        file.write(b"+")
        number = file.tell()
    if number == 2:  # noqa: PLR2004
        (folder / WAITING).touch()
        while not (folder / "go").exists():
            time.sleep(0.05)


def _deadlock() -> None:
    """Run an all-reduce that device 0 never joins: its host never answers."""

    def wait(index: Any) -> Any:
        if int(index) == 0:
            _sleep()
        return index

    def reduce(x: jax.Array) -> jax.Array:
        index = jax.lax.axis_index("data")
        answer = jax.pure_callback(wait, jax.ShapeDtypeStruct((), jnp.int32), index)
        return jax.lax.psum(x + answer, "data")

    mesh = Mesh(np.array(jax.devices()), ("data",))
    reduced = jax.shard_map(reduce, mesh=mesh, in_specs=P("data"), out_specs=P(), check_vma=False)
    jax.block_until_ready(jax.jit(reduced)(jnp.zeros(mesh.size)))


def _set_flags() -> None:
    """Change the arithmetic and the compilation of all arms, and leave a context open."""
    for flag in ("jax_disable_jit", "jax_debug_nans"):
        jax.config.update(flag, True)
    jax.config.update("jax_default_matmul_precision", "bfloat16")
    jax.enable_x64(True).__enter__()
    jax.set_mesh(Mesh(np.array(jax.devices()), ("data",)))
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    os.chdir("/")
    os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0"


def _move_the_start() -> None:
    """Reset the start of the current timed span to now, in the frame of the clock that holds it."""
    frame = frame_with("start")
    values = frame.f_locals
    if "start" in values:
        values["start"] = time.perf_counter_ns()
        # From Python 3.13 on, this is not needed and does nothing.
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), 0)


ACTIONS: dict[str, Action] = {
    "raise": _raise,
    "interrupt": partial(_raise, KeyboardInterrupt),
    "exit": partial(sys.exit, 0),
    "quit": partial(sys.exit, "planted"),
    "end": partial(os._exit, 0),
    "end_with_7": partial(os._exit, 7),
    "kill": partial(signal.raise_signal, signal.SIGKILL),
    "stop": partial(signal.raise_signal, signal.SIGSTOP),
    "crash": partial(ctypes.string_at, 0),
    "sleep": _sleep,
    # Loop forever in C without releasing Python's global interpreter lock.
    "hold_lock": partial(deque[int], itertools.repeat(0), maxlen=0),
    "host_memory": _allocate_on_host,
    "device_memory": lambda: jnp.zeros((1 << 46,)).block_until_ready(),
    "compile": _compile_without_end,
    "trace": lambda: jax.jit(lambda x: sum(x for _ in itertools.count()))(jnp.ones(8)),
    "deadlock": _deadlock,
    "meet_nobody": lambda: multihost_utils.sync_global_devices("nobody else is here"),
    "leave_child": lambda: subprocess.Popen(["sleep", "3600"], start_new_session=True),  # noqa: S607
    # An orphan in its own session, with an empty environment.
    "leave_daemon": partial(
        subprocess.run, ["sh", "-c", "sleep 3600 & exit"], start_new_session=True, env={}
    ),
    "leave_thread": lambda: threading.Thread(target=_sleep).start(),
    "print": _print_garbage,
    "forge": _forge_samples,
    "wait": _wait_in_second_process,
    "patch_clock": lambda: setattr(time, "perf_counter_ns", int),
    "poison_json": lambda: setattr(json.JSONEncoder, "iterencode", int),
    "clear_caches": jax.clear_caches,
    "set_flags": _set_flags,
    "move_start": _move_the_start,
    "spin": spin,
    # Leave a daemon that works during other arms' turns.
    "spin_child": cache(partial(os.system, "(while :; do :; done) >/dev/null 2>&1 &")),
    # End the process from a thread, most likely in another arm's turn.
    "exit_later": cache(lambda: threading.Timer(0.05, os._exit, (1,)).start()),
    # Delete all arrays of the process: those of other arms, and of the reference.
    "delete": lambda: [array.delete() for array in jax.live_arrays()],
}
"""Faulty actions."""


def nan_workload(config: Any, batch_size: int, precision: str, remat: str = "") -> Problem:
    """Return the linear workload with the logarithm of a negative number added to the loss."""
    right = linear.problem(config, batch_size, precision, remat)

    def loss(model: Any, batch: Any) -> jax.Array:
        return right.loss(model, batch) + jnp.log(-jnp.ones(()))

    return replace(right, loss=loss)


def unstable_workload(config: Any, batch_size: int, precision: str, remat: str = "") -> Problem:
    """Return the linear workload, with a learning rate at which every step increases the loss."""
    return replace(linear.problem(config, batch_size, precision, remat), optimizer=optax.sgd(2.0))
