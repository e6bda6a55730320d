"""The truth fits the memory that there is, and stays the truth."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import optax
import pytest

from bench.contract.workloads import gpt2, mlp, resnet
from bench.records.mesh import MeshShape
from bench.records.row_parts import AS_TIMED, OWN
from bench.worker import block as block_module
from bench.worker.problems import drawn, make_mesh
from bench.worker.prove import gate as gate_module
from bench.worker.prove.carried_state import whole_batch_loss
from bench.worker.prove.divided_gradients import SHARE, DividedGradients, Division, float64_batch
from bench.worker.prove.exact_arithmetic import exact_arithmetic, widened
from bench.worker.prove.failures import WrongStepError
from bench.worker.prove.gate import Gate
from implementations import fsdp_spmd, jit_spmd
from tests.slow import slow

SIZE, ROWS = "tiny", 32
DEVICES = 4
LARGE = 1 << 40


@pytest.fixture(scope="module")
def problem():
    """In float64, with many activations for each parameter."""
    with jax.enable_x64(True):
        return gpt2.problem(gpt2.SIZES[SIZE](), ROWS, "fp64")


@pytest.fixture
def divided(problem, programs):
    """The gradients of the problem's batch, by the memory of a device."""

    def made(memory: float, own: Any = problem) -> DividedGradients:
        loss_fn = whole_batch_loss(own, 1)
        return DividedGradients(own, loss_fn, own.batch(0), jax.devices()[:DEVICES], memory)

    with exact_arithmetic(programs):
        yield made


def planned(gradients: DividedGradients) -> int:
    stats = gradients._program.memory_analysis()
    return stats.temp_size_in_bytes + stats.argument_size_in_bytes + stats.output_size_in_bytes


def distance(ours: Any, theirs: Any) -> float:
    """The largest difference of two gradients, relative to the largest element."""
    pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
    largest = max(float(abs(leaf).max()) for leaf in jax.tree.leaves(theirs))
    return max(float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in pairs) / largest


def test_a_compiler_that_refuses_gets_twice_the_parts(monkeypatch, divided):
    """One that plans memory, as on TPUs, does not say how much is missing."""
    usual, tried = DividedGradients._compile, []

    def compile_(self, batch):
        tried.append(self.division.parts)
        return usual(self, batch) if self.division.parts >= 3 else (0.0, np.inf)

    monkeypatch.setattr(DividedGradients, "_compile", compile_)
    assert divided(LARGE).division == (1, 4)
    assert tried == [1, 2, 4]


def test_a_batch_is_computed_in_as_many_parts_as_fit(problem, divided):
    whole = divided(LARGE)
    assert whole.division == (1, 1)
    in_parts = divided(0.7 * planned(whole))
    assert in_parts.division.devices == 1
    assert 1 < in_parts.division.parts < ROWS
    assert planned(in_parts) < SHARE * 0.7 * planned(whole)
    params, batch = problem.draw(), problem.batch(0)
    (right, _), gradients = whole(params, {}, batch)
    (loss, _), ours = in_parts(params, {}, batch)
    assert float(loss) == pytest.approx(float(right), rel=1e-14)
    assert distance(ours, gradients) < 1e-13
    assert distance(ours, gradients) > 0, "another order of summation"
    assert np.all(params["norm"]["scale"] == problem.draw()["norm"]["scale"]), "not donated"


def test_a_batch_for_which_memory_runs_out_in_spite_of_the_plan_is_divided_further(
    problem, divided, monkeypatch
):
    params, batch = problem.draw(), problem.batch(0)
    whole, failing = divided(LARGE), divided(LARGE)
    expected = whole(params, {}, batch)
    compiled = failing._compile

    def compile_(batch):
        found = compiled(batch)
        if failing.division.parts < 4:
            monkeypatch.setattr(failing, "_program", runs_out)
        return found

    def runs_out(*_):
        raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 54.38GiB")

    monkeypatch.setattr(failing, "_program", runs_out)
    monkeypatch.setattr(failing, "_compile", compile_)
    (loss, _), gradients = failing(params, {}, batch)
    assert failing.division == (1, 4)
    assert float(loss) == pytest.approx(float(expected[0][0]), rel=1e-14)
    assert distance(gradients, expected[1]) < 1e-13


@pytest.mark.slow
def test_parameters_of_which_one_device_has_too_little_memory_are_sharded(problem, divided):
    whole = divided(LARGE)
    shapes = jax.tree.leaves(whole.place(problem.draw()))
    parameters = sum(leaf.nbytes for leaf in shapes)
    sharded = divided(10 * parameters)  # not enough for gradients, moments and their successors
    assert sharded.division.devices == DEVICES
    placed = sharded.place(problem.draw())
    on_one = sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(placed))
    assert on_one < 1.1 * parameters / DEVICES
    (right, _), gradients = whole(problem.draw(), {}, problem.batch(0))
    (loss, _), ours = sharded(problem.draw(), {}, problem.batch(0))
    assert float(loss) == pytest.approx(float(right), rel=1e-14)
    assert distance(ours, gradients) < 1e-13
    assert jax.tree.map(lambda leaf: leaf.sharding, ours) == jax.tree.map(
        lambda leaf: leaf.sharding, placed
    )
    assert planned(sharded) < planned(whole) / 2
    moments = jax.tree.leaves(problem.optimizer.init(placed))
    large = [leaf for leaf in moments if leaf.size > 500]
    assert all(leaf.addressable_shards[0].data.size < leaf.size for leaf in large)
    held = sharded.place_optimizer(jax.device_get(problem.optimizer.init(problem.draw())))
    assert [leaf.sharding for leaf in jax.tree.leaves(held) if leaf.ndim] == [
        leaf.sharding for leaf in moments if leaf.ndim
    ]


def test_what_fits_nowhere_is_tried_in_the_smallest_shards(divided):
    assert divided(1).division == (DEVICES, ROWS)


@pytest.mark.slow
def test_statistics_of_a_batch_are_never_taken_over_parts(divided):
    config = resnet.Config(side=4, widths=(4,), blocks=1)
    own = resnet.problem(config, ROWS, "fp64")
    own = replace(own, start_state=widened(own.draw_state()))
    assert divided(1, own).division == (DEVICES, 1)


@pytest.mark.parametrize(
    ("division", "shards", "microbatches", "batch"),
    [
        (Division(1, 1), 4, 2, 64),  # all of it fits on one device
        (Division(1, 8), 1, 1, 8),
        (Division(1, 8), 4, 1, 32),
        (Division(1, 8), 8, 1, 64),  # a shard is as large as a part
        (Division(1, 64), 1, 1, 1),
        (Division(1, 64), 2, 4, 8),  # a row for each shard of each microbatch
        (Division(4, 8), 4, 1, 8),  # a part lies on four devices
        (Division(4, 8), 1, 1, 2),
    ],
)  # fmt: skip
def test_the_batch_that_is_proved_in_float64(problem, division, shards, microbatches, batch):
    own = replace(problem, batch_size=64, microbatches=microbatches)
    assert float64_batch(division, own, shards) == batch


@pytest.fixture
def workload():
    return gpt2


@pytest.fixture
def session(monkeypatch, programs, workload):
    """What make_gate needs of a session, on two devices with too little memory for the batch."""
    rows = ROWS if workload is gpt2 else 32 * ROWS  # with more activations than parameters
    block = block_module.Block.of({
        "workload": "any", "size": SIZE, "mesh": "data=2", "batch": rows, "options": "fp32",
    })  # fmt: skip
    mesh = make_mesh(MeshShape.parse("data=2"))
    timed = workload.problem(workload.SIZES[SIZE](), rows, "fp32")

    session = SimpleNamespace(
        block=block,
        mesh=mesh,
        programs=programs,
        problem=drawn(timed, mesh.local_devices, LARGE),
        job={"implementations": ["jit_spmd"], "proved": {}},
        **dict.fromkeys(("announce", "end_lap", "fail"), lambda *_: None),
    )

    def limited(memory: float) -> Gate:
        monkeypatch.setattr(gate_module, "device_memory", lambda devices: memory)
        made = block_module.make_gate(session, workload)
        assert made is not None
        return made

    session.gate_with = limited
    return session


@pytest.mark.slow
def test_a_step_is_proved_in_float64_at_a_batch_that_fits(session):
    whole = session.gate_with(LARGE)
    assert whole.float64_gate is whole
    assert "parts" not in block_module.prove_exact(whole, jit_spmd)[0]
    room = planned(whole.loss_and_gradients)
    gate = session.gate_with(0.7 * room)
    assert gate.division.parts > 2
    assert gate.float64_gate.timed.batch_size == 2 * ROWS // gate.division.parts < ROWS
    start = gate.float64_gate.problems[OWN].start["norm"]["scale"]
    assert np.array_equal(start, gate.problems[OWN].start["norm"]["scale"])
    for name, truth in whole.truth.items():
        assert gate.truth[name].losses == pytest.approx(truth.losses, rel=1e-12)
        for path, leaf in truth.last.items():
            assert gate.truth[name].last[path] == pytest.approx(leaf, abs=1e-9)
    checks = block_module.prove_exact(gate, jit_spmd)
    assert [check["batch"] for check in checks] == 2 * [gate.float64_gate.timed.batch_size]
    built = jit_spmd.build(session.problem, session.mesh)
    build = partial(jit_spmd.build, session.problem, session.mesh)
    check, _ = gate.prove_timed(built, build)
    assert (check["name"], check["parts"]) == (AS_TIMED, gate.division.parts)
    assert "batch" not in check, "what is timed is proved at its own batch"


@pytest.mark.parametrize(
    ("workload", "as_timed"),
    [
        (mlp, "right in float64, but not as it would be timed"),
        *slow(
            (gpt2, r"the first update of \['blocks'\]\[0\].* is (wrong|2 times what it should be)")
        ),
    ],
)
def test_a_wrong_step_is_caught_by_a_truth_in_parts(session, as_timed):
    whole = session.gate_with(LARGE).loss_and_gradients
    temporary = whole._program.memory_analysis().temp_size_in_bytes
    gate = session.gate_with((whole._needed - 0.7 * temporary) / SHARE)
    assert 1 < gate.division.parts <= 8

    class Doubled:
        @staticmethod
        def build(problem, mesh):
            twice = optax.chain(optax.scale(2.0), problem.optimizer)
            return jit_spmd.build(replace(problem, optimizer=twice), mesh)

    with pytest.raises(WrongStepError, match="gradients are 2 times what they should be"):
        gate.float64_gate.prove_exact(Doubled)
    with pytest.raises(WrongStepError, match=as_timed):
        gate.prove_rounding(Doubled)


@pytest.mark.slow
def test_a_model_larger_than_a_device_is_proved_by_a_sharded_truth(session):
    parameters = sum(leaf.nbytes for leaf in jax.tree.leaves(session.problem.start))
    gate = session.gate_with(20 * parameters)  # ten times the parameters in float64
    assert gate.division.devices == gate.float64_gate.division.devices == 2
    checks = block_module.prove_exact(gate, fsdp_spmd)
    assert {check["parts"] for check in checks} == {gate.float64_gate.division.parts}
    build = partial(fsdp_spmd.build, session.problem, session.mesh)
    assert gate.prove_timed(build(), build)[0]["name"] == AS_TIMED


def test_a_step_that_does_not_fit_in_float64_is_proved_in_its_own_dtypes():
    class Full:
        @staticmethod
        def prove_exact(implementation):
            raise MemoryError("RESOURCE_EXHAUSTED: out of memory allocating 1 TiB")

    gate: Any = Full()
    gate.float64_gate = gate
    assert block_module.prove_exact(gate, jit_spmd) == []
    gate.float64_gate = type("Wrong", (), {"prove_exact": staticmethod(int)})()
    with pytest.raises(TypeError):
        block_module.prove_exact(gate, jit_spmd)


def test_parameters_are_drawn_in_shards_where_one_device_has_too_little_memory():
    problem = gpt2.problem(gpt2.SIZES[SIZE](), ROWS, "fp32")
    devices = jax.devices()[:DEVICES]
    whole, sharded = (drawn(problem, devices, memory) for memory in (LARGE, 1))
    assert distance(sharded.start, whole.start) < 1e-6
    for leaf in jax.tree.leaves(sharded.start):
        assert isinstance(leaf, np.ndarray)
    assert widened(sharded.start)["norm"]["scale"].dtype == np.float64
