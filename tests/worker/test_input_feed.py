"""Arms that take their input in every step: what they do, and what is said of them."""

from __future__ import annotations

import importlib.util
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import synthetic
from fakes.catalogue import catalogue
from pages import column

from bench.analyse import cell_table, phase_costs
from bench.contract import TrainStep
from bench.contract.workloads import gpt2, linear
from bench.plan.matrix import make_plan
from bench.plan.option_values import BadInput
from bench.plan.options import Options
from bench.present import page_data, phase_tables
from bench.records import store
from bench.records.arms import ABLATIONS, INPUT_WAYS, arm_beside, implementation_of, own_arms
from bench.worker.phases import input_feed as worker
from bench.worker.prove.failures import UnsupportedError

needs_grain = pytest.mark.skipif(
    importlib.util.find_spec("grain") is None, reason="grain is not installed: extra `input`"
)

AHEAD = worker.FEEDS["prefetched"]
CONFIG = gpt2.SIZES["tiny"]()
PROBLEM = gpt2.problem(CONFIG, 4, "fp32")


def test_arms_are_named_after_what_they_are_compared_with() -> None:
    arm = arm_beside("pmap", "loaded")
    assert (implementation_of(arm), implementation_of("pmap@base")) == ("pmap", "pmap@base")
    cut = arm_beside("pmap", "local")
    arms = ["pmap", arm, arm_beside("other", "loaded"), "twin", cut]
    assert own_arms(arms, INPUT_WAYS) == {arm: "pmap"}
    assert own_arms(arms, ABLATIONS) == {cut: "pmap"}


@pytest.mark.parametrize("way", worker.FEEDS)
def test_a_feed_gives_batches_in_order_and_makes_as_many_as_it_gives(way: str) -> None:
    made: list[int] = []
    feed = worker.Feed(
        lambda number: made.append(number) or jnp.float32(number),  # type: ignore[func-returns-value]
        worker.FEEDS[way],
    )
    feed.settle()
    ahead = len(made)
    assert ahead == worker.FEEDS[way]
    assert [int(feed.take()) for _ in range(5)] == list(range(5))
    feed.settle()
    assert made == list(range(5 + ahead))
    feed.close()


def test_what_a_thread_fails_at_is_raised_where_the_batch_is_asked_for() -> None:
    feed = worker.Feed(lambda number: 1 // (1 - number), AHEAD)
    feed.take()
    with pytest.raises(ZeroDivisionError):
        feed.take()
    feed.close()


def test_no_more_than_the_bound_are_made_ahead() -> None:
    more, made = threading.Semaphore(0), []
    feed = worker.Feed(lambda number: (made.append(number), more.release()), AHEAD)
    feed.settle()
    for _ in range(AHEAD):
        assert more.acquire(timeout=60)
    assert not more.acquire(timeout=0.05)
    feed.close()
    assert made == list(range(AHEAD))


def counting_step() -> TrainStep:
    """Adds up the batches that it is given."""
    return TrainStep(
        state=jnp.float32(0),
        place=jnp.asarray,
        step=lambda state, batch: (state + batch, state + batch),
        params=lambda state: state,
    )


def test_an_arm_takes_the_next_batch_in_every_step_and_tells_how_long_it_waited() -> None:
    step = counting_step()
    feed = worker.Feed(jnp.float32, 0)
    arm = worker.FedArm("a+loaded", step.step, step.state, None, feed=feed)
    arm.run(3)
    waited = arm.waited
    assert waited is not None
    assert waited["wait_ns"] >= waited["starved_ns"] > 0
    arm.run(2, wait_each=True)
    assert float(arm.state) == sum(range(5))
    assert arm.waited is waited, "only throughput spans count"


@dataclass
class Loss:
    """Of a step that the devices are done with, or not yet."""

    done: bool
    deleted: bool = False

    def is_deleted(self) -> bool:
        return self.deleted

    def is_ready(self) -> bool:
        assert not self.deleted, "jax refuses to answer"
        return self.done


def test_a_step_starved_where_the_devices_were_done_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The n-th batch takes 10^n ns of a clock that nothing else moves."""
    now, batches = 0, iter(range(5))
    losses = iter([Loss(done=False), Loss(done=True), Loss(done=False, deleted=True)])

    def take() -> int:
        nonlocal now
        number = next(batches)
        now += 10**number
        return number

    def step(state: None, _: int) -> Any:
        return state, next(losses, Loss(done=False))

    monkeypatch.setattr(worker, "time", SimpleNamespace(perf_counter_ns=lambda: now))

    def settle() -> None:
        nonlocal now
        now += prefetching

    prefetching = 0
    feed: Any = SimpleNamespace(take=take, settle=settle)
    arm = worker.FedArm("a+loaded", step, None, None, feed=feed)
    _, last = arm.launch(4, wait_each=False)
    # Nothing runs before the first step, the second finds the devices busy, the third idle; of a
    # loss that is gone nothing is known, and the figure is a bound from above.
    assert arm.waited == {"wait_ns": 1111, "starved_ns": 1101}
    arm.losses.append((4, replace(last, done=True)))  # it was waited for
    prefetching = 5
    arm.launch(1, wait_each=False)
    # The batches that are still missing once the devices are done would keep later steps waiting.
    assert arm.waited == {"wait_ns": 10005, "starved_ns": 10005}


@pytest.mark.parametrize("wait_each", [False, True])
def test_a_span_lasts_until_as_many_batches_are_ahead_as_before_it(wait_each: bool) -> None:
    events: list[str] = []
    feed: Any = SimpleNamespace(
        take=lambda: events.append("take"), settle=lambda: events.append("settle")
    )
    arm = worker.FedArm(
        "a+prefetched",
        lambda state, _: (state, jnp.float32(0)),
        None,
        None,
        feed=feed,
    )
    # What a launch does is in the span's time.
    arm.launch(2, wait_each=wait_each)
    assert events == ["take", "take", "settle"]


@needs_grain
def test_one_process_reads_real_text_in_an_order_that_is_always_the_same() -> None:
    batches = [worker.pipeline(PROBLEM, range(4)) for _ in range(2)]
    text = gpt2.text().tobytes()
    for number in (0, 1, 7):
        first, again = (batch(number) for batch in batches)
        np.testing.assert_array_equal(first, again)
        assert (first.shape, first.dtype) == ((4, CONFIG.context + 1), np.int32)
        assert all(row.astype(np.uint8).tobytes() in text for row in first)
    assert not np.array_equal(batches[0](0), batches[0](1))


@needs_grain
def test_processes_read_records_of_their_own() -> None:
    numbered = replace(PROBLEM, records=[np.int32(number) for number in range(13)])
    for epochs in (1, 2):
        read = [
            {
                int(row)
                for number in range(4 * epochs)
                for row in worker.pipeline(numbered, range(2 * rank, 2 * rank + 2))(number)
            }
            for rank in range(2)
        ]
        assert read == [set(range(0, 13, 2)), set(range(1, 13, 2))]


@needs_grain
def test_every_epoch_has_all_records_in_an_order_of_its_own() -> None:
    records = [np.int32(number) for number in range(13)]
    read = worker.pipeline(replace(PROBLEM, records=records, batch_size=1), range(1))
    epochs = [tuple(int(read(13 * epoch + n)[0]) for n in range(13)) for epoch in range(3)]
    assert all(sorted(epoch) == [*range(13)] for epoch in epochs)
    assert len(set(epochs)) == 3


@needs_grain
def test_a_workload_without_records_has_its_batches_in_their_order() -> None:
    problem = linear.problem(linear.SIZES["tiny"](), 8, "fp32")
    read = worker.pipeline(problem, range(4, 8))
    for number in (0, 3, worker.DRAWN_BATCHES + 3):
        usual = problem.batch(number % worker.DRAWN_BATCHES)
        jax.tree.map(np.testing.assert_array_equal, read(number), tuple(x[4:] for x in usual))


def placed(*rows: slice, shape: tuple[int, ...] = (8, 3)) -> Any:
    """An array of 8 rows, of which this process holds those."""
    shards = [SimpleNamespace(index=(own, slice(None))) for own in rows]
    return SimpleNamespace(shape=shape, sharding=None, addressable_shards=shards)


@pytest.mark.parametrize(
    ("arrays", "rows"),
    [
        ([placed(slice(4, 6), slice(6, 8)), placed(slice(4, None))], range(4, 8)),
        ([placed(slice(None)), placed(slice(0, 8), slice(0, 8))], range(8)),
        ([placed(slice(0, 2), slice(4, 6))], None),
        ([placed(slice(0, 3))], None),
        ([placed(slice(2, 6))], None),
        ([placed(slice(4)), placed(slice(4, 8))], None),
        ([placed(slice(4), shape=(8, 1, 3))], None),
    ],
)
def test_a_process_reads_its_own_rows_if_they_are_a_part_of_the_batch(
    monkeypatch: pytest.MonkeyPatch, arrays: list[Any], rows: range | None
) -> None:
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    step: Any = SimpleNamespace(place=lambda _: arrays)
    host = [np.zeros((8, 3)) for _ in arrays]
    if rows is None:
        with pytest.raises(UnsupportedError, match="rearranges a batch"):
            worker.placing(step, host)
    else:
        assert worker.placing(step, host)[1] == rows


def test_input_is_refused_without_its_package_and_in_a_gate() -> None:
    with pytest.raises(
        BadInput, match=r"--input: needs the package grain, .*LOCKSTEP_EXTRAS=input"
    ):
        make_plan(Options(input=("loaded",)), catalogue())
    there = {**catalogue(), "optional": {"grain": "1"}}
    assert make_plan(Options(input=("loaded", "loaded")), there).worker["inputs"] == ["loaded"]
    with pytest.raises(BadInput, match="--input: unknown 'lodaed'; did you mean loaded"):
        make_plan(Options(input=("lodaed",)), there)
    with pytest.raises(BadInput, match="--input: a gate compares"):
        make_plan(Options(input=("loaded",), base_revision="main"), there)


def built(tmp_path: Path, **changes: Any) -> tuple[Path, cell_table.Tables]:
    plan = synthetic.Plan(
        devices=(2,), ratios={"jit_spmd": 1.0, "pmap": 1.1}, rounds=64, noise=0.001,
        inputs={"loaded": 1.25, "prefetched": 1.0}, **changes,
    )  # fmt: skip
    directory = synthetic.write(tmp_path, plan)
    return directory, cell_table.build(store.load(directory))


def test_a_report_tells_what_input_costs_and_ranks_nobody_by_it(tmp_path: Path) -> None:
    directory, content = built(tmp_path)
    block = content.comparisons[0]
    assert [cell["implementation"] for cell in block.ranked] == ["jit_spmd", "pmap"]
    assert set(block.claims) == {"pmap"}
    found = {(row["implementation"], row["way"]): row for row in phase_costs.input_costs([block])}
    assert len(found) == 4
    for (_, way), row in found.items():
        expected, word = (1.25, "slower") if way == "loaded" else (1.0, "same")
        assert row["ratio"] == pytest.approx(expected, rel=0.01)
        assert row["verdict"] == word
        share = row["wait_s"] / row["step_s"]
        assert share == pytest.approx(1 - 1 / expected, abs=0.01)
        assert row["starved_s"] == pytest.approx(row["wait_s"] / 2, rel=0.1, abs=1e-6)
    table = phase_tables.inputs(phase_costs.input_costs([block]))
    assert table is not None
    assert [row[1].main for row in table.body] == ["loaded", "prefetched"] * 2
    assert {len(row) for row in table.body} == {len(table.shown("text"))}
    drawn = page_data.build(content, store.read_manifest(directory))
    assert column(drawn, "inputs", "way") == ["loaded", "prefetched"] * 2
    assert set(drawn["blocks"]["samples"][0]) == {"0", "1", "twin"}


def test_what_an_arm_without_a_time_took_in_is_not_told(tmp_path: Path) -> None:
    endings: Any = {("pmap", 0): ("wrong", "it is")}
    _, content = built(tmp_path, endings=endings)
    found = phase_costs.input_costs(content.comparisons)
    assert {row["implementation"] for row in found} == {"jit_spmd"}


def test_a_page_can_be_made_where_one_arm_has_no_samples(tmp_path: Path) -> None:
    # What is measured in a worker of its own has none here.
    directory, content = built(tmp_path, alone=frozenset({"pmap"}))
    drawn = page_data.build(content, store.read_manifest(directory))
    assert column(drawn, "inputs", "verdict") == ["slower", "same", None, None]
    assert column(drawn, "inputs", "ratio")[2:] == [None, None]
    page_data.encode(drawn)
