"""Steps that go wrong once they are timed are found in the rounds, and right ones are not."""

from __future__ import annotations

import itertools
import random
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from bench.contract.workloads import gpt2, gpt2_muon, mlp
from bench.records.mesh import MeshShape
from bench.records.row_parts import AS_TIMED
from bench.worker.problems import make_mesh
from bench.worker.prove import divided_gradients, spot_checks
from bench.worker.prove.failures import WrongStepError
from bench.worker.prove.gate import Gate
from bench.worker.prove.span_records import pending
from bench.worker.prove.spot_checks import MOST, SHARE, SpotChecks
from bench.worker.prove.state_reader import StateReader, counters
from bench.worker.prove.statistical_proof import STEPS
from bench.worker.prove.trajectory import apply_update
from bench.worker.read.compilation import CompilationLog
from bench.worker.time.clock import Arm, measure
from implementations import (
    compressed_int8,
    jit_spmd,
    local_steps,
    nnx_jit_cached,
    pipeline_gpipe,
    pmap,
    python_loop,
    zero1,
)

AFTER = 8
"""Calls of a step that are right; all of them before the rounds."""
TWICE = r"the update is about (1\.9[6-9]|2|2\.0[1-4]) times what it should be"
"""A factor of 2, of which rounding leaves two digits."""


def checked(gate, built, problem, rounds=3, seconds=1.0, approximate=(), steps=4, *, last=False):
    """The reason against a step after some rounds, and the largest errors of its passed checks."""
    arm = Arm("planted", built.step, built.state, built.place(problem.batch(0)))
    arm.train_step = built
    arm.run(AFTER + 2)
    checks = SpotChecks(gate, rounds, seconds, approximate)
    checks.chance = random.Random(1)
    checks.begin([arm], lambda _: None)

    def after_round(turns):
        checks.verify(lambda _: None)
        return [] if turns[-1]["round"] + 1 == rounds else None

    comparison, found = spot_checks.Comparison, []

    def compared(*given):
        found.append(comparison(*given))
        return found[-1]

    with pytest.MonkeyPatch.context() as patched, CompilationLog() as log:
        patched.setattr(spot_checks, "Comparison", compared)
        measure([arm], steps, 0, log, after_round, checked_span=checks.checked_span)
        checks.finish([arm] if last else [], lambda _: None)
    passed = [one.check for one in found if one.is_right]
    worst = max(passed, key=lambda check: check["update_error"], default=None)
    return checks.reasons.get("planted", ""), worst


def changed(change):
    """jit_spmd with `change(call, right step, copy, problem, mesh)` called in place of its step."""

    def build(problem, mesh):
        right = jit_spmd.build(problem, mesh)
        calls = itertools.count()
        copy = jax.jit(lambda tree: jax.tree.map(jnp.copy, tree))
        step = change(right.step, copy, problem, mesh)
        return replace(right, step=lambda state, batch: step(next(calls), state, batch))

    return build


def of_half(problem):
    """A problem that looks at the first half of its batch."""

    def loss(model: Any, batch: Any) -> jax.Array:
        half = jax.tree.map(lambda x: x[: x.shape[0] // 2], batch)
        result: jax.Array = problem.loss(model, half)
        return result

    return replace(problem, loss=loss)


def frozen(right, copy, problem, mesh, *, every=1):
    def step(call, state, batch):
        if call < AFTER or call % every:
            return right(state, batch)
        kept = copy(state)
        return kept, right(state, batch)[1]

    return step


def counted_but_frozen(right, copy, problem, mesh):
    def step(call, state, batch):
        kept = copy(state[0])
        (params, *others), loss = right(state, batch)
        return (params if call < AFTER else kept, *others), loss

    return step


def dodging(right, copy, problem, mesh, *, of=1 << 60):
    """One update of so many where the clock's frames show a timed span, but a counter for each."""

    def step(call, state, batch):
        frame = sys._getframe()
        while frame.f_back is not None and "groups" not in frame.f_locals:
            frame = frame.f_back
        turn = frame.f_locals
        timed = "groups" in turn and turn["group"] is turn["spans"] and call % of
        return (counted if timed else lambda _, *given: right(*given))(AFTER, state, batch)

    counted = counted_but_frozen(right, copy, problem, mesh)
    return step


def counting(right, copy, problem, mesh):
    """Leaves out updates in timed spans, but for every third; their counter rises alone."""

    @partial(jax.jit, out_shardings=NamedSharding(mesh, P()))
    def count(state):
        return jax.tree.map(lambda x: x + jnp.issubdtype(x.dtype, jnp.integer), state)

    def step(call, state, batch):
        frame = sys._getframe()
        while frame.f_back is not None and "groups" not in frame.f_locals:
            frame = frame.f_back
        turn = frame.f_locals
        timed = "groups" in turn and turn["group"] is turn["spans"] and call % 3
        new, loss = right(copy(state), batch)
        return (count(state) if timed else new), loss

    return step


def one_layer(right, copy, problem, mesh):
    def step(call, state, batch):
        kept = copy(state[0])
        (params, *others), loss = right(state, batch)
        if call >= AFTER:
            bias, old = jax.tree.leaves(params)[0], jax.tree.leaves(kept)[0]
            params = jax.tree.map(lambda x: old if x is bias else x, params)
        return (params, *others), loss

    return step


def anew(right, copy, problem, mesh):
    init = jax.jit(problem.optimizer.init, out_shardings=NamedSharding(mesh, P()))

    def step(call, state, batch):
        if call % 5 == 4:
            state = state[0], init(state[0]), state[2]
        return right(state, batch)

    return step


def half(right, copy, problem, mesh):
    less = jit_spmd.build(of_half(problem), mesh).step
    return lambda call, state, batch: (right if call < AFTER else less)(state, batch)


def half_when_timed(right, copy, problem, mesh):
    less = jit_spmd.build(of_half(problem), mesh).step

    def step(call, state, batch):
        frame, names = sys._getframe(), set()
        while frame is not None:
            names.add(frame.f_code.co_name)
            frame = frame.f_back
        return (less if "measure" in names else right)(state, batch)

    return step


def cached_loss(right, copy, problem, mesh):
    kept: list[jax.Array] = []

    def step(call, state, batch):
        state, loss = right(state, batch)
        if call < AFTER:
            kept[:] = [loss]
        return state, kept[0]

    return step


def longer(right, copy, problem, mesh):
    def step(call, state, batch):
        old = copy(state[0])
        (params, *others), loss = right(state, batch)
        if call >= AFTER:
            params = jax.tree.map(lambda a, b: a + 1.25 * (b - a), old, params)
        return (params, *others), loss

    return step


def delayed(right, copy, problem, mesh):
    loss_fn = problem.loss_function()
    held: list[Any] = []

    @partial(jax.jit, out_shardings=NamedSharding(mesh, P()))
    def late(state, old, batch):
        grads = jax.grad(loss_fn)(old, batch)
        updates, opt_state = problem.optimizer.update(grads, state[1], state[0])
        return (optax.apply_updates(state[0], updates), opt_state), loss_fn(state[0], batch)

    def step(call, state, batch):
        old = held[0] if call >= AFTER else state[0]
        held[:] = [copy(state[0])]
        return late(state, old, batch) if call >= AFTER else right(state, batch)

    return step


def reused(right, copy, problem, mesh):
    """Uses each step's gradients once more in the next step."""
    gradients = jax.jit(jax.value_and_grad(problem.loss_function()))
    kept: list[Any] = []

    @partial(jax.jit, out_shardings=NamedSharding(mesh, P()))
    def update(state, grads):
        updates, opt_state = problem.optimizer.update(grads, state[1], state[0])
        return optax.apply_updates(state[0], updates), opt_state

    def step(call, state, batch):
        if call < AFTER:
            return right(state, batch)
        if call % 2 == 0:
            kept[:] = [gradients(state[0], batch)]
        return update(state, kept[0][1]), kept[0][0]

    return step


def in_a_thread(right, copy, problem, mesh):
    """Hands each step to a thread, and returns what the one before has left."""
    pool, due = ThreadPoolExecutor(1), []

    def step(call, state, batch):
        if call < AFTER:
            return right(state, batch)
        due.append(pool.submit(right, copy(state), batch))
        return (state, right(copy(state), batch)[1]) if len(due) == 1 else due.pop(0).result()

    return step


def with_a_counter(right, copy, problem, mesh, *, after=AFTER):
    """Gradients of a single program that doubles them once its own counter is high enough."""
    loss_fn = problem.loss_function()

    @partial(jax.jit, out_shardings=NamedSharding(mesh, P()))
    def counting(state, number, batch):
        loss, grads = jax.value_and_grad(loss_fn)(state[0], batch)
        updates, opt_state = problem.optimizer.update(grads, state[1], state[0])
        updates = jax.tree.map(lambda u: jnp.where(number < after, u, 2 * u), updates)
        return (optax.apply_updates(state[0], updates), opt_state), number + 1, loss

    number = [jax.device_put(jnp.int32(0), NamedSharding(mesh, P()))]

    def step(call, state, batch):
        state, number[0], loss = counting(state, number[0], batch)
        return state, loss

    return step


def reset_moments(right, copy, problem, mesh):
    """Moments made anew every few steps, and the counter kept."""
    zero = jax.jit(lambda tree: jax.tree.map(lambda x: x * (x.ndim == 0), tree))

    def step(call, state, batch):
        return right((state[0], zero(copy(state[1])), state[2]) if call % 2 else state, batch)

    return step


@pytest.mark.parametrize(
    ("change", "diagnosis"),
    [
        (frozen, "the optimizer.s .*count goes from (\\d+) to \\1 in"),
        (partial(frozen, every=2), "the optimizer.s .*count goes from"),
        (anew, "the optimizer.s .*count goes .* or its state was reset"),
        (counted_but_frozen, "the parameters do not change"),
        (dodging, "do not change in the .* before: the step skips updates"),
        (one_layer, r"\['.*'\] does not change"),
        (half, r"the update is .*; the loss is [\d.]+ and should be"),
        (half_when_timed, "the update is "),
        (cached_loss, r"the loss is [\d.]+, exactly that of step \d+, and should be [\d.]+"),
        (longer, r"the update is about 1\.2[45] times what it should be"),
        (delayed, "the update is "),
        (reused, "the update is "),
        (in_a_thread, "the optimizer.s .*count goes|the parameters do not change|left out"),
        (with_a_counter, TWICE),
        (reset_moments, "the update is "),
    ],
)
def test_a_step_that_goes_wrong_later_is_named(gate, mesh, problem, change, diagnosis):
    why, _ = checked(gate, changed(change)(problem, mesh), problem)
    assert re.search(diagnosis, why), why
    assert re.match(r"steps \d+ to \d+, (in round \d|after the last round): ", why)


@pytest.mark.parametrize(
    ("change", "diagnosis"),
    [
        (partial(frozen, every=2), "the optimizer.s .*count goes from"),
        (counted_but_frozen, "the parameters do not change"),
        (dodging, "the parameters do not change"),
        (half, r"the update is .*; the loss is [\d.]+ and should be"),
        (cached_loss, r"the loss is [\d.]+, exactly that of step \d+, and should be [\d.]+"),
        (longer, r"the update is about 1\.2[45] times what it should be"),
    ],
)
def test_a_short_turn_is_checked_as_a_whole(gate, mesh, problem, change, diagnosis):
    built = changed(change)(problem, mesh)
    why, _ = checked(gate, built, problem, steps=1)
    assert re.search(diagnosis, why), why


def test_a_step_whose_work_is_done_when_its_parameters_are_read_is_wrong(gate, mesh, problem):
    right = jit_spmd.build(problem, mesh)
    owed: list[Any] = []

    def step(state, batch):
        owed.append(batch)
        return state, jnp.float32(1.0)

    def params(state):
        while owed:
            state[0], _ = right.step(state[0], owed.pop())
        return right.params(state[0])

    built = replace(right, state=[right.state], step=step, params=params, model_state=None)
    with pytest.raises(WrongStepError, match="`params` changes the state"):
        checked(gate, built, problem)


def told_by_params(right, problem, mesh, *, rearranged):
    """Right for some steps after each call of `params` alone, with the counter raised otherwise."""
    since = [-(1 << 60)]  # right until the rounds
    copy = jax.jit(lambda tree: jax.tree.map(jnp.copy, tree))

    def step(state, batch):
        since[0] += 1
        old = copy(state[0])
        (params, *others), loss = right.step(state, batch)
        return (params if since[0] <= 8 else old, *others), loss

    def params(state):
        since[0] = 0
        return copy(state[0]) if rearranged else right.params(state)

    return replace(right, step=step, params=params)


def larger_from(first):
    """A step whose updates are a little too large from a call on."""

    def change(step, copy, problem, mesh):
        def run(call, state, batch):
            old = copy(state[0])
            (new, *others), loss = step(state, batch)
            factor = 1.003 if call >= first else 1.0
            return (jax.tree.map(lambda a, b: b + factor * (a - b), new, old), *others), loss

        return run

    return changed(change)


def test_what_only_the_last_check_finds_is_checked_again(gate, mesh, problem, monkeypatch):
    monkeypatch.setattr("bench.worker.prove.spot_checks.is_late", lambda: False)
    right, calls = jit_spmd.build(problem, mesh), itertools.count()

    def counted(state, batch):
        next(calls)
        return right.step(state, batch)

    assert checked(gate, replace(right, step=counted), problem, rounds=1, last=True)[0] == ""
    built = larger_from(next(calls) - 2)(problem, mesh)
    why, _ = checked(gate, built, problem, rounds=1, last=True)
    assert "after the last round: the update is " in why


@pytest.mark.parametrize("rearranged", [False, True])
def test_a_check_is_not_announced_by_a_call_of_params(gate, mesh, problem, rearranged):
    built = told_by_params(jit_spmd.build(problem, mesh), problem, mesh, rearranged=rearranged)
    why, _ = checked(gate, built, problem, steps=20)
    assert "the parameters do not change" in why


def test_moments_that_are_made_anew_in_a_spans_last_step_are_found(gate, mesh, problem):
    """They spoil no update of the span, and the next one begins without them."""

    def made_anew(right, copy, problem, mesh):
        def step(call, state, batch):
            (params, opt_state, *others), loss = right(state, batch)
            if call > AFTER and call % 5 == 1:
                opt_state = jax.tree.map(lambda x: 0 * x if x.ndim else x, opt_state)
            return (params, opt_state, *others), loss

        return step

    why, _ = checked(gate, changed(made_anew)(problem, mesh), problem)
    assert "the optimizer's [0].mu" in why, why
    assert "do not follow from the steps" in why


def test_counters_are_read_as_they_were_before_later_steps(gate, mesh, problem):
    """A check may be the first of its turn, and `params` is called only after the round."""
    right = jit_spmd.build(problem, mesh)

    def params(state):
        return jax.tree.map(jnp.copy, state[0])

    built = replace(right, params=params, held=lambda state: state[0])
    reader, batch = StateReader(built, problem, built.state), built.place(problem.batch(0))
    assert not reader.is_plain
    before = pending(gate, reader, built.state)
    state, _ = built.step(built.state, batch)
    after = pending(gate, reader, state)
    built.step(state, batch)
    for read, count in ((before, 0), (after, 1)):
        assert set(counters(read()[0].opt_state).values()) == {count}


def test_a_check_leaves_no_trace_on_the_arrays_of_a_state(gate, mesh, problem):
    """jax keeps what was read of an array beside it."""
    right, read = jit_spmd.build(problem, mesh), []

    def step(state, batch):
        read.extend(leaf._npy_value is not None for leaf in jax.tree.leaves(state))
        return right.step(state, batch)

    assert checked(gate, replace(right, step=step), problem, steps=20)[0] == ""
    assert read
    assert not any(read)


@pytest.mark.parametrize(("following", "fails"), [("o!", True), ("oo!", True), ("ooo!", False)])
def test_a_suspicion_outlives_some_clean_checks(gate, mesh, problem, monkeypatch, following, fails):
    """Each check of `following` is suspicious (!) or clean (o), after one that is suspicious."""
    verdicts = iter("!" + following)

    class Found:
        is_within_wide = True

        def __init__(self, *_):
            self.is_right = next(verdicts) == "o"
            self.check = {"update_error": 1.0}

        def why(self, *_):
            return "wrong"

    monkeypatch.setattr(spot_checks, "Comparison", Found)
    why, _ = checked(gate, jit_spmd.build(problem, mesh), problem, len(following), seconds=1e-9)
    assert ("wrong" in why) == fails


def test_updates_that_a_counter_hides_are_counted_between_two_checks(gate, mesh, problem):
    """One update of three, where a state with moments is kept for the reference to repeat."""
    built = changed(counting)(problem, mesh)
    adam, *others = built.state[1]
    late = jax.device_put(jnp.full_like(adam.count, 20_000), adam.count.sharding)
    state = built.state[0], (adam._replace(count=late), *others), built.state[2]
    built = replace(built, state=state)
    why, _ = checked(gate, built, problem, rounds=8, seconds=600.0, steps=8)
    assert re.search(r"\d of the \d+ updates before are missing: the step skips updates", why), why


def test_a_program_that_counts_to_50_turns_wrong_in_the_midst_of_the_rounds(gate, mesh, problem):
    change = partial(with_a_counter, after=50)
    why, check = checked(gate, changed(change)(problem, mesh), problem, rounds=16, steps=2)
    assert re.search(TWICE, why), why
    assert int(re.match(r"steps \d+ to (\d+), ", why)[1]) > 50
    assert check["update_error"] < check["update_tolerance"], "the check in round 1 has passed"


def test_what_a_check_needs_is_traced_before_the_rounds(mesh, programs, problem, monkeypatch):
    own = replace(problem, optimizer=optax.adamw(1e-3))
    with jax.enable_x64(True):
        exact = replace(mlp.problem(mlp.SIZES["tiny"](), 8, "fp64"), optimizer=own.optimizer)
    gate = Gate(own, exact, mesh, 2, "fp32", programs)
    gate.expected(AS_TIMED)
    traced: list[str] = []

    def eval_shape(*args):
        traced.append("a layout")
        return shapes_of(*args)

    def note(event, _seconds, **_more):
        if "trace_duration" in event or "backend_compile" in event:
            traced.append(event)

    shapes_of = jax.eval_shape
    built = jit_spmd.build(own, mesh)
    arm = Arm("right", built.step, built.state, built.place(own.batch(0)), train_step=built)
    arm.run(AFTER)
    checks = SpotChecks(gate, 3, 1.0)
    checks.begin([arm], lambda _: None)
    span = checks.checked_span(arm, 0, 6)
    steps = divided_gradients._sum, divided_gradients._divide, apply_update
    known = [step._cache_size() for step in steps]
    monkeypatch.setattr(jax, "eval_shape", eval_shape)
    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        with span.check:
            arm.run(span.steps)
        checks.verify(lambda _: None)
    finally:
        jax.monitoring.unregister_event_duration_listener(note)
    assert checks.reasons == {}
    assert checks._planned
    assert traced == []
    assert [step._cache_size() for step in steps] == known


def test_replicas_that_drift_later_are_named(gate, mesh, problem):
    def local(state, batch, alone):
        params, opt_state, model_state = state
        loss, own = jax.value_and_grad(problem.loss_function())(params, batch)
        mean = jax.lax.pmean(loss, "data")
        grads = jax.tree.map(lambda g: jnp.where(alone, g, jax.lax.pmean(g, "data")), own)
        updates, opt_state = problem.optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state, model_state), mean

    specs = P(), P("data"), P()
    run = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=False))
    calls = itertools.count()
    right = jit_spmd.build(problem, mesh)
    built = replace(
        right, step=lambda state, batch: run(state, batch, jnp.bool_(next(calls) >= AFTER))
    )
    assert "replicas drift" in checked(gate, built, problem)[0]


@pytest.mark.parametrize("implementation", [jit_spmd, nnx_jit_cached, pmap, python_loop, zero1])
def test_right_steps_pass(gate, mesh, problem, implementation):
    why, check = checked(gate, implementation.build(problem, mesh), problem)
    assert why == ""
    assert (check is None) == (implementation is pmap)  # whose optimizer state is not found
    assert check is None or check["update_error"] < check["update_tolerance"] / 10


def with_key(right, problem, mesh):
    key = jax.device_put(jax.random.key(0), NamedSharding(mesh, P()))

    def step(state, batch):
        inner, loss = right.step(state[1], batch)
        return (jax.random.split(state[0])[0], inner), loss

    return replace(
        right, state=(key, right.state), step=step, params=lambda state: right.params(state[1])
    )


def with_numbers(right, problem, mesh):
    def step(state, batch):
        inner, loss = right.step(state["inner"], batch)
        return {**state, "calls": state["calls"] + 1, "inner": inner}, loss

    start = {"calls": 0, "rate": 0.5, "none": None, "flag": np.bool_(True), "inner": right.state}
    return replace(right, state=start, step=step, params=lambda state: right.params(state["inner"]))


def with_a_log(right, problem, mesh):
    history: list[jax.Array] = []

    def step(state, batch):
        state, loss = right.step(state, batch)
        history.append(loss)
        if len(history) % 3 == 0:
            print("loss", float(history[-2]))
        return state, loss

    return replace(right, step=step)


def with_an_average(right, problem, mesh):
    def step(state, batch):
        inner, loss = right.step(state[0], batch)
        average = jax.tree.map(lambda a, p: 0.9 * a + 0.1 * p, state[1], inner[0])
        return (inner, average), loss

    start = right.state, jax.tree.map(jnp.copy, right.state[0])
    return replace(right, state=start, step=step, params=lambda state: right.params(state[0]))


def in_a_plain_dict(right, problem, mesh, average="ema"):
    """Adam whose moments have names of the file's own, and an average of the parameters."""
    layout, leaves = jax.tree.structure(right.state[1]), jax.tree.structure(right.state[0])

    def pack(inner, average_of):
        count, *moments = jax.tree.leaves(inner[1])
        m, v = (leaves.unflatten(each) for each in np.array_split(np.array(moments, object), 2))
        return {"count": count, average: average_of, "m": m, "params": inner[0], "v": v}

    def unpack(state):
        moments = jax.tree.leaves((state["count"], state["m"], state["v"]))
        return state["params"], layout.unflatten(moments), {}

    def step(state, batch):
        inner, loss = right.step(unpack(state), batch)
        new = jax.tree.map(lambda a, p: 0.9 * a + 0.1 * p, state[average], inner[0])
        return pack(inner, new), loss

    start = pack(right.state, jax.tree.map(jnp.copy, right.state[0]))
    return replace(right, state=start, step=step, params=lambda state: state["params"])


def in_one_vector(right, problem, mesh):
    flat, unravel = jax.flatten_util.ravel_pytree(problem.draw())
    loss_fn = problem.loss_function()

    @partial(jax.jit, out_shardings=NamedSharding(mesh, P()))
    def step(state, batch):
        loss, grads = jax.value_and_grad(lambda v, b: loss_fn(unravel(v), b))(state[0], batch)
        updates, opt_state = problem.optimizer.update(grads, state[1], state[0])
        return (optax.apply_updates(state[0], updates), opt_state), loss

    return replace(
        right,
        state=(flat, problem.optimizer.init(flat)),
        step=step,
        params=jax.jit(lambda state: unravel(state[0])),
    )


@pytest.mark.parametrize(
    "unusual",
    [with_key, with_numbers, with_a_log, with_an_average, in_a_plain_dict, in_one_vector],
)
def test_right_but_unusual_steps_pass(gate, mesh, problem, unusual):
    built = unusual(jit_spmd.build(problem, mesh), problem, mesh)
    assert checked(gate, built, problem)[0] == ""


@pytest.mark.parametrize(("average", "is_read"), [("ema", False), ("zeros", True)])
def test_a_guessed_optimizers_state_has_to_explain_a_step(gate, mesh, problem, average, is_read):
    """In the order of names, an average that lies before the moments looks like the first."""
    built = in_a_plain_dict(jit_spmd.build(problem, mesh), problem, mesh, average)
    if is_read:  # parameters that lie between the moments hide them as well
        inner = built

        def outside(state):
            return {name: leaf for name, leaf in state.items() if name != "a"} | {
                "params": state["a"]
            }

        def renamed(state):
            return {"a": state["params"]} | {n: leaf for n, leaf in state.items() if n != "params"}

        def step(state, batch):
            state, loss = inner.step(outside(state), batch)
            return renamed(state), loss

        built = replace(
            inner, state=renamed(inner.state), step=step, params=lambda state: state["a"]
        )
    assert StateReader(built, problem, built.state).guesses
    why, check = checked(gate, built, problem)
    assert why == ""
    assert (check is not None) == is_read


def test_the_optimizers_state_is_found_wherever_it_lies(mesh, problem):
    for implementation in (jit_spmd, nnx_jit_cached, zero1):
        built = implementation.build(problem, mesh)
        state, _ = built.step(built.state, built.place(problem.batch(0)))
        reader = StateReader(built, problem, state)
        held = reader.read(state, reader.parts(state))
        assert [*counters(held.opt_state).values()] == [1]
        wanted = jax.tree.structure(problem.optimizer.init(problem.draw()))
        assert jax.tree.structure(held.opt_state) == wanted


def test_an_average_of_the_parameters_is_not_taken_for_their_momentum(mesh, problem):
    momentum = replace(problem, optimizer=optax.sgd(0.1, momentum=0.9))
    right = jit_spmd.build(momentum, mesh)
    state, _ = right.step(right.state, right.place(problem.batch(0)))
    reader = StateReader(
        replace(right, params=lambda state: state["params"]),
        momentum,
        kept := {"average": jax.tree.map(jnp.copy, state[0]), "o": state[1], "params": state[0]},
    )
    found = reader.read(kept, reader.parts(kept)).opt_state
    jax.tree.map(np.testing.assert_array_equal, found, jax.device_get(state[1]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("implementation", "shape"),
    [(jit_spmd, "data=2"), (pipeline_gpipe, "data=1,pipe=2")],
)
def test_the_state_of_an_optimizer_that_treats_parameters_differently_is_found(
    implementation, shape
):
    """Muon keeps one moment of some parameters, and two of the others."""
    config = gpt2.Config(layers=2, heads=2, width=16, context=16, vocabulary=256)
    problem = replace(gpt2_muon.problem(config, 4, "fp32"), microbatches=2)
    built = implementation.build(problem, make_mesh(MeshShape.parse(shape)))
    state, _ = built.step(built.state, built.place(problem.batch(0)))
    reader = StateReader(built, problem, state)
    held = reader.read(state, reader.parts(state))
    params, loss_fn = problem.functional()

    @jax.jit
    def expected(params, batch):
        grads = jax.grad(loss_fn)(params, batch)
        return problem.optimizer.update(grads, problem.optimizer.init(params), params)[1]

    wanted = expected(params, problem.batch(0))
    assert [*counters(held.opt_state).values()] == [1, 1]
    close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-7)
    jax.tree.map(close, held.opt_state, wanted)


@pytest.mark.parametrize(("cost_s", "between"), [(1e-3, MOST - 2), (SHARE / 3, 1), (1.0, 0)])
def test_checks_between_the_first_and_the_last_follow_from_their_cost(gate, cost_s, between):
    checks = SpotChecks(gate, 32, 1.0)
    checks.chance = random.Random(1)
    watched = type("Watched", (), {"due": []})()
    checks._watched["one"] = watched
    checks._plan(cost_s)
    assert len(watched.due) == between
    assert all(0 < number < 32 for number in watched.due)


def losing(right, copy, problem, mesh):
    """A step whose parameters go the other way, and that returns the losses it would have."""

    def step(call, state, batch):
        if call < AFTER:
            return right(state, batch)
        kept = copy(state)
        moved, loss = right(state, batch)
        away = jax.tree.map(lambda old, new: 30 * old - 29 * new, kept[0], moved[0])
        return (away, *moved[1:]), loss

    return step


def lying(right, copy, problem, mesh):
    def step(call, state, batch):
        state, loss = right(state, batch)
        return state, loss if call < AFTER else loss - 0.5

    return step


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (local_steps.build, ""),
        (compressed_int8.build, ""),
        (changed(frozen), "the optimizer's"),
        (changed(counted_but_frozen), "the parameters do not change in the"),
        (changed(lying), "at the step's own parameters"),
        (changed(losing), "the loss has risen from"),
    ],
)
def test_an_approximate_step_must_move_and_return_its_own_loss(gate, problem, mesh, build, why):
    rounds = STEPS // 2 + 2  # of two steps each, and a wash-out
    reason, _ = checked(gate, build(problem, mesh), problem, rounds, approximate={"planted"})
    assert (why in reason) if why else not reason, reason
