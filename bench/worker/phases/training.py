"""Loss curves: arms and a reference train from the same parameters on the same batches.

The reference computes the whole batch, on one device if it fits there, in the block's dtypes, with
the workload's own optimizer. Right programs differ from it by rounding, which every step amplifies:
after some dozens of steps under Adam, two orders of summation give different curves. To show the
scale of this, the reference is also computed with its batch in parts whose gradients are averaged,
as on several devices.
"""

import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax

from bench.contract import Batch, Problem, TrainStep
from bench.records.arms import IN_PARTS, WHOLE_BATCH
from bench.records.messages import RowEvent
from bench.records.rows import LossRow
from bench.worker.block_session import BlockSession
from bench.worker.prove.carried_state import strided_part, whole_batch_loss
from bench.worker.prove.divided_gradients import DividedGradients, initial_params, mean_of
from bench.worker.prove.failures import failure
from bench.worker.prove.gate import Gate
from bench.worker.prove.trajectory import apply_update, build_step, state_and_loss
from bench.worker.read.compilation import remembered_programs
from bench.worker.read.device_memory import device_memory

Build = Callable[[], TrainStep]


class Curve(NamedTuple):
    """The finite losses of a run, each before its update, and why it ends early, if it does."""

    losses: list[float]
    reason: str


def train_cells(session: BlockSession, gate: Gate, settings: Mapping[str, Any]) -> None:
    """Train references and ok cells for the settings' `steps`, and send their loss curves.

    The session's arms are freed to make room for training.
    """
    names = [name for name, row in session.cells.items() if row["status"] == "ok"]
    if not names:
        return
    session.arms.clear()
    problem, steps, devices = session.problem, settings["steps"], session.mesh.local_devices

    def train(name: str, build: Build) -> None:
        progress = partial(session.report_progress, "train", name, of=steps)
        losses, reason = trained(build, problem.batch, steps, progress)
        row = LossRow(
            **session.fields,
            arm=name,
            losses=losses,
            reason=reason,
            tolerance=gate.loss_tolerance,
        )
        session.emit(RowEvent(event="losses", row=row))

    make = partial(whole_batch, shards=gate.shards, devices=devices, memory=device_memory(devices))
    train_references(problem, make, train)
    for name in names:
        build = partial(build_step, session.proved[name].implementation, problem, session.mesh)
        with session.modules_of(name), remembered_programs(session.programs / name):
            train(name, build)


def trained(
    build: Build,
    batch: Callable[[int], Batch],
    steps: int,
    progress: Callable[[int], None],
) -> Curve:
    """Build a step and train it on batch(0), batch(1) ..., waiting for each loss.

    `progress` gets the number of each step before it begins. The curve ends at an infinite or NaN
    loss, or at a failure.
    """
    losses, reason = list[float](), ""
    try:
        train_step = build()
        state = train_step.state
        for number in range(steps):
            progress(number)
            state, loss = state_and_loss(train_step.step(state, train_step.place(batch(number))))
            losses.append(float(loss))
    except BaseException as error:  # noqa: BLE001 - a user's file may raise anything
        traceback.print_exc()
        reason = ": ".join(failure(error))
    for number, value in enumerate(losses):
        if not math.isfinite(value):
            return Curve(losses[:number], f"the loss of step {number + 1} is {value}")
    return Curve(losses, reason)


def train_references(
    problem: Problem,
    make: Callable[[Problem, int], TrainStep],
    train: Callable[[str, Build], None],
) -> None:
    """Train the reference, and once more with its batch in parts if it can be divided.

    `make` is `whole_batch` on some devices. `train` gets a name and a function that makes a step.
    """
    train(WHOLE_BATCH, lambda: make(problem, 1))
    if (rows := problem.batch_size) > 1 and not problem.state_names:
        parts = next(n for n in range(2, rows + 1) if rows % n == 0)
        train(IN_PARTS, lambda: make(problem, parts))


def whole_batch(
    problem: Problem, parts: int, shards: int, devices: Sequence[Any], memory: float
) -> TrainStep:
    """Make the reference's step on this process's `devices`, or only on the first if it fits there.

    The batch is computed in `parts` of strided rows, each divided further if it does not fit in
    `memory` bytes of a device. Under local statistics, a mesh splits the batch into `shards`.
    """
    loss_fn, part = whole_batch_loss(problem, shards), strided_part(problem.batch(0), parts, 0)
    gradients = DividedGradients(problem, loss_fn, part, devices, memory)
    params = gradients.place(initial_params(problem))
    opt_state = gradients.place_optimizer(problem.optimizer.init(params))

    def step(state: Any, batch: Batch) -> tuple[Any, jax.Array]:
        params, opt_state, model_state = state
        each = (strided_part(batch, parts, index) for index in range(parts))
        (loss, model_state), grads = mean_of(gradients(params, model_state, part) for part in each)
        return (*apply_update(problem.optimizer, params, opt_state, grads), model_state), loss

    return TrainStep(
        state=(params, opt_state, problem.draw_state()),
        place=lambda batch: batch,
        step=step,
        params=lambda state: state[0],
    )
