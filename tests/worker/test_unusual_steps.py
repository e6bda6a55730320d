"""Right steps of unusual make are proved, and stay right in the rounds."""

from __future__ import annotations

import collections
import dataclasses
import gc
import itertools
import logging
import queue
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.core import freeze
from jax.experimental import io_callback
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from bench.worker.process_guard import HeldFunctions
from bench.worker.prove.spot_checks import SpotChecks
from bench.worker.prove.trajectory import check_waitable
from bench.worker.read.compilation import CompilationLog
from bench.worker.time.clock import Arm, measure
from implementations import jit_spmd

pytestmark = pytest.mark.slow
ROUNDS = 3


def around(make):
    """An implementation: `make(right step, problem, mesh)` takes the place of its step."""

    def build(problem, mesh):
        right = jit_spmd.build(problem, mesh)
        return replace(right, step=make(right.step, problem, mesh))

    return build


def with_state(wrap, unwrap):
    """An implementation whose state is another one around (parameters, optimizer's state)."""

    def build(problem, mesh):
        right = jit_spmd.build(problem, mesh)

        def step(state, batch):
            inner, loss = right.step(unwrap(state), batch)
            return wrap(inner, state), loss

        return replace(
            right,
            state=wrap(right.state, None),
            step=step,
            params=lambda state: right.params(unwrap(state)),
        )

    return build


def computed(body, **options):
    """An implementation with one jitted function: `body(problem)` gives loss and gradients."""

    def build(problem, mesh):
        right = jit_spmd.build(problem, mesh)
        loss_and_grads = body(problem)

        def step(state, batch):
            params, opt_state, model_state = state
            loss, grads = loss_and_grads(params, batch)
            updates, opt_state = problem.optimizer.update(grads, opt_state, params)
            return (optax.apply_updates(params, updates), opt_state, model_state), loss

        return replace(right, step=jax.jit(step, **options))

    return build


class State(NamedTuple):
    model_state: Any
    opt_state: Any
    params: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Trained:
    params: Any
    opt_state: Any
    model_state: Any
    step: int


class Trainer:
    def __init__(self, step, problem, mesh):
        self.right, self.calls = step, 0

    def __call__(self, state, batch):
        self.calls += 1
        return self.right(state, batch)


def alternating(step, problem, mesh):
    twin, calls = jit_spmd.build(problem, mesh).step, itertools.count()

    def run(state, batch):
        return (twin if next(calls) % 2 else step)(state, batch)

    return run


def compiled_ahead(step, problem, mesh):
    found = []

    def run(state, batch):
        if not found:
            found.append(jax.jit(step).lower(state, batch).compile())
        return found[0](state, batch)

    return run


def in_a_thread(step, problem, mesh):
    pool = ThreadPoolExecutor(1)
    return lambda state, batch: pool.submit(step, state, batch).result()


def logged_by_a_thread(step, problem, mesh):
    losses: queue.Queue[Any] = queue.Queue()
    written: collections.deque[float] = collections.deque(maxlen=10)

    def log():
        while True:
            written.append(float(losses.get()))

    threading.Thread(target=log, daemon=True).start()

    def run(state, batch):
        state, loss = step(state, batch)
        losses.put(loss)
        return state, loss

    return run


def with_garbage(step, problem, mesh):
    def run(state, batch):
        cycle: list[Any] = [batch]
        cycle.append(cycle)
        gc.collect(0)
        return step(state, batch)

    return run


def with_logging(step, problem, mesh):
    def run(state, batch):
        state, loss = step(state, batch)
        logging.getLogger("step").debug("loss %s", loss)
        return state, loss

    return run


def remat(problem):
    return jax.value_and_grad(jax.checkpoint(problem.loss_function()))


def two_passes(problem):
    """The loss by one program, and its gradients by another."""
    loss_fn = problem.loss_function()
    return lambda params, batch: (loss_fn(params, batch), jax.grad(loss_fn)(params, batch))


def by_vjp(problem):
    def run(params, batch):
        loss, back = jax.vjp(lambda p: problem.loss_function()(p, batch), params)
        return loss, back(jnp.ones_like(loss))[0]

    return run


def in_a_loop(problem):
    """One turn of a scan."""

    def run(params, batch):
        def body(_, one):
            return None, jax.value_and_grad(problem.loss_function())(params, one)

        _, found = jax.lax.scan(body, None, jax.tree.map(lambda x: x[None], batch))
        return jax.tree.map(lambda x: x[0], found)

    return run


def in_two_parts(problem):
    """The mean over halves, each with rows of both devices."""

    def run(params, batch):
        halves = jax.tree.map(lambda x: x.reshape(-1, 2, *x.shape[1:]).swapaxes(0, 1), batch)
        step = jax.value_and_grad(problem.loss_function())
        both = [step(params, jax.tree.map(lambda x, i=i: x[i], halves)) for i in (0, 1)]
        return jax.tree.map(lambda a, b: (a + b) / 2, *both)

    return run


def counted_on_the_host(problem):
    seen: list[int] = []

    def run(params, batch):
        loss, grads = jax.value_and_grad(problem.loss_function())(params, batch)
        jax.debug.callback(lambda loss: seen.append(1), loss)
        return loss, grads

    return run


def with_an_answer_from_the_host(problem):
    def run(params, batch):
        loss, grads = jax.value_and_grad(problem.loss_function())(params, batch)
        zero = io_callback(lambda: np.float32(0.0), jax.ShapeDtypeStruct((), jnp.float32))
        return loss + zero.astype(loss.dtype), grads

    return run


def metric(step, problem, mesh):
    """A norm that nobody asked for, computed in every step."""
    norm = jax.jit(
        lambda tree: sum(jnp.vdot(x, x) for x in jax.tree.leaves(tree)),
        out_shardings=NamedSharding(mesh, P()),
    )
    norms: collections.deque[jax.Array] = collections.deque(maxlen=4)

    def run(state, batch):
        state, loss = step(state, batch)
        norms.append(norm(state[0]))
        return state, loss

    return run


def in_a_frozen_dict(problem, mesh):
    """Parameters as older programs with flax have them."""
    right = jit_spmd.build(problem, mesh)
    return replace(right, params=lambda state: freeze(state[0]))


def in_a_list(problem, mesh):
    """Parameters without names, after the optimizer's state: `params` names them again."""
    right = jit_spmd.build(problem, mesh)
    tree = jax.tree.structure(right.state[0])

    def unwrap(state):
        return jax.tree.unflatten(tree, state[1:]), state[0], {}

    def step(state, batch):
        (params, opt_state, _), loss = right.step(unwrap(state), batch)
        return [opt_state, *jax.tree.leaves(params)], loss

    return replace(
        right,
        state=[right.state[1], *jax.tree.leaves(right.state[0])],
        step=step,
        params=lambda state: right.params(unwrap(state)),
    )


UNUSUAL = {
    "a class with a call": around(Trainer),
    "a partial": around(lambda step, *_: partial(step)),
    "two programs in turn": around(alternating),
    "compiled ahead of time": around(compiled_ahead),
    "in a thread": around(in_a_thread),
    "a thread that logs": around(logged_by_a_thread),
    "garbage in cycles": around(with_garbage),
    "logging": around(with_logging),
    "a metric beside": around(metric),
    "a list of leaves": in_a_list,
    "parameters in another mapping": in_a_frozen_dict,
    "a NamedTuple": with_state(
        lambda inner, _: State(*reversed(inner)), lambda state: tuple(reversed(state))
    ),
    "a dataclass with a count": with_state(
        lambda inner, old: Trained(*inner, 0 if old is None else old.step + 1),
        lambda state: (state.params, state.opt_state, state.model_state),
    ),
    "a name": with_state(lambda inner, _: ("run", *inner), lambda state: state[1:]),
    "remat": computed(remat),
    "donated": computed(remat, donate_argnums=0),
    "two passes": computed(two_passes),
    "a vjp": computed(by_vjp),
    "a loop of one turn": computed(in_a_loop),
    "two parts": computed(in_two_parts),
    "a callback": computed(counted_on_the_host),
    "an answer from the host": computed(with_an_answer_from_the_host),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_a_right_step_of_unusual_make_stays_ok(gate, mesh, name):
    def build(problem=gate.timed):
        return UNUSUAL[name](problem, mesh)

    functions = HeldFunctions()
    gate.prove_exact(type("Implementation", (), {"build": staticmethod(UNUSUAL[name])}))
    built = build()
    gate.prove_timed(built, build)
    built = build()
    arm = Arm(name, built.step, built.state, built.place(gate.timed.batch(0)), train_step=built)
    arm.run(4)
    check_waitable(arm.state, arm.losses[-1][1])
    checks = SpotChecks(gate, ROUNDS, 1.0)
    checks.chance = random.Random(1)
    checks.begin([arm], lambda _: None)

    def after_round(turns):
        checks.verify(lambda _: None)
        return [] if turns[-1]["round"] + 1 == ROUNDS else None

    with CompilationLog() as log:
        _, compiled = measure([arm], 2, 0, log, after_round, checked_span=checks.checked_span)
    checks.finish([], lambda _: None)
    assert checks.reasons == {}
    assert compiled == {}
    assert functions.put_back() == {}
