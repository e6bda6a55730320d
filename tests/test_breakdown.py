"""A step's time is divided rightly: among parts that add up, and among operations."""

from __future__ import annotations

import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from bench.mesh import MeshShape
from bench.worker.block import make_mesh
from bench.worker.breakdown import device_step, known, middle_half
from bench.worker.clock import Arm
from bench.worker.operations import Operation, Operations, joined, phase_of
from bench.worker.programs import live_programs, new_programs
from bench.worker.tracing import read_steps, record, summarize
from bench.worker.xspace import Event


def operation(name, category="elementwise", groups=()):
    return Operation(
        "jit_step", name, "fusion", category, "update", "", (), transposes=False, groups=groups
    )


OPERATIONS = {
    one.name: one
    for one in (
        operation("dot", "matmul"),
        operation("fusion"),
        operation("loop", "control"),
        operation("reduce", "collective", ((0, 1),)),
    )
}
PROGRAM = SimpleNamespace(get=lambda module, name: OPERATIONS.get(name))
"""Stands for compiled programs."""


def divide(*events, step=(0, 100), device=0):
    """Events are (name, start, end), then device and launch where they are not 0."""
    listed = [
        Event(
            *(rest[0] if rest else 0, "jit_step", name, rest[1] if rest[1:] else 0), start, end
        )
        for name, start, end, *rest in events
    ]  # fmt: skip
    listed.sort(key=lambda event: event.start)
    ours = known(listed, PROGRAM, {0: 0, 1: 1})
    found = device_step(step, [one for one in ours if one.event.device == device])
    share = found.share
    parts = share.dispatch + share.compute + share.wait + share.move + share.idle
    assert math.isclose(parts, share.total)
    return found


def test_dispatch_computing_and_idle_time():
    share = divide(("dot", 10, 40), ("fusion", 50, 90)).share
    assert (share.dispatch, share.compute, share.idle) == (10, 70, 20)


def test_a_device_waits_for_every_launch():
    share = divide(("dot", 10, 40, 0, 1), ("fusion", 50, 90, 0, 2)).share
    assert (share.dispatch, share.idle) == (20, 10)


def test_operations_at_the_same_time_share_it():
    found = divide(("dot", 0, 60), ("fusion", 40, 100))
    spent = {one.name: part.compute for one, part in found.operations.items()}
    assert spent == {"dot": 50, "fusion": 50}


def test_a_collective_waits_until_all_have_arrived():
    events = [("reduce", 10, 60), ("reduce", 40, 60, 1)]
    early, late = (divide(*events, device=device).share for device in (0, 1))
    assert (early.wait, early.move) == (30, 20)
    assert (late.wait, late.move) == (0, 20)


def test_the_second_run_of_a_collective_meets_the_second_of_others():
    events = [("reduce", 0, 10), ("reduce", 50, 90), ("reduce", 0, 10, 1), ("reduce", 80, 90, 1)]
    share = divide(*events).share
    assert (share.wait, share.move) == (30, 20)


def test_a_collective_beside_computing_costs_nothing():
    found = divide(("reduce", 10, 60), ("reduce", 10, 60, 1), ("dot", 0, 40))
    share = found.share
    assert (share.compute, share.overlap, share.move, share.wait) == (40, 30, 20, 0)
    assert found.operations[OPERATIONS["reduce"]].move == 20


def test_a_loop_has_what_its_operations_leave():
    found = divide(("loop", 10, 90), ("fusion", 20, 50))
    assert found.operations[OPERATIONS["loop"]].compute == 50
    assert (found.share.compute, found.share.idle, found.share.dispatch) == (30, 60, 10)


def test_operations_of_other_programs_do_not_count():
    share = divide(("dot", 10, 40), ("another program's", 40, 90)).share
    assert (share.compute, share.idle) == (30, 60)


def test_events_are_cut_where_the_step_ends():
    assert divide(("dot", 90, 150)).share.compute == 10


def test_nothing_at_all():
    assert divide().share.idle == 100


@pytest.mark.parametrize(
    ("lengths", "counted"),
    [
        ([5], [0]),
        ([5, 6], [0, 1]),
        ([9, 5, 6], [2]),
        ([9, 5, 6, 7, 8], [2, 3, 4]),
        ([30, 5, 6, 7, 8, 1, 29, 9], [2, 3, 4, 7]),
    ],
)
def test_steps_of_median_length_are_looked_at(lengths, counted):
    assert middle_half(lengths) == counted


def test_pairs_join_into_chains():
    assert joined([(0, 1), (2, 3), (1, 4)]) == ((2, 3), (0, 1, 4))


@pytest.mark.parametrize(
    ("name", "source", "phase"),
    [
        ("jit(step)/jvp()/dot_general", "flax/nnx/nn/linear.py:422", "forward"),
        ("jit(step)/shard_map/transpose(jvp())/dot_general", "", "backward"),
        ("jit(step)/transpose(jvp())/checkpoint/rematted_computation/add", "", "recomputed"),
        ("jit(step)/add", "optax/_src/transform.py:283", "update"),
        ("jit(step)/add", "bench/contract.py:174", "other"),
        ("", "", "other"),
    ],
)
def test_phases_are_told_by_transformations_and_sources(name, source, phase):
    assert phase_of(name, source) == phase


def compiled(step, *arguments):
    before = live_programs()
    jax.block_until_ready(step(*arguments))
    return new_programs(live_programs(), before)


def test_operations_are_classified_by_what_they_do():
    """Not by their names: fusions are named after parts of them, or after a library."""

    def step(x):
        y, gradient = jax.value_and_grad(lambda x: jnp.sum(jnp.tanh(x @ x.T)))(x)
        return jax.lax.scan(lambda c, _: (c + jnp.sin(c).T.copy() @ x, None), gradient * y, None, 3)

    step = jax.jit(step)
    (program,) = compiled(step, jnp.ones((96, 96)))
    (module,) = program.hlo_modules()
    operations = Operations([program], 1)
    names = [one.name for own in module.computations() for one in own.instructions()]
    found = [operations.get(module.name, name) for name in names]
    categories = {one.opcode: one.category for one in found}
    assert categories["dot"] == "matmul"
    assert categories["while"] == "control"
    assert categories["copy"] == "layout"
    assert {one.category for one in found if one.opcode == "fusion"} <= {
        *("matmul", "elementwise", "layout"),
    }
    assert any(one.phase == "backward" and one.category == "matmul" for one in found)
    assert any(one.source.startswith("test_breakdown.py:") for one in found)
    assert operations.get(module.name, "no such operation") is None
    assert operations.get("another", names[0]) is None


def test_a_device_with_four_times_the_work_shows_as_wait_on_its_peer(tmp_path):
    """Planted truth, read from a real trace."""
    mesh = make_mesh(MeshShape.parse("data=2"))

    def local(x):
        turns = jnp.where(jax.lax.axis_index("data") == 0, 60, 15)
        y = jax.lax.fori_loop(0, turns, lambda _, y: jnp.tanh(y @ x), x)
        return jax.lax.psum(y, "data")

    @jax.jit
    @jax.shard_map(mesh=mesh, in_specs=P("data"), out_specs=P(), check_vma=False)
    def work(x):
        return local(x[0])

    x = jax.device_put(jnp.ones((2, 300, 300)) / 300, NamedSharding(mesh, P("data")))

    def step(state, batch):
        return state, work(batch)[0, 0]

    programs = compiled(work, x)
    arm = Arm("planted", step, None, x)
    arm.run(1)
    path = record(arm, tmp_path, "run/planted", 6)
    assert path.relative_to(tmp_path).as_posix() == (
        "run/plugins/profile/planted/process_0.xplane.pb"
    )
    steps = read_steps(path, Operations(programs, 2), {0: 0, 1: 1})
    shown = summarize(steps)
    assert {part["step"] for part in shown.steps} == set(range(6))
    counted = [part for part in shown.steps if part["step"] in shown.counted]
    busy, waiting = (
        [part for part in counted if part["device"] == device] for device in (0, 1)
    )  # fmt: skip
    for much, little in zip(busy, waiting, strict=True):
        extra = much["compute_ns"] - little["compute_ns"]
        assert extra > 0
        assert much["wait_ns"] < 0.1 * extra
        assert little["wait_ns"] == pytest.approx(extra, rel=0.25)
    (reduction,) = [op for op in shown.ops if op["category"] == "collective"]
    assert reduction["opcode"] == "all-reduce"
    assert reduction["count"] == 1
    products = [op for op in shown.ops if op["category"] == "matmul"]
    assert sum(op["count"] for op in products) == pytest.approx((60 + 15) / 2)


def test_a_trace_of_something_else_is_refused(tmp_path):
    arm = Arm("other", lambda state, batch: (state, jnp.sum(batch)), None, jnp.ones(4))
    path = record(arm, tmp_path, "run/other", 1)
    with pytest.raises(ValueError, match="no operation of the step's programs"):
        read_steps(path, Operations([], 1), {0: 0})
