"""A step's time is divided rightly: among parts that add up, and among operations."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jaxlib._hlo import hlo_module_from_text

from bench.contract.workloads import mlp
from bench.records.mesh import MeshShape
from bench.worker.file_loader import implementation_files, load
from bench.worker.problems import make_mesh
from bench.worker.read import hlo
from bench.worker.read.collectives import collectives
from bench.worker.read.hlo import modules_of
from bench.worker.read.programs import live_programs, new_programs
from bench.worker.time.clock import Arm
from bench.worker.trace import step_parts, xspace
from bench.worker.trace.operations import (
    Operation,
    Operations,
    joined,
    phase_of,
    unknown,
)
from bench.worker.trace.profiler import mean_times, parts_of, read_steps, record
from bench.worker.trace.step_parts import device_step, identify_runs, middle_half
from bench.worker.trace.xspace import Event


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
        operation("reduce-start", "collective", ((0, 1),)),
        replace(operation("reduce-done", "collective", ((0, 1),)), start="reduce-start"),
        replace(operation("copy-start", "layout"), opcode="copy-start"),
        replace(operation("kernel", "control"), opcode="call", inside="elementwise"),
    )
}
PROGRAM = SimpleNamespace(get=lambda module, name, _: OPERATIONS.get(name, unknown(module, name)))
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
    ours = identify_runs(listed, PROGRAM, {0: 0, 1: 1}, 0)
    found = device_step(step, [one for one in ours if one.event.device == device])
    share = found.share
    parts = (share[part] for part in ("dispatch", "compute", "wait", "move", "idle"))
    assert math.isclose(sum(parts), share["total"])
    return found


def test_dispatch_computing_and_idle_time():
    share = divide(("dot", 10, 40), ("fusion", 50, 90)).share
    assert (share["dispatch"], share["compute"], share["idle"]) == (10, 70, 20)


def test_a_device_waits_for_every_launch():
    share = divide(("dot", 10, 40, 0, 1), ("fusion", 50, 90, 0, 2)).share
    assert (share["dispatch"], share["idle"]) == (20, 10)


def test_operations_at_the_same_time_share_it():
    found = divide(("dot", 0, 60), ("fusion", 40, 100))
    spent = {one.name: part["compute"] for one, part in found.operations.items()}
    assert spent == {"dot": 50, "fusion": 50}


def test_a_collective_waits_until_all_have_arrived():
    events = [("reduce", 10, 60), ("reduce", 40, 60, 1)]
    early, late = (divide(*events, device=device).share for device in (0, 1))
    assert (early["wait"], early["move"]) == (30, 20)
    assert (late["wait"], late["move"]) == (0, 20)


def test_the_second_run_of_a_collective_meets_the_second_of_others():
    events = [("reduce", 0, 10), ("reduce", 50, 90), ("reduce", 0, 10, 1), ("reduce", 80, 90, 1)]
    share = divide(*events).share
    assert (share["wait"], share["move"]) == (30, 20)


def test_a_collective_beside_computing_costs_nothing():
    found = divide(("reduce", 10, 60), ("reduce", 10, 60, 1), ("dot", 0, 40))
    share = found.share
    assert (share["compute"], share["overlap"], share["move"], share["wait"]) == (40, 30, 20, 0)
    assert found.operations[OPERATIONS["reduce"]]["move"] == 20


def test_a_loop_has_what_its_operations_leave():
    found = divide(("loop", 10, 90), ("fusion", 20, 50))
    assert found.operations[OPERATIONS["loop"]]["compute"] == 50
    assert (found.share["compute"], found.share["idle"], found.share["dispatch"]) == (30, 60, 10)


def test_operations_of_programs_that_are_not_known_are_told():
    found = divide(("dot", 10, 40), ("another program's", 40, 90))
    assert (found.share["compute"], found.share["idle"]) == (80, 10)
    spent = {one.category: part["compute"] for one, part in found.operations.items()}
    assert spent == {"matmul": 30, "unknown": 50}


def test_the_end_of_an_asynchronous_collective_waits_for_its_starts():
    """Not for the others to come to their ends, before which they may compute."""
    events = [
        *(("reduce-start", 0, 1), ("reduce-done", 1, 60)),
        *(("reduce-start", 3, 4, 1), ("dot", 4, 58, 1), ("reduce-done", 58, 60, 1)),
    ]
    early, late = (divide(*events, device=device).share for device in (0, 1))
    assert (early["wait"], early["move"], early["idle"]) == (3, 57, 40)
    assert (late["compute"], late["wait"], late["move"]) == (54, 0, 3)


def test_copies_in_the_background_take_nothing_from_computing():
    found = divide(("copy-start", 0, 60), ("dot", 20, 100))
    spent = {one.name: part["compute"] for one, part in found.operations.items()}
    assert spent == {"copy-start": 20, "dot": 80}


def test_a_loop_that_is_one_kernel_computes():
    found = divide(("kernel", 10, 90))
    assert (found.share["compute"], found.share["idle"]) == (80, 10)
    assert [(one.category, part["compute"]) for one, part in found.operations.items()] == [
        ("elementwise", 80)
    ]


def test_events_are_cut_where_the_step_ends():
    assert divide(("dot", 90, 150)).share["compute"] == 10


def test_nothing_at_all():
    assert divide().share["idle"] == 100


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
        ("jit(step)/while/body/forward/cond/branch_1_fun/dot_general", "", "forward"),
        ("jit(step)/cond/branch_1_fun/recomputed/jvp()/dot_general", "", "recomputed"),
        ("jit(step)/recomputed/transpose(jvp())/dot_general", "", "backward"),
        ("jit(step)/add", "optax/_src/transform.py:283", "update"),
        ("jit(step)/mul", "bench/contract/clipping.py:25", "update"),
        ("jit(step)/add", "bench/contract/__init__.py:174", "other"),
        ("", "", "other"),
    ],
)
def test_phases_are_told_by_transformations_and_sources(name, source, phase):
    assert phase_of(name, source) == phase


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("jit(step)/vmap(transpose(foo))/add", "other"),
        ("jit(transpose)/transpose", "other"),
        ("jit(step)/transpose(vmap(jvp(f)))/mul", "backward"),
    ],
)
def test_transposing_is_not_the_backward_pass(name, phase):
    assert phase_of(name, "") == phase


def compiled(step, *arguments):
    before = live_programs()
    jax.block_until_ready(step(*arguments))
    return new_programs(live_programs(), before)


def test_operations_are_classified_by_what_they_do():
    """Not by their names: fusions are named after parts of them, or after a library."""

    def step(x):
        y, gradient = jax.value_and_grad(lambda x: jnp.sum(jnp.tanh(x @ x.T)))(x)
        jax.debug.callback(lambda _: None, y)
        return jax.lax.scan(lambda c, _: (c + jnp.sin(c).T.copy() @ x, None), gradient * y, None, 3)

    (program,) = compiled(jax.jit(step), jnp.ones((96, 96)))
    (module,) = program.hlo_modules()
    operations = Operations(modules_of([program]), 1)
    computations = {own.name: list(own.instructions()) for own in module.computations()}
    found = {
        one.name: (operations.get(module.name, one.name), one.to_string())
        for own in computations.values()
        for one in own
    }
    for one, text in found.values():
        expected = {"dot": "matmul", "while": "control", "tanh": "elementwise"}.get(one.opcode)
        if one.opcode == "fusion":
            fused = computations[re.search(r"calls=%([\w.-]+)", text)[1]]
            assert (one.category == "matmul") == any(own.opcode.name == "kDot" for own in fused)
        elif expected:
            assert one.category == expected
    listed = [one for one, _ in found.values()]
    assert {"matmul", "control", "callback"} <= {one.category for one in listed}
    assert any(one.phase == "backward" and one.category == "matmul" for one in listed)
    assert any(one.source.startswith("test_step_parts.py:") for one in listed)
    assert operations.get(module.name, "no such operation").category == "unknown"
    assert operations.get("another", listed[0].name).category == "unknown"


def test_the_nth_run_of_a_collective_meets_the_nth_on_other_devices():
    """Device 1 is 4 ns late every time, in a loop that runs it thrice."""
    listed = [
        Event(device, "jit_step", "reduce", 0, at + 4 * device, at + 8)
        for at in (1000, 1010, 1020)
        for device in (0, 1)
    ]
    runs = identify_runs(listed, PROGRAM, {0: 0, 1: 1}, 0)
    assert [run.arrival for run in runs] == [1004, 1004, 1014, 1014, 1024, 1024]
    assert len({run.meeting for run in runs}) == 3


@pytest.mark.parametrize(("host", "arrival"), [("here", 15), ("elsewhere", 10)])
def test_devices_of_another_process_are_waited_for_if_it_shares_the_clock(
    monkeypatch, host, arrival
):
    """Another process came 5 ns later, and its trace's clock began 400 ns before this one's."""

    def gathered(own):
        _, began, arrivals = own
        moved = {meeting: at + 405 for meeting, at in arrivals.items()}
        return [("here", began, arrivals), (host, began - 400, moved)]

    monkeypatch.setattr(step_parts.process_exchange, "gather", gathered)
    (run,) = identify_runs([Event(0, "jit_step", "reduce", 0, 10, 60)], PROGRAM, {0: 0}, 10**18)
    assert run.arrival == arrival


def test_programs_of_one_name_are_told_apart():
    """By their numbers; a step's own are found without them as well."""
    x = jnp.ones((64, 64))
    (product,) = compiled(jax.jit(lambda x: jnp.tanh(x @ x)), x)
    (sine,) = compiled(jax.jit(lambda x: jnp.sin(x) + jnp.cos(x).sum()), x)
    (own,), (other,) = modules_of([product]), modules_of([sine])
    assert own.name == other.name == "jit__lambda"
    assert own.number != other.number
    operations = Operations([own], 1, [other])
    (theirs,) = set(list(other.instructions)[-1:]) - own.instructions.keys()
    assert operations.get(own.name, theirs, other.number).category != "unknown"
    assert operations.get(own.name, theirs).category == "unknown"
    shared = next(name for name in own.instructions if name in other.instructions)
    assert operations.get(own.name, shared).category != "unknown"


ASYNCHRONOUS = """HloModule m, is_scheduled=true, num_partitions=4

add { a = f32[] parameter(0)
 b = f32[] parameter(1)
 ROOT c = f32[] add(a, b) }

body { p = (s32[], f32[8]) parameter(0)
 i = s32[] get-tuple-element(p), index=0
 x = f32[8] get-tuple-element(p), index=1
 one = s32[] constant(1)
 j = s32[] add(i, one)
 rs-start = ((f32[8]), f32[4]) reduce-scatter-start(x), dimensions={0},
   replica_groups={{0,1},{2,3}}, to_apply=add
 rs-done = f32[4] reduce-scatter-done(rs-start)
 ar-start = f32[8] all-reduce-start(x), replica_groups={{0,1},{2,3}}, to_apply=add
 ar-done = f32[8] all-reduce-done(ar-start)
 ROOT t = (s32[], f32[8]) tuple(j, ar-done) }

cond { p = (s32[], f32[8]) parameter(0)
 i = s32[] get-tuple-element(p), index=0
 n = s32[] constant(5)
 ROOT lt = pred[] compare(i, n), direction=LT }

ENTRY e { x = f32[8] parameter(0)
 z = s32[] constant(0)
 s = (s32[], f32[8]) tuple(z, x)
 w = (s32[], f32[8]) while(s), condition=cond, body=body,
   backend_config={"known_trip_count":{"n":"5"}}
 ROOT y = f32[8] get-tuple-element(w), index=1 }
"""


def test_asynchronous_collectives_are_those_that_they_wrap():
    program = SimpleNamespace(hlo_modules=lambda: [hlo_module_from_text(ASYNCHRONOUS)])
    found = {one.kind: one for one in collectives(program, 4)}
    assert {kind: (one.count, one.bytes) for kind, one in found.items()} == {
        "reduce-scatter": (5, 32),
        "all-reduce": (5, 32),
    }
    operations = Operations(modules_of([program]), 4)
    for name in ("rs-start", "rs-done", "ar-start", "ar-done"):
        one = operations.get("m", name)
        assert one.category == "collective"
        assert one.groups == ((0, 1), (2, 3))
        assert one.start == (name.replace("done", "start") if "done" in name else "")
    assert operations.get("m", "rs-start").opcode == "reduce-scatter-start"


LAYOUTS = """HloModule m

ENTRY e { p = f32[4,8]{1,0} parameter(0)
 same = f32[4,8]{1,0} copy(p)
 other = f32[4,8]{0,1} copy(p)
 view = f32[8,4]{0,1} transpose(p), dimensions={1,0}
 moved = f32[8,4]{1,0} transpose(p), dimensions={1,0}
 q = f32[1,8]{1,0} parameter(1)
 degenerate = f32[1,8]{0,1} copy(q)
 n = s32[] parameter(2)
 scalar = s32[] copy(n)
 ROOT t = (f32[4,8]{1,0}, f32[4,8]{0,1}, f32[8,4]{0,1}, f32[8,4]{1,0}, f32[1,8]{0,1}, s32[])
   tuple(same, other, view, moved, degenerate, scalar) }
"""


def test_an_instruction_of_one_name_is_that_of_its_own_program():
    made = [compiled(jax.jit(jnp.sin), jnp.ones(n))[0] for n in (3, 5)]
    first, second = modules_of(made)
    operations = Operations([first], 1, [second])
    named = (name for name, one in first.instructions.items() if hlo.opcode(one) == "parameter")
    name = next(name for name in named if name in second.instructions)
    found = [operations.get(first.name, name, one.number).shapes for one in (first, second)]
    assert found == [("f32[3]",), ("f32[5]",)]


def test_what_moves_elements_is_told_by_layouts():
    program = SimpleNamespace(hlo_modules=lambda: [hlo_module_from_text(LAYOUTS)])
    operations = Operations(modules_of([program]), 1)
    names = ("same", "other", "view", "moved", "degenerate", "scalar")
    found = {name: operations.get("m", name).transposes for name in names}
    assert [name for name, moves in found.items() if moves] == ["other", "moved"]


COPIES = """HloModule m

ENTRY e { p = f32[4,8]{1,0} parameter(0), metadata={op_name="state"}
 of_argument = f32[4,8]{1,0} copy(p)
 again = f32[4,8]{0,1} copy(of_argument)
 forward = f32[4,8]{1,0} sine(p), metadata={op_name="jit(step)/jvp()/sin"}
 backward = f32[4,8]{0,1} add(forward, again), metadata={op_name="jit(step)/transpose(jvp())/add"}
 of_result = f32[4,8]{1,0} copy(forward)
 returned = f32[4,8]{1,0} copy(p)
 ROOT t = (f32[4,8]{0,1}, f32[4,8]{1,0}, f32[4,8]{1,0}) tuple(backward, of_result, returned) }
"""


def test_the_compilers_copies_belong_to_the_phase_of_what_they_copy_or_serve():
    program = SimpleNamespace(hlo_modules=lambda: [hlo_module_from_text(COPIES)])
    operations = Operations(modules_of([program]), 1)
    copies = ("of_argument", "again", "of_result", "returned")
    assert {name: operations.get("m", name).phase for name in copies} == {
        "of_argument": "backward", "again": "backward", "of_result": "forward", "returned": "other",
    }  # fmt: skip


def test_the_update_of_jit_spmd_transposes_and_that_of_shard_map_does_not():
    """What `explain` says of these two, whatever they take here."""
    mesh = make_mesh(MeshShape.parse("data=2"))
    problem = mlp.problem(mlp.SIZES["base"](), 16, "fp32")
    moving = {}
    for name in ("jit_spmd", "shard_map_pmean"):
        train_step = load(implementation_files([])[name]).build(problem, mesh)
        batch = train_step.place(problem.batch(0))
        modules = modules_of(compiled(train_step.step, train_step.state, batch))
        operations = Operations(modules, 2)
        found = [operations.get(own.name, op) for own in modules for op in own.instructions]
        updates = [one for one in found if (one.opcode, one.phase) == ("fusion", "update")]
        moving[name] = [one for one in updates if one.transposes]
        assert len(updates) > len(moving[name])
    assert "f32[1024,1024]" in {shape for one in moving["jit_spmd"] for shape in one.shapes}
    assert {one.category for one in moving["jit_spmd"]} == {"elementwise"}
    assert not moving["shard_map_pmean"]


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
    steps = read_steps(
        xspace.read(path.read_bytes(), "planted"), Operations(modules_of(programs), 2), {0: 0, 1: 1}
    )
    parts = parts_of(steps, [0, 1])
    assert {part["step"] for part in parts} == set(range(6))
    middle = middle_half([one[0].share["total"] for one in steps])
    ops = mean_times([device for number in middle for device in steps[number]])
    counted = [part for part in parts if part["step"] in middle]
    spent = {
        device: {
            part: sum(own[f"{part}_ns"] for own in counted if own["device"] == device)
            for part in ("compute", "wait")
        }
        for device in (0, 1)
    }
    extra = spent[0]["compute"] - spent[1]["compute"]
    assert extra > 0
    assert spent[0]["wait"] < 0.2 * spent[1]["wait"]
    assert spent[1]["wait"] == pytest.approx(extra, rel=0.4)
    (reduction,) = [op for op in ops if op["category"] == "collective"]
    assert reduction["opcode"] == "all-reduce"
    assert reduction["count"] == 1
    products = [op for op in ops if op["category"] == "matmul"]
    assert sum(op["count"] for op in products) == pytest.approx((60 + 15) / 2)


def test_a_trace_of_something_else_is_refused(tmp_path):
    arm = Arm("other", lambda state, batch: (state, jnp.sum(batch)), None, jnp.ones(4))
    path = record(arm, tmp_path, "run/other", 1)
    with pytest.raises(ValueError, match="no operation of the step's programs"):
        read_steps(xspace.read(path.read_bytes(), "other"), Operations([], 1), {0: 0})
