"""Loss curves: arms and a reference train from the same parameters on the same batches.

The reference is the gate's, in the block's dtypes and with the workload's own optimizer. Right
programs differ from it by rounding, which every step amplifies: after some dozens of steps under
Adam, two orders of summation give different curves. To show the scale of this, the reference also
trains with its sums in another order.
"""

import math
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from bench.contract import Batch, TrainStep
from bench.records.arms import IN_PARTS, WHOLE_BATCH
from bench.records.messages import RowEvent
from bench.records.rows import LossRow
from bench.worker.block_session import BlockSession
from bench.worker.prove.failures import failure
from bench.worker.prove.gate import Gate
from bench.worker.prove.state_reader import HostState
from bench.worker.prove.timed_reference import TimedReference
from bench.worker.prove.trajectory import build_step, state_and_loss
from bench.worker.read.compilation import remembered_programs

Build = Callable[[], TrainStep]


def train_cells(session: BlockSession, gate: Gate, settings: Mapping[str, Any]) -> None:
    """Train references and ok cells for the settings' `steps`, and send their loss curves.

    The session's arms are freed to make room for training.
    """
    names = [name for name, row in session.cells.items() if row["status"] == "ok"]
    if not names:
        return
    session.arms.clear()
    problem, steps = session.problem, settings["steps"]
    builds = reference_steps(gate.reference)
    for name in names:
        builds[name] = partial(
            build_step, session.proved[name].implementation, problem, session.mesh
        )
    for name, build in builds.items():
        progress = partial(session.report_progress, "train", name, of=steps)
        with session.modules_of(name), remembered_programs(session.programs / name):
            losses, reason = trained(build, problem.batch, steps, progress)
        row = LossRow(
            **session.fields,
            arm=name,
            losses=losses,
            reason=reason,
            tolerance=gate.loss_tolerance,
        )
        session.emit(RowEvent(event="losses", row=row))


def trained(
    build: Build,
    batch: Callable[[int], Batch],
    steps: int,
    progress: Callable[[int], None],
) -> tuple[list[float], str]:
    """Build a step and train it on batch(0), batch(1) ..., waiting for each loss.

    `progress` gets the number of each step before it begins. Return the losses, each before its
    update, and why they end early, if they do: at an infinite or NaN loss, or at a failure.
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
            return losses[:number], f"the loss of step {number + 1} is {value}"
    return losses, reason


def reference_steps(reference: TimedReference) -> dict[str, Build]:
    """Return a function that makes the reference's step by its name, for each order of sums."""
    orders = {WHOLE_BATCH: False}
    if reference.parts > 1 or reference.start_state:
        orders[IN_PARTS] = True
    return {name: partial(reference_step, reference, apart=apart) for name, apart in orders.items()}


def reference_step(reference: TimedReference, *, apart: bool) -> TrainStep:
    """Make the reference's step; for `apart`, see TimedReference.gradients."""

    def step(state: HostState, batch: Batch) -> tuple[HostState, Any]:
        loss, state = reference.run([batch], state, apart=apart)
        return state, loss

    return TrainStep(
        state=reference.placed(HostState(reference.start, None, reference.start_state)),
        place=lambda batch: batch,
        step=step,
        params=lambda state: state.params,
    )
