"""The clock's order, its shared step count, and what it notices."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import jax
import jax.numpy as jnp
import pytest

from bench.worker.read.compilation import CompilationLog
from bench.worker.time.clock import Arm, measure, steps_per_span
from bench.worker.time.turn_order import balanced_orders


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8, 9])
def test_positions_and_predecessors_are_balanced(size):
    arms = [f"arm{index}" for index in range(size)]
    rounds = size * (1 if size % 2 == 0 else 2)
    orders = list(balanced_orders(arms, rounds, seed=1))
    assert len(orders) == rounds
    assert all(sorted(order) == arms for order in orders)
    positions = Counter((arm, place) for order in orders for place, arm in enumerate(order))
    neighbours = Counter(pair for order in orders for pair in pairwise(order))
    assert len(set(positions.values())) == 1
    assert len(positions) == size**2
    if size > 1:
        assert len(set(neighbours.values())) == 1
        assert len(neighbours) == size * (size - 1)


def test_orders_stop_in_the_middle_of_a_square_and_depend_on_the_seed():
    arms = list("abcdef")
    orders = list(balanced_orders(arms, 8, seed=1))
    assert len(orders) == 8
    assert orders == list(balanced_orders(arms, 8, seed=1))
    assert orders != list(balanced_orders(arms, 8, seed=2))


def arm(name, function=lambda x, _: (x + 1, x.sum())):
    return Arm(name, jax.jit(function), jnp.zeros(4), None)


def test_energy_is_that_of_the_turns_alone():
    """The counter is read before the first turn of a round and after each: 3 times for 2 arms."""
    arms = [arm("a"), arm("b")]
    for each in arms:
        each.run(1)
    read = []

    def used():
        read.append({"joules": float(len(read)), "seconds": 1.0})
        return read[-1] if len(read) < 6 else None  # it fails during the last turn

    with CompilationLog() as log:
        rows, _ = measure(arms, 2, 5, 0, log, lambda _: True, used=used)
    assert len(read) == 6
    assert [row.get("energy", {}).get("joules") for row in rows] == [1.0, 2.0, 4.0, None]


def test_every_arm_takes_one_turn_a_round_with_the_same_steps():
    arms = [arm("a"), arm("b")]
    for each in arms:
        each.run(1)
    done = []

    def after_round(turns):
        done.append(len(turns))
        return True

    with CompilationLog() as log:
        rows, compiled = measure(arms, 4, 5, 0, log, after_round)
    assert compiled == {}
    assert done == [2, 4, 6, 8]
    assert Counter(row["arm"] for row in rows) == {"a": 4, "b": 4}
    assert [row["round"] for row in rows] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [row["predecessor"] for row in rows] == ["", *(row["arm"] for row in rows[:-1])]
    spans = ("throughput_ns", "latency_ns", "wash_out_ns")
    assert all(row[span] > 0 for row in rows for span in spans)
    assert [row["at"] for row in rows] == sorted(row["at"] for row in rows)
    # A warm-up step, and per round a wash-out step, 5 steps, and one that is waited for.
    assert [float(each.state[0]) for each in arms] == [1 + 4 * 7] * 2
    assert {row["latency_steps"] for row in rows} == {1}


def test_rounds_end_when_they_are_enough():
    arms = [arm("a"), arm("b")]
    with CompilationLog() as log:
        rows, _ = measure(arms, 100, 1, 0, log, lambda turns: len(turns) < 6)
    assert len(rows) == 6


def test_compiling_inside_a_round_is_noticed():
    class Growing:
        """A step whose state changes its shape, so that every call compiles."""

        def __init__(self):
            self.step = jax.jit(lambda x, _: (jnp.concatenate([x, x[:1]]), x.sum()))

    steady, growing = arm("steady"), Arm("growing", Growing().step, jnp.zeros(2), None)
    steady.run(1)
    with CompilationLog() as log:
        _, compiled = measure([steady, growing], 2, 1, 0, log, lambda _: True)
    assert set(compiled) == {"growing"}
    assert compiled["growing"] >= 6


class Clockwork:
    """An arm of a known speed."""

    def __init__(self, nanoseconds):
        self.nanoseconds = nanoseconds
        self.name = "clockwork"

    def run(self, steps):
        return steps * self.nanoseconds


@pytest.mark.parametrize(
    ("step_ns", "seconds", "expected"),
    [
        (
            [1e6, 1e6],
            1.6,
            39,
        ),  # 16 rounds of 2 ms a step: 50 steps, 1 washed out, 39, 10 waited for
        ([1e9, 1e6], 1.0, 1),  # never below one
        ([1e3, 1e3], 10.0, 1000),  # never above the cap
    ],
)
def test_steps_are_shared_and_fill_the_time(step_ns, seconds, expected):
    assert steps_per_span([Clockwork(ns) for ns in step_ns], 16, seconds) == expected


def test_compile_times_are_seen_without_the_functions_help():
    with CompilationLog() as log:
        jax.jit(lambda x: jnp.sin(x) * 3)(jnp.zeros(7)).block_until_ready()
    times = log.times()
    assert min(times["trace_s"], times["lower_s"], times["compile_s"]) > 0
    programs = log.programs
    jax.jit(lambda x: jnp.cos(x) * 5)(jnp.zeros(7)).block_until_ready()
    assert log.programs == programs, "closed"


def test_a_state_with_a_random_key_can_be_timed():
    def step(state, batch):
        return jax.random.split(state, 1)[0], jnp.sum(batch)

    arm = Arm("A", step, jax.random.key(0), jnp.ones(4))
    assert arm.run(2) > 0
    assert arm.run(2, wait_each=True) > 0
