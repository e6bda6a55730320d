"""Lockstep's own trials, in a worker process: the real clock on arms of known truth.

`python -m bench.trials.selftest.own_trials` reads a TrialJob from stdin. It writes JSON to stdout,
one row per line: trials with their samples, and the cost of the clock.

An arm is a copy of an implementation's step, which equals all others. Each copy is followed by a
loop of small matrix products, which the next step has to wait for. The loop's length is an operand:
it is 0 in equal arms, and a slowdown is planted by a larger number and nothing else.
"""

import json
import math
import sys
import time
import timeit
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any, TextIO, TypedDict, cast

import jax
import jax.numpy as jnp
import numpy as np

from bench.contract import Implementation, TrainStep
from bench.plan.matrix import REFERENCE
from bench.records.cells import Block, BlockText
from bench.records.messages import FIRST_LOOK
from bench.records.rows import Turn
from bench.worker import event_stream
from bench.worker.file_loader import implementation_files, load
from bench.worker.problems import load_workload, make_mesh, make_problem
from bench.worker.prove.failures import approximation
from bench.worker.read.compilation import CompilationLog
from bench.worker.time.clock import Arm, measure, steps_per_span

ROUNDS = 128
"""Rounds of a trial, if its steps are short enough."""
MOST_ROUNDS = 256

OVERHEAD_STEPS = 1000
OVERHEAD_ROUNDS = 100

_SIDE = 32
"""Side of the matrices; a product takes microseconds."""
_SPANS, _STEPS = 15, 2
"""Number of timed spans in calibration, and steps in each."""


class TrialJob(TypedDict):
    """The work of one process."""

    block: BlockText
    """The block whose step is timed."""
    truths: dict[str, float]
    """True ratio of each arm's time to the base's."""
    seconds: float
    """Duration of the trial's rounds. If 0, the process only reports the duration of a step and the
    relative cost of a product."""
    seed: int


class SlowedStep:
    """A train step followed by extra work, with a state of the same structure."""

    def __init__(self, built: TrainStep) -> None:
        self._step = built.step
        leaves = jax.tree.leaves(built.state)
        numbers = (at for at, leaf in enumerate(leaves) if jnp.issubdtype(leaf.dtype, jnp.number))
        # The next step needs this number, so it cannot begin before the work is done.
        self._smallest = min(numbers, key=lambda at: leaves[at].size)
        self._sharding = leaves[self._smallest].sharding
        self.set_products(0)

    def set_products(self, count: int) -> None:
        """Set the number of matrix products after each step."""
        self._products = jax.device_put(np.int32(count), self._sharding)

    def __call__(self, state: Any, batch: Any) -> tuple[Any, jax.Array]:
        """Run the step and the work."""
        state, loss = self._step(state, batch)
        leaves, structure = jax.tree.flatten(state)
        leaves[self._smallest], loss = _work(leaves[self._smallest], loss, self._products)
        return jax.tree.unflatten(structure, leaves), loss


@jax.jit
def _work(number: jax.Array, loss: jax.Array, products: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return both values unchanged, after computing this many matrix products."""
    matrix = jnp.full((_SIDE, _SIDE), 1 / _SIDE)  # its powers equal it
    power = jax.lax.fori_loop(0, products, lambda _, power: power @ matrix, matrix)
    # The compiler does not know that this is never true.
    spoiled = jnp.isnan(power[0, 0])
    return jnp.where(spoiled, 0, number), jnp.where(spoiled, 0, loss)


def real_arms(block: Block, truths: Mapping[str, float]) -> list[Arm]:
    """Build arms that are copies of one step, each slowed to its true ratio to the others.

    The extra work is calibrated here, in the measuring process, interleaved with the step. Ratios
    are at least 1.
    """
    arms = _arms(block, list(truths))
    a_product = calibrate(arms[0])
    for arm in arms:
        cast("SlowedStep", arm.step).set_products(round((truths[arm.name] - 1) / a_product))
    return arms


def calibrate(arm: Arm) -> float:
    """Measure the time of one matrix product after a step, as a share of the step's time."""
    step = cast("SlowedStep", arm.step)
    products = 64
    while True:
        times: dict[int, list[int]] = {0: [], products: []}
        for _ in range(_SPANS):
            for count, taken in times.items():
                step.set_products(count)
                taken.append(arm.run(_STEPS))
        bare, slowed = (median(taken) for taken in times.values())
        if slowed > 2 * bare:  # far beyond the noise
            return (slowed / bare - 1) / products
        products *= 4


def call_of(block: BlockText, products: int) -> Callable[[], object]:
    """Return a function, for other tools to time, that runs one step and these matrix products."""
    (arm,) = _arms(Block.of(block), ["step"])
    cast("SlowedStep", arm.step).set_products(products)
    return lambda: arm.run(1)


def _arms(block: Block, names: Sequence[str]) -> list[Arm]:
    mesh = make_mesh(block.mesh)
    problem = make_problem(load_workload(block, []), block, block.options.precision)
    files = implementation_files([])
    found = (load(files[name]) for name in files if name != REFERENCE)
    implementation = next(
        each
        for each in cast("Sequence[Implementation]", found)
        if not approximation(each) and each.why_unsupported(problem, mesh) is None
    )
    built = {name: implementation.build(problem, mesh) for name in names}
    return [
        Arm(name, SlowedStep(own), own.state, own.place(problem.batch(0))).warm_up()
        for name, own in built.items()
    ]


def _measure(
    arms: list[Arm], rounds: int, steps: int, seed: int, seconds: float
) -> tuple[list[Turn], float, float]:
    """Measure until the time is over, but at least up to the first look.

    Return the turns, the seconds that they took, and those within timed or wash-out steps.
    """
    with CompilationLog() as log:
        start = time.perf_counter()

        def arms_to_continue(turns: list[Turn]) -> list[str] | None:
            done = turns[-1]["round"] + 1
            late = done >= FIRST_LOOK and time.perf_counter() > start + seconds
            return [] if late or done == rounds else None

        turns, compiled = measure(arms, steps, seed, log, arms_to_continue)
        wall_s = time.perf_counter() - start
    if compiled:
        raise RuntimeError(f"steps compiled while they were timed: {compiled}")
    inside_ns = sum(t["throughput_ns"] + t["latency_ns"] + t["wash_out_ns"] for t in turns)
    return turns, wall_s, inside_ns / 1e9


def overhead() -> dict[str, Any]:
    """Return the row of the clock's cost, measured with steps that do nothing.

    They have no state, so nothing is dispatched to a device.
    """
    loss = jnp.zeros(()).block_until_ready()

    def step(state: None, _: None) -> tuple[None, jax.Array]:
        return state, loss

    arms = [Arm(name, step, None, None).warm_up() for name in ("one", "other")]
    bare_s = timeit.repeat(
        "step(None, None)", repeat=OVERHEAD_ROUNDS, number=OVERHEAD_STEPS, globals={"step": step}
    )
    turns, wall_s, inside_s = _measure(arms, OVERHEAD_ROUNDS, OVERHEAD_STEPS, 0, math.inf)
    steps = 1 + turns[0]["steps"] + turns[0]["latency_steps"]
    return {
        "kind": "overhead",
        "call_ns": 1e9 * median(bare_s) / OVERHEAD_STEPS,
        "throughput_ns": median(turn["throughput_ns"] / turn["steps"] for turn in turns),
        "untimed_ns": 1e9 * (wall_s - inside_s) / len(turns) / steps,
    }


def rows(job: TrialJob) -> Iterator[dict[str, Any]]:
    """Do a job and yield its rows."""
    arms, seconds = real_arms(Block.of(job["block"]), job["truths"]), job["seconds"]
    if not seconds:
        step_s = median(arms[0].run(1) for _ in range(OVERHEAD_ROUNDS)) / 1e9
        yield {"step_s": step_s, "product": calibrate(arms[0])}
        return
    steps = steps_per_span(arms, ROUNDS, seconds)
    turns, wall_s, inside_s = _measure(arms, MOST_ROUNDS, steps, job["seed"], seconds)
    yield {"kind": "own", "wall_s": wall_s, "inside_s": inside_s, "turns": turns}
    yield overhead()


def main(answer: TextIO) -> None:
    """Read a job from stdin and write its rows to `answer`."""
    answer.writelines(json.dumps(row) + "\n" for row in rows(json.load(sys.stdin)))


if __name__ == "__main__":
    event_stream.run(main)
