"""Arms that take the next batch of a Grain pipeline in every step, as training does.

No work for such an arm happens during another arm's turn: a span begins and ends with the same
number of prefetched batches, so it makes exactly as many as it takes. A pipeline with its own
threads, as Grain's iterators have by default, would work while other arms are timed, and get those
batches for free. Grain therefore reads, shards, shuffles and batches on the calling thread.
"""

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import jax
import numpy as np

from bench.contract import Batch, Problem, TrainStep
from bench.records.arms import arm_beside
from bench.records.rows import InputWait
from bench.worker.prove.failures import UnsupportedError
from bench.worker.time.clock import Arm, wait_for

SEED = 0
"""Seed of the order of records: the same for every arm, launch and run."""

DRAWN_BATCHES = 16
"""Batches that a workload without records draws beforehand and then repeats."""

FEEDS = {"loaded": 0, "prefetched": 2}
"""By input way of bench.records.arms, the batches that are prefetched: made and placed before the
step that takes them."""


class Feed:
    """A source of placed batches; `make(i)` makes and places the i-th.

    A batch is made when it is taken, or, if `ahead` is above 0, on a thread, so many batches ahead.
    """

    def __init__(self, make: Callable[[int], Any], ahead: int) -> None:
        self._make = make
        self._numbers = count()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="prefetch")
        self._ahead = deque(self._ordered() for _ in range(ahead))

    def _ordered(self) -> Future[Any]:
        number = next(self._numbers)
        return self._pool.submit(lambda: jax.block_until_ready(self._make(number)))

    def take(self) -> Any:
        """Return the next batch; unless it was prefetched, its transfer may still be in flight."""
        if not self._ahead:
            return self._make(next(self._numbers))
        self._ahead.append(self._ordered())
        return self._ahead.popleft().result()

    def settle(self) -> None:
        """Wait until all prefetched batches are on the devices."""
        wait(self._ahead)

    def close(self) -> None:
        """Stop prefetching."""
        self._pool.shutdown(cancel_futures=True)


@dataclass
class FedArm(Arm):
    """An arm whose steps each take a batch from a feed."""

    feed: Feed = field(kw_only=True)

    def launch(self, steps: int, *, wait_each: bool) -> tuple[Any, jax.Array]:
        """Run steps, each on the next batch; as many batches are prefetched within this span.

        Checking whether the devices are done costs about a microsecond per step.
        """
        step, state, take = self.step, self.state, self.feed.take
        loss: Any = self.losses[-1][1] if self.losses else None
        waited = starved = 0
        for _ in range(steps):
            began = time.perf_counter_ns()
            batch = take()
            took = time.perf_counter_ns() - began
            waited += took
            if loss is None or loss.is_deleted() or loss.is_ready():
                starved += took
            state, loss = step(state, batch)
            if wait_each:
                wait_for(loss)
        jax.block_until_ready(loss)
        done = time.perf_counter_ns()
        self.feed.settle()
        late = time.perf_counter_ns() - done  # the next step would wait for these batches
        if not wait_each:
            self.waited = InputWait(wait_ns=waited + late, starved_ns=starved + late)
        return state, loss


def fed_arm(name: str, way: str, train_step: TrainStep, problem: Problem) -> FedArm:
    """Make an input arm from a fresh train step; UnsupportedError as in `placing`."""
    place, rows = placing(train_step, problem.batch(0))
    read = pipeline(problem, rows)
    feed = Feed(lambda number: place(read(number)), FEEDS[way])
    return FedArm(arm_beside(name, way), train_step.step, train_step.state, None, feed=feed)


def placing(train_step: TrainStep, host: Batch) -> tuple[Callable[[Batch], Any], range]:
    """Return a function that places this process's rows of a batch, and the range of these rows.

    A single process places whole batches by the implementation's own `place`. Several processes
    each make their shards of the arrays, with the shardings that `place` gives to the batch `host`;
    UnsupportedError if their rows are not consecutive and equal parts of it.
    """
    size = len(jax.tree.leaves(host)[0])
    if jax.process_count() == 1:
        return train_step.place, range(size)
    placed = train_step.place(host)
    held = [
        {row for shard in array.addressable_shards for row in range(size)[shard.index[0]]}
        for array in jax.tree.leaves(placed)
    ]
    rows = range(min(held[0]), max(held[0]) + 1)
    moved = jax.tree.map(np.shape, placed) != jax.tree.map(np.shape, host)
    if moved or any(own != {*rows} for own in held) or size % len(rows) or rows[0] % len(rows):
        raise UnsupportedError(
            "its place() rearranges a batch, so a process cannot read only its own rows"
        )
    shardings = jax.tree.map(lambda array: (array.sharding, array.shape), placed)

    def place(part: Batch) -> Any:
        return jax.tree.map(
            lambda x, to: jax.make_array_from_process_local_data(to[0], x, to[1]), part, shardings
        )

    return place, rows


def pipeline(problem: Problem, rows: range) -> Callable[[int], Batch]:
    """Make a Grain pipeline that returns a process's rows of the i-th batch, without threads.

    Records are sharded over the processes, reshuffled in every epoch, and stacked. A workload
    without records repeats its first batches in order.
    """
    import grain  # noqa: PLC0415 - an extra, which takes seconds to import

    if problem.records is None:
        batches = map(problem.batch, range(DRAWN_BATCHES))
        drawn = [jax.tree.map(lambda x: x[rows.start : rows.stop], batch) for batch in batches]
        data = grain.MapDataset.source(drawn).repeat()
    else:
        # Processes with other rows read other records.
        share = slice(rows.start // len(rows), None, problem.batch_size // len(rows))
        own = grain.MapDataset.source(problem.records)[share]
        data = own.seed(SEED).shuffle().repeat().batch(len(rows), drop_remainder=True)
    return data.__getitem__
