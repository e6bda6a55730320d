"""The reference's loss and gradients, computed within the memory of its devices.

A loss is the mean over a batch, so the gradients of a batch are the means of those of equal parts.
A batch that does not fit on one device is computed in the fewest parts that do, one after another.
If not even one row fits, parameters and gradients are sharded over the devices of the process, and
the compiler partitions the program. Neither changes what is computed.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bench.contract import Batch, Params, Problem, StateLossFn
from bench.contract.logical_axes import shapes_of_params
from bench.contract.model_state import ModelState
from bench.contract.placement import fsdp_specs, optimizer_specs
from bench.records import numbers
from bench.worker.prove.carried_state import part_of
from bench.worker.prove.failures import failure
from bench.worker.read.device_memory import memory_bytes

SHARE = 0.6
"""Largest share of a device's memory that the reference may plan to use. The rest is for what no
plan counts, such as libraries and fragmentation: XLA allocates temporaries in one piece, and on an
H200, a plan for 75 % of the memory failed."""
_AXIS = "shards"


class Division(NamedTuple):
    """A way to compute the reference."""

    devices: int
    """Devices over which its parameters are sharded."""
    parts: int
    """Parts of a batch that are computed one after another."""


class DividedGradients:
    """The loss and gradients of batches of one size.

    `loss_fn` is the loss of a batch; without model state, also that of any part of it. Of this
    process's `devices`, only the first is used if possible. `memory` has the bytes of each, and
    `share` is the largest part of them to plan for; all, if no division keeps within that.
    """

    def __init__(
        self,
        problem: Problem,
        loss_fn: StateLossFn,
        batch: Batch,
        devices: Sequence[Any],
        memory: float,
        share: float = SHARE,
    ) -> None:
        self._problem = problem
        self._loss_and_gradients = jax.value_and_grad(loss_fn, has_aux=True)
        self._devices = devices
        self._memory, self._share = memory, share
        self._shapes = shapes_of_params(problem)
        rows = len(jax.tree.leaves(batch)[0])
        # A batch's statistics are not the means of those of its parts.
        most = 1 if problem.state_names else rows
        self._divisors = [parts for parts in range(1, most + 1) if rows % parts == 0]
        for count in sorted({1, len(devices)}):
            if self._fits(count, self._divisors, batch):
                break

    def _fits(self, devices: int, divisors: Sequence[int], batch: Batch) -> bool:
        """Choose the fewest parts that fit; the most if none do, or once the compiler refuses."""
        self._mesh = Mesh(np.array(self._devices[:devices]), (_AXIS,))
        self._replicated = NamedSharding(self._mesh, P())
        self._specs = fsdp_specs(self._problem, self._mesh, _AXIS)
        left = list(divisors)
        while left:
            self.division = Division(devices, left.pop(0))
            spare, growing = self._compile(batch)
            if growing <= spare:
                return True
            if spare < 0 and devices < len(self._devices):
                return False
            # Activations shrink about as the rows do. A compiler that refuses gives no numbers.
            times = 2 if growing == np.inf else growing / spare if spare > 0 else np.inf
            left = [parts for parts in left if parts >= times * self.division.parts] or left[-1:]
        return False

    def _compile(self, batch: Batch) -> tuple[float, float]:
        """Compile the program of a part; return the bytes left for temporaries and those needed."""
        self._program, self._needed = None, np.inf
        part = self._part(batch, 0)
        shardings = self._shardings(self._specs)
        params = jax.tree.map(
            lambda leaf, own: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=own),
            self._shapes,
            shardings,
        )
        program = jax.jit(self._loss_and_gradients, out_shardings=(self._replicated, shardings))
        state = jax.device_put(self._problem.draw_state(), self._replicated)
        try:
            self._program = program.lower(params, state, part).compile()
        except Exception as error:  # a compiler that plans memory may refuse
            if failure(error)[0] != "oom":
                raise
            return 0.0, np.inf
        memory = memory_bytes(self._program.runtime_executable())
        if memory is None:
            self._needed = 0.0
            return 0.0, 0.0
        # In addition: new parameters, the sum over parts, and the optimizer's old and new state.
        opt_state = jax.eval_shape(self._problem.optimizer.init, self._shapes)
        trees = opt_state, self._shapes
        of_state, of_params = (sum(leaf.size for leaf in jax.tree.leaves(tree)) for tree in trees)
        others = 2 + 2 * of_state / of_params
        temporary, params_bytes = memory["temporary_bytes"], memory["argument_bytes"]
        fixed = memory["total_bytes"] - temporary + others * params_bytes
        self._needed = fixed + temporary
        return self._share * self._memory - fixed, temporary

    def _shardings(self, specs: Any) -> Any:
        return jax.tree.map(lambda spec: NamedSharding(self._mesh, spec), specs)

    def _part(self, batch: Batch, index: int) -> Batch:
        """Place one part of a batch, split over the devices where its rows divide evenly."""
        own = part_of(batch, self.division.parts, index)
        even = len(jax.tree.leaves(own)[0]) % self.division.devices == 0
        return jax.device_put(own, NamedSharding(self._mesh, P(_AXIS) if even else P()))

    def place(self, params: Params) -> Params:
        """Place parameters as the program takes them."""
        return jax.device_put(params, self._shardings(self._specs))

    def place_optimizer(self, opt_state: Any) -> Any:
        """Place a state of the problem's optimizer with its parameters."""
        specs = optimizer_specs(self._problem, self._shapes, opt_state, self._specs)
        return jax.device_put(opt_state, self._shardings(specs))

    def __call__(self, params: Params, model_state: ModelState, batch: Batch) -> Any:
        """Return ((loss, new model state), gradients) of a whole batch, as jax.value_and_grad does.

        If memory runs out in spite of the plan, the batch is divided into at least twice as many
        parts, unless there is no such division, or there are other processes, which must divide
        alike. Raises MemoryError if no plan fits.
        """
        program = self._program
        if program is None or self._needed > self._memory:
            devices, parts = self.division
            needs = numbers.bytes_(self._needed) if program else "more"
            raise MemoryError(
                f"the reference, in {numbers.count(parts, 'part')} and sharded over all "
                f"{numbers.count(devices, 'device')} of this process, needs {needs} on each, where "
                f"{numbers.bytes_(self._memory)} are available; it is not sharded over processes"
            )
        try:
            placed = self.place(params), jax.device_put(model_state, self._replicated)
            each = (self._part(batch, index) for index in range(self.division.parts))
            means = mean_of(program(*placed, part) for part in each)
            return jax.block_until_ready(means)  # memory may run out only now
        except Exception as error:
            more = [parts for parts in self._divisors if parts >= 2 * self.division.parts]
            if failure(error)[0] != "oom" or not more or jax.process_count() > 1:
                raise
        self._fits(self.division.devices, more, batch)
        return self(params, model_state, batch)


def mean_of(trees: Iterable[Any]) -> Any:
    """Average trees of floats; each is added to the sum, and freed, before the next is made."""
    total, count = None, 0
    for tree in trees:
        total = tree if total is None else _sum(total, tree)
        count += 1
    return total if count == 1 else _divide(total, count)


@partial(jax.jit, donate_argnums=0)
def _sum(total: Any, more: Any) -> Any:
    return jax.tree.map(jnp.add, total, more)


@partial(jax.jit, donate_argnums=0)
def _divide(total: Any, count: int) -> Any:
    return jax.tree.map(lambda leaf: leaf / count, total)


def float64_batch(division: Division, problem: Problem, shards: int) -> int:
    """Return the largest batch whose float64 step should fit, judging by the division of its truth.

    Its shards have at most as many rows as the truth computes at once on a device. It divides the
    problem's batch, and has at least one row for each shard of each microbatch.
    """
    whole, least = problem.batch_size, shards * problem.microbatches
    if division == (1, 1):
        return whole
    most = whole * shards // (division.devices * division.parts)
    fitting = (rows for rows in range(least, most + 1, least) if whole % rows == 0)
    return min(whole, max(fitting, default=least))


def initial_params(problem: Problem) -> Params:
    """Return the initial parameters: on the host if the problem has them there."""
    return problem.draw() if problem.start is None else problem.start
