"""The clock's order, its shared step count, and what it notices."""

from __future__ import annotations

import time
from collections import Counter
from itertools import islice, pairwise
from random import Random

import jax
import jax.numpy as jnp
import pytest

from bench.worker.prove.failures import WrongStepError, failure
from bench.worker.read.compilation import CompilationLog
from bench.worker.time import clock
from bench.worker.time.clock import FEWEST_TURNS, Arm, measure, steps_per_span
from bench.worker.time.turn_order import REENTRY, Orders, balanced_orders


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8, 9])
def test_positions_and_predecessors_are_balanced(size):
    arms = [f"arm{index}" for index in range(size)]
    rounds = size * (1 if size % 2 == 0 else 2)
    orders = list(islice(balanced_orders(arms, Random(1)), rounds))
    assert len(orders) == rounds
    assert all(sorted(order) == arms for order in orders)
    positions = Counter((arm, place) for order in orders for place, arm in enumerate(order))
    neighbours = Counter(pair for order in orders for pair in pairwise(order))
    assert len(set(positions.values())) == 1
    assert len(positions) == size**2
    if size > 1:
        assert len(set(neighbours.values())) == 1
        assert len(neighbours) == size * (size - 1)


def test_orders_depend_on_the_seed():
    arms = list("abcdef")
    orders = list(islice(Orders(arms, seed=1), 8))
    assert len(orders) == 8
    assert orders == list(islice(Orders(arms, seed=1), 8))
    assert orders != list(islice(Orders(arms, seed=2), 8))


def test_arms_that_left_come_back_now_and_then():
    orders = Orders(list("abcdef"), seed=1)
    rounds = iter(orders)
    assert all(len(order) == 6 for order in islice(rounds, 20))
    orders.keep(["a", "f", "unknown"])
    assert [sorted(next(rounds)) for _ in range(20, 32)] == [
        list("abcdef" if number % REENTRY == 0 else "af") for number in range(21, 33)
    ]


def until(rounds):
    """Go on with all arms for so many rounds."""
    return lambda turns: [] if turns[-1]["round"] + 1 == rounds else None


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
        rows, _ = measure(arms, 5, 0, log, until(2), used=used)
    assert len(read) == 6
    assert [row.get("energy", {}).get("joules") for row in rows] == [1.0, 2.0, 4.0, None]


def test_every_arm_takes_one_turn_a_round_with_the_same_steps():
    arms = [arm("a"), arm("b")]
    for each in arms:
        each.run(1)
    done = []

    def after_round(turns):
        done.append(len(turns))
        return until(4)(turns)

    with CompilationLog() as log:
        rows, compiled = measure(arms, 5, 0, log, after_round)
    assert compiled == {}
    assert done == [2, 4, 6, 8]
    assert Counter(row["arm"] for row in rows) == {"a": 4, "b": 4}
    assert [row["round"] for row in rows] == [0, 0, 1, 1, 2, 2, 3, 3]
    spans = ("throughput_ns", "latency_ns", "wash_out_ns")
    assert all(row[span] > 0 for row in rows for span in spans)
    assert [row["at"] for row in rows] == sorted(row["at"] for row in rows)
    # A warm-up step, and per round a wash-out step, 5 steps, and one that is waited for.
    assert [float(each.state[0]) for each in arms] == [1 + 4 * 7] * 2
    assert {row["latency_steps"] for row in rows} == {1}


def test_a_span_of_one_step_is_its_own_latency():
    arms = [arm("a"), arm("b")]
    with CompilationLog() as log:
        rows, _ = measure(arms, 1, 0, log, until(3))
    assert {(row["steps"], row["latency_steps"], row["latency_ns"]) for row in rows} == {(1, 0, 0)}
    assert [each.steps for each in arms] == [2 * 3] * 2


def test_arms_leave_and_rounds_end_when_they_are_told():
    arms = [arm("a"), arm("b"), arm("c")]
    answers = iter([None, ["a", "c"], None, []])
    with CompilationLog() as log:
        rows, _ = measure(arms, 1, 0, log, lambda _: next(answers))
    assert Counter(row["arm"] for row in rows) == {"a": 4, "b": 2, "c": 4}


def test_compiling_inside_a_round_is_noticed():
    class Growing:
        """A step whose state changes its shape, so that every call compiles."""

        def __init__(self):
            self.step = jax.jit(lambda x, _: (jnp.concatenate([x, x[:1]]), x.sum()))

    steady, growing = arm("steady"), Arm("growing", Growing().step, jnp.zeros(2), None)
    steady.run(1)
    with CompilationLog() as log:
        _, compiled = measure([steady, growing], 1, 0, log, until(2))
    assert set(compiled) == {"growing"}
    assert compiled["growing"] >= 4


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
        ),  # 16 rounds of 2 ms per step: 50 steps, 1 washed out, 39, 10 waited for
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


def test_a_step_cannot_replace_the_clock_that_judges_it(monkeypatch):
    monkeypatch.setattr(time, "perf_counter_ns", lambda: 0)
    arm = Arm(
        "liar", jax.jit(lambda state, batch: (state + 1, batch)), jnp.zeros(()), jnp.zeros(())
    )
    assert arm.run(1) > 0


def test_a_step_cannot_replace_waiting_for_a_moment(monkeypatch):
    """A replacement that restores the right function when it is called is never called."""
    array, called = type(jnp.zeros(())), []
    work = jax.jit(lambda state, batch: (state + 1, batch * 2))

    def step(state, batch):
        for name in ("block_until_ready", "is_ready"):
            monkeypatch.setattr(array, name, called.append)
        monkeypatch.setattr(jax, "block_until_ready", called.append)
        return work(state, batch)

    arm = Arm("liar", step, jnp.zeros(()), jnp.ones(()))
    arm.run(1)
    arm.run(2, wait_each=True)
    assert called == []


def test_a_loss_stays_an_array():
    arm = Arm("liar", lambda state, batch: (state, 1.0), jnp.zeros(()), jnp.zeros(()))
    with pytest.raises(WrongStepError, match="becomes a float"):
        arm.run(1)


def test_a_step_that_removes_the_logs_listeners_is_wrong():
    with pytest.raises(WrongStepError, match="removes the listeners"), CompilationLog():
        jax.monitoring.clear_event_listeners()


def test_a_log_without_listeners_hides_no_other_failure():
    def silenced(log):
        jax.monitoring.clear_event_listeners()
        with pytest.raises(WrongStepError, match="removes the listeners"):
            log.check()
        raise RuntimeError("planted")

    with pytest.raises(RuntimeError, match="planted"), CompilationLog() as log:
        silenced(log)


def test_a_step_that_clears_jaxs_caches_is_wrong():
    with CompilationLog() as log:
        log.check()
        jax.clear_caches()
        with pytest.raises(WrongStepError, match="clears jax's caches"):
            log.check()
    with CompilationLog() as log:
        log.check()


@pytest.mark.parametrize(
    ("first", "step", "outside", "words"),
    [
        (3.0, 1.0, 1.1, ""),
        (0.9, 0.01, 0.9, ""),  # too short to matter
        (3.0, 1.0, 4.0, "28.6 % of its turns is work between its spans"),
        (20.0, 0.1, 0.1, "as long as 200 others"),
    ],
)
def test_work_outside_of_the_spans_is_a_reason_against_an_arm(first, step, outside, words):
    hiding = arm("hiding")
    assert hiding.why_untrusted() == ""
    for _ in range(FEWEST_TURNS):
        assert hiding.why_untrusted() == ""
        hiding.turns_ns.append((1e6 * first, 1e6 * step, int(1e7), int(1e6 * outside)))
    hiding.turns_ns.append((1e9, 1.0, 1, 10**9))  # the host was busy
    why = hiding.why_untrusted()
    assert words in why.replace("\N{NARROW NO-BREAK SPACE}", " ")
    assert bool(why) == bool(words)
    hiding.turns_ns.append((1e6, 1e6, int(1e7), int(1e6)))
    assert hiding.why_untrusted() == "", "it is not so in each turn"


def test_what_flattening_a_state_takes_is_outside_of_the_spans(monkeypatch):
    now = [0]
    monkeypatch.setattr(clock, "now", lambda: now[0])

    class Lazy:
        def __init__(self, inner):
            self.inner = inner

    def flatten(lazy):
        now[0] += 500
        return (lazy.inner,), None

    jax.tree_util.register_pytree_node(Lazy, flatten, lambda _, parts: Lazy(*parts))
    function = jax.jit(lambda x: (x + 1, x.sum()))

    def step(state, _):
        now[0] += 1000
        inner, loss = function(state.inner)
        return Lazy(inner), loss

    lazy = Arm("lazy", step, Lazy(jnp.zeros(4)), None)
    lazy.run_spans([(1, False), (4, False), (1, True)])
    assert lazy.turns_ns == [(1000, 1000, 6000, 1500)]


@pytest.mark.parametrize(
    ("returned", "words"),
    [(None, "cannot unpack"), ((1, 2, 3), "too many values"), ((1,), "not enough values")],
)
def test_a_later_step_that_returns_no_pair_is_wrong(returned, words):
    arm = Arm("one", lambda _state, _batch: returned, None, None)
    with pytest.raises((TypeError, ValueError)) as caught:
        arm.run(1)
    status, reason = failure(caught.value)
    assert status == "wrong"
    assert reason.startswith("a later step does not return the pair (state, loss): ")
    assert words in reason


def test_an_error_of_the_step_itself_is_a_crash():
    def launch(_state, _batch):  # named like the loop that calls it
        raise ValueError("too many values to unpack")

    with pytest.raises(ValueError, match="too many") as caught:
        Arm("one", launch, None, None).run(1)
    assert failure(caught.value)[0] == "crashed"


def test_a_crash_without_a_message_quotes_the_statement():
    """jax.lax.pmean over an axis that no mesh has may raise an AssertionError without a message."""

    def launch(state, _batch):
        assert state is not None

    with pytest.raises(AssertionError) as caught:
        Arm("one", launch, None, None).run(1)
    caught.value.args = ()  # pytest rewrites the assertions of tests
    status, reason = failure(caught.value)
    assert status == "crashed"
    assert reason.startswith("AssertionError in `assert state is not None` (test_clock.py:")

    typed = {}
    exec(compile("def launch(state, batch): assert state", "<stdin>", "exec"), typed)
    with pytest.raises(AssertionError) as caught:
        Arm("one", typed["launch"], None, None).run(1)
    assert failure(caught.value)[1] == "AssertionError (<stdin>:1)", "Python knows no statement"
