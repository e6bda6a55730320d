"""Real train steps with a known amount of extra work, in a process with jax.

Copies of an implementation's step are equal programs. Each copy is followed by a loop of small
matrix products, which the next step has to wait for. The loop's length is an operand: it is 0 in
equal arms, and a slowdown is planted by a larger number and nothing else.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from bench.contract import Implementation, TrainStep
from bench.plan.matrix import REFERENCE
from bench.records.cells import Block
from bench.worker.file_loader import implementation_files, load
from bench.worker.problems import load_workload, make_mesh, make_problem
from bench.worker.prove.failures import approximation
from bench.worker.time.clock import Arm

_SIDE = 32
"""Side of the matrices; a product takes microseconds."""
_SPANS, _STEPS = 15, 2
"""Number of timed spans in calibration, and steps in each."""
_FIRST_PRODUCTS = 64


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
    products = _FIRST_PRODUCTS
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


def call_of(text: str, products: int) -> Callable[[], object]:
    """Return a function that runs one step to its end, for tools that time Python functions.

    `text` is a block as JSON. Each step is followed by this number of matrix products.
    """
    (arm,) = _arms(Block.of(json.loads(text)), ["step"])
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
