"""Implementations and workloads that go wrong, each in one way and at one moment.

`PLANTED` says where each implementation goes wrong; everywhere else it is a correct data-parallel
step. A run is given a small file that calls `plant`, which `observed_run` writes. No planted file
can be found by name, because none belongs to the suite's own implementations.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
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

from bench.contract import Batch, Problem, TrainStep
from bench.contract.placement import (
    create_data_parallel_sharding,
    place_batch_on_shards,
    place_model_state_on_shards,
    unknown_axes,
)
from bench.contract.workloads import linear
from bench.records.current_arm import VARIABLE

FOLDER = "LOCKSTEP_FAULT_FOLDER"
"""Environment variable that names the folder of the trial."""

SIZES = linear.SIZES
DEFAULT_SIZE = "tiny"

Action = Callable[[], object]
Change = Callable[[TrainStep, Mesh], Any]


@dataclass(frozen=True)
class Planted:
    """Where an implementation goes wrong."""

    at_import: Action = lambda: None
    when_asked: Action = lambda: None
    """In `why_unsupported`."""
    in_build: Action = lambda: None
    change: Change = lambda right, _: right
    """Turns the correct step on a mesh into what `build` returns."""


def plant(
    name: str,
) -> tuple[Callable[[Problem, Mesh], TrainStep], Callable[[Problem, Mesh], str | None]]:
    """Return `build` and `why_unsupported` of an implementation in `PLANTED`."""
    planted = PLANTED[name]
    planted.at_import()

    def build(problem: Problem, mesh: Mesh) -> TrainStep:
        planted.in_build()
        step: TrainStep = planted.change(_right_step(problem, mesh), mesh)
        return step

    def why_unsupported(problem: Problem, mesh: Mesh) -> str | None:
        del problem
        planted.when_asked()
        return unknown_axes(mesh, "data")

    return build, why_unsupported


def _right_step(problem: Problem, mesh: Mesh) -> TrainStep:
    """A correct step: jax.jit over sharded inputs."""
    params, loss_fn = problem.functional()
    sharding = create_data_parallel_sharding(mesh)

    @jax.jit
    def step(state: Any, batch: Batch) -> tuple[Any, jax.Array]:
        params, opt_state = state
        loss, grads = jax.value_and_grad(loss_fn)(params, batch)
        updates, opt_state = problem.optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), loss

    return TrainStep(
        state=place_model_state_on_shards((params, problem.optimizer.init(params)), mesh),
        place=lambda batch: place_batch_on_shards(batch, sharding),
        step=step,
        params=lambda state: state[0],
    )


# When an implementation goes wrong.


def _timed() -> bool:
    """Whether the timed rounds have begun: an arm holds the current turn."""
    return bool(os.pread(int(os.environ[VARIABLE]), 64, 0).strip(b"\0 ").partition(b" ")[2])


def _in_step(action: Action) -> Change:
    def change(right: TrainStep, mesh: Mesh) -> TrainStep:
        del mesh

        def step(state: Any, batch: Any) -> Any:
            action()
            return right.step(state, batch)

        return replace(right, step=step)

    return change


def _in_rounds(action: Action) -> Change:
    return _in_step(lambda: action() if _timed() else None)


def _in_rank_1(action: Action) -> Change:
    """In the first step of the second of two processes, for which the first one waits."""
    fault = _noted(action)
    return _in_step(lambda: fault() if jax.process_index() == 1 else None)


def _result(change: Callable[[Any, jax.Array], Any]) -> Change:
    """The step returns `change(state, loss)`."""
    return lambda right, _: replace(
        right, step=lambda state, batch: change(*right.step(state, batch))
    )


def _note() -> None:
    """Note for the observer that this process goes wrong now and should soon end."""
    path = Path(os.environ[FOLDER], "injected")
    draft = path.with_suffix(f".{os.getpid()}")
    draft.write_text(f"{os.getpid()} {time.monotonic()}", encoding="utf-8")
    draft.replace(path)


def _noted(action: Action) -> Action:
    def noted() -> None:
        _note()
        action()

    return noted


# What goes wrong.


_exit = partial(sys.exit, 0)
_sleep = threading.Event().wait
_crash = partial(ctypes.string_at, 0)
_hold_the_lock = partial(deque[int], itertools.repeat(0), maxlen=0)
"""Loop for ever in C without releasing Python's global interpreter lock."""


def _raise(error: type[BaseException] = RuntimeError) -> NoReturn:
    raise error("planted")


def _send(number: signal.Signals) -> Action:
    return lambda: os.kill(os.getpid(), number)


def _allocate_on_host() -> None:
    """Allocate 64 GiB under an address space limit that leaves 1 GiB."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (1 << 30), limits[1]))
    try:
        np.ones(1 << 33)
    finally:  # the limit holds for the whole process, in which other arms are measured
        resource.setrlimit(resource.RLIMIT_AS, limits)


def _compile_without_end() -> None:
    """Compile 300 lines, each of which reads two elements of the line before.

    Tracing takes less than a second. XLA:CPU did not finish within minutes.
    """

    def grow(x: jax.Array) -> jax.Array:
        for number in range(300):
            x = jnp.sin(x) + jnp.roll(x, number + 1)
        return x

    jax.jit(grow).lower(jnp.ones((64, 64))).compile()


def _trace_without_end() -> None:
    def grow(x: jax.Array) -> jax.Array:
        for number in itertools.count():
            x = x + number
        return x

    jax.jit(grow)(jnp.ones(8))


def _leave_a_child() -> None:
    """Start a process in a session of its own that inherits the open output, and leave it."""
    subprocess.Popen(["sleep", "3600"], start_new_session=True)  # noqa: S607


def _print_garbage() -> None:
    """Write binary data, endless lines and forged events, a lot of it."""
    event = {"event": "block", "row": {"implementation": "good"}}
    for descriptor in (1, 2):
        os.write(descriptor, bytes(range(256)) * 64)
        os.write(descriptor, f"{json.dumps(event)}\n{{\n[1]\n\x1b[2J".encode())
    for stream in (sys.stdout, sys.stderr):
        print(json.dumps({"event": "cell"}), "no end" * 1_000_000, end="", file=stream)
        stream.flush()


@cache  # once a process
def _wait_in_second_process() -> None:
    """Wait in the second process that builds it until the trial creates the file `go`."""
    folder = Path(os.environ[FOLDER])
    for number in itertools.count(1):
        try:
            (folder / f"built-{number}").touch(exist_ok=False)
        except FileExistsError:
            continue
        break
    if number == 2:  # noqa: PLR2004
        _note()
        while not (folder / "go").exists():
            time.sleep(0.05)


def _deadlock(right: TrainStep, mesh: Mesh) -> TrainStep:
    """In the timed rounds, run an all-reduce that device 0 never joins: its host never answers."""

    def wait(index: Any) -> Any:
        if int(index) == 0:
            _note()
            _sleep()
        return index

    def reduce(x: jax.Array) -> jax.Array:
        index = jax.lax.axis_index("data")
        answer = jax.pure_callback(wait, jax.ShapeDtypeStruct((), jnp.int32), index)
        return jax.lax.psum(x + answer, "data")

    reduced = jax.jit(
        jax.shard_map(reduce, mesh=mesh, in_specs=P("data"), out_specs=P(), check_vma=False)
    )
    zeros = jnp.zeros(mesh.size)
    return _in_rounds(lambda: jax.block_until_ready(reduced(zeros)))(right, mesh)


def _diverge(state: Any, loss: jax.Array) -> Any:
    params, opt_state = state
    if _timed():
        params = jax.tree.map(lambda leaf: leaf * 1.5, params)
    return (params, opt_state), loss


PLANTED = {
    "good": Planted(),
    "raises_at_import": Planted(at_import=_raise),
    "exits_at_import": Planted(at_import=partial(sys.exit, "planted")),
    "ends_at_import": Planted(at_import=partial(os._exit, 7)),
    "exits_when_asked": Planted(when_asked=partial(sys.exit, 3)),
    "raises_in_build": Planted(in_build=_raise),
    "exits_in_build": Planted(in_build=_exit),
    "ends_in_build": Planted(in_build=_noted(partial(os._exit, 0))),
    "host_memory": Planted(in_build=_allocate_on_host),
    "device_memory": Planted(in_build=lambda: jnp.zeros((1 << 46,)).block_until_ready()),
    "killed_in_build": Planted(in_build=_noted(_send(signal.SIGKILL))),
    "segfault_in_build": Planted(in_build=_noted(_crash)),
    "sleeps": Planted(in_build=_noted(_sleep)),
    "holds_the_lock": Planted(in_build=_noted(_hold_the_lock)),
    "compiles_for_ever": Planted(in_build=_noted(_compile_without_end)),
    "traces_for_ever": Planted(in_build=_noted(_trace_without_end)),
    "leaves_a_child": Planted(in_build=_leave_a_child),
    "leaves_a_thread": Planted(in_build=lambda: threading.Thread(target=_sleep).start()),
    "prints": Planted(in_build=_print_garbage),
    "waits_later": Planted(in_build=_wait_in_second_process),
    "no_step": Planted(change=lambda *_: None),
    "params_of_shape": Planted(
        change=lambda right, _: replace(
            right, params=lambda state: jax.tree.map(jnp.ravel, right.params(state))
        )
    ),
    "loss_of_shape": Planted(change=_result(lambda state, loss: (state, jnp.stack([loss] * 8)))),
    "three_values": Planted(change=_result(lambda state, loss: (state, loss, None))),
    "raises_in_step": Planted(change=_in_step(_raise)),
    "exits_in_step": Planted(change=_in_step(_exit)),
    "interrupts_in_step": Planted(change=_in_step(partial(_raise, KeyboardInterrupt))),
    "raises_in_rounds": Planted(change=_in_rounds(_raise)),
    "exits_in_rounds": Planted(change=_in_rounds(_exit)),
    "killed_in_rounds": Planted(change=_in_rounds(_noted(_send(signal.SIGKILL)))),
    "segfault_in_rounds": Planted(change=_in_rounds(_noted(_crash))),
    "sleeps_in_rounds": Planted(change=_in_rounds(_noted(_sleep))),
    "stops": Planted(change=_in_rounds(_noted(_send(signal.SIGSTOP)))),
    "deadlocks": Planted(change=_deadlock),
    "nan_in_rounds": Planted(
        change=_result(lambda state, loss: (state, loss * jnp.nan if _timed() else loss))
    ),
    "diverges_in_rounds": Planted(change=_result(_diverge)),
    "peer_killed": Planted(change=_in_rank_1(_send(signal.SIGKILL))),
    "peer_stops": Planted(change=_in_rank_1(_send(signal.SIGSTOP))),
    "peer_raises": Planted(change=_in_rank_1(_raise)),
    "peer_elsewhere": Planted(
        change=_in_rank_1(lambda: multihost_utils.sync_global_devices("nobody else is here"))
    ),
}


def nan_workload(config: Any, batch_size: int, precision: str, remat: bool = False) -> Problem:
    """The linear workload, with the logarithm of a negative number added to the loss."""
    right = linear.problem(config, batch_size, precision, remat)

    def loss(model: Any, batch: Any) -> jax.Array:
        return right.loss(model, batch) + jnp.log(-jnp.ones(()))

    return replace(right, loss=loss)


def unstable_workload(config: Any, batch_size: int, precision: str, remat: bool = False) -> Problem:
    """The linear workload, with a learning rate so large that every step increases the loss."""
    return replace(linear.problem(config, batch_size, precision, remat), optimizer=optax.sgd(2.0))
