"""Mistakes beyond a wrong reduction: each is refused, and named where a known mistake makes it."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import optax
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from bench.contract import TrainStep
from bench.contract.placement import (
    create_data_parallel_sharding,
    place_batch_on_shards,
    place_model_state_on_shards,
)
from bench.worker.prove.failures import WrongStepError
from bench.worker.prove.gate import STEPS
from bench.worker.prove.trajectory import check_placed, check_waitable
from implementations import jit_spmd
from tests.slow import slow


def stateful(problem):
    return bool(jax.tree.leaves(jax.eval_shape(problem.optimizer.init, problem.draw())))


def made(*, grads=None, batch=None, updated=None, loss=None, params=None, extra=lambda params: 0):
    """A step whose parts are replaced by others, and whose state has something `extra`."""

    def build(problem, mesh):
        start, loss_fn = problem.functional()
        replicated = NamedSharding(mesh, P())
        sharding = create_data_parallel_sharding(mesh)

        @partial(jax.jit, donate_argnums=0, out_shardings=replicated)
        def step(state, given):
            old, opt_state, kept = state
            given = given if batch is None else batch(given)
            now, found = jax.value_and_grad(loss_fn)(old, given)
            found = found if grads is None else grads(found, old)
            apply = updated or (lambda problem, *given: problem.optimizer.update(*given))
            updates, opt_state = apply(problem, found, opt_state, old)
            new = optax.apply_updates(old, updates)
            state = new, opt_state, kept
            return (state, now) if loss is None else loss(state, old, now, loss_fn, given)

        state = start, problem.optimizer.init(start), extra(start)
        return TrainStep(
            state=place_model_state_on_shards(state, mesh),
            place=partial(place_batch_on_shards, sharding=sharding),
            step=step,
            params=params or (lambda state: state[0]),
        )

    return type("Implementation", (), {"build": staticmethod(build)})


def made_with(body):
    """A step with gradients by `body(loss_fn, params, kept, count, batch)`; kept is 0 at first.

    `body` returns the loss, the gradients and what it keeps, a tree like the parameters.
    """

    def build(problem, mesh):
        right, loss_fn = jit_spmd.build(problem, mesh), problem.loss_function()

        @partial(jax.jit, out_shardings=NamedSharding(mesh, P()))
        def step(state, batch):
            params, opt_state, (kept, count) = state
            loss, grads, kept = body(loss_fn, params, kept, count, batch)
            updates, opt_state = problem.optimizer.update(grads, opt_state, params)
            return (optax.apply_updates(params, updates), opt_state, (kept, count + 1)), loss

        extra = jax.tree.map(jnp.zeros_like, right.state[0]), jnp.zeros((), jnp.int32)
        return replace(right, state=(*right.state[:2], extra), step=step)

    return type("Implementation", (), {"build": staticmethod(build)})


def averaging(rule):
    def body(loss_fn, params, kept, count, batch):
        loss, grads = jax.value_and_grad(loss_fn)(params, batch)
        kept = jax.tree.map(lambda old, new: rule(old, new, count), kept, grads)
        return loss, kept, kept

    return body


def at_old_parameters(loss_fn, params, kept, count, batch):
    old = jax.tree.map(lambda own, last: jnp.where(count == 0, own, last), params, kept)
    return *jax.value_and_grad(loss_fn)(old, batch), params


def every_second(loss_fn, params, kept, count, batch):
    loss, grads = jax.value_and_grad(loss_fn)(params, batch)
    both, is_due = jax.tree.map(lambda old, new: old + new / 2, kept, grads), count % 2
    return loss, *(jax.tree.map(lambda x, by=by: by * x, both) for by in (is_due, 1 - is_due))


def in_float32(loss_fn, params, kept, count, batch):
    """Add gradients to zeros in float32, as optax.MultiSteps does unless it is told otherwise."""
    loss, grads = jax.value_and_grad(loss_fn)(params, batch)
    kept = jax.tree.map(lambda x: x.astype(jnp.float32), grads)
    return loss, jax.tree.map(lambda x, own: x.astype(own.dtype), kept, params), kept


def augmented(loss_fn, params, kept, count, batch):
    noise = jax.random.normal(jax.random.fold_in(jax.random.key(0), count), batch[0].shape, "f4")
    return *jax.value_and_grad(loss_fn)(params, (batch[0] + 0.1 * noise, batch[1])), kept


def rounded(leaf):
    return leaf.astype(jnp.bfloat16).astype(leaf.dtype)


def with_rounded_parameters(loss_fn, params, kept, count, batch):
    def loss_of(params):
        return loss_fn(jax.tree.map(rounded, params), batch)

    return *jax.value_and_grad(loss_of)(params), kept


def average_loss(state, old, now, loss_fn, batch):
    loss = 0.9 * state[2] + 0.1 * now
    return (*state[:2], loss), loss


def proved(gate, mesh, implementation):
    def build():
        return implementation.build(gate.timed, mesh)

    gate.prove_exact(implementation)
    gate.prove_rounding(implementation)
    gate.prove_timed(build(), build)


def first_gradient_missing(grads, _):
    first, *_ = jax.tree.leaves(grads)
    return jax.tree.map(lambda leaf: jnp.zeros_like(leaf) if leaf is first else leaf, grads)


def doubled_biases(grads, _):
    return jax.tree.map(lambda leaf: 2 * leaf if leaf.ndim == 1 else leaf, grads)


def with_l2(grads, params):
    return jax.tree.map(lambda grad, leaf: grad + 1e-3 * leaf, grads, params)


def with_l1(grads, params):
    return jax.tree.map(lambda grad, leaf: grad + 1e-3 * jnp.sign(leaf), grads, params)


def shifted_labels(batch):
    return batch[0], jnp.roll(batch[1], 1, 0)


def by_another(optimizer):
    """The workload's optimizer is replaced, but SGD is not."""

    def updated(problem, grads, opt_state, params):
        used = optimizer if stateful(problem) else problem.optimizer
        return used.update(grads, opt_state, params)

    return updated


def scaled_updates(problem, grads, opt_state, params):
    updates, opt_state = problem.optimizer.update(grads, opt_state, params)
    factor = 0.75 if stateful(problem) else 1.0
    return jax.tree.map(lambda leaf: factor * leaf, updates), opt_state


def without_decay_of_biases(problem, grads, opt_state, params):
    """They are 0 at first, so that the first update is right."""
    updates, new_state = problem.optimizer.update(grads, opt_state, params)
    if stateful(problem):
        none = optax.adamw(1e-3, weight_decay=0.0).update(grads, opt_state, params)[0]
        updates = jax.tree.map(lambda a, b: b if a.ndim == 1 else a, updates, none)
    return updates, new_state


def hardcoded(problem, mesh):
    return jit_spmd.build(replace(problem, optimizer=optax.adamw(1e-3)), mesh)


def averaged(state, old, now, loss_fn, batch):
    new, opt_state, kept = state
    kept = jax.tree.map(lambda a, p: 0.5 * a + 0.5 * p, kept, new)
    return (new, opt_state, kept), now


def late_params(state, old, now, loss_fn, batch):
    return (*state[:2], old), now


def late_loss(state, old, now, loss_fn, batch):
    return (*state[:2], now), jnp.where(state[2] == 0, now, state[2])


def loss_after(state, old, now, loss_fn, batch):
    return state, loss_fn(state[0], batch)


def stale(state, old, now, loss_fn, batch):
    """The gradients of the step before are applied, at first zeros."""
    (new, opt_state, kept) = state
    update = jax.tree.map(jnp.subtract, new, old)
    return (jax.tree.map(jnp.add, old, kept), opt_state, update), now


def skipping(state, old, now, loss_fn, batch):
    """The second of three updates is left out."""
    new, opt_state, count = state
    new = jax.tree.map(lambda a, b: jnp.where(count == 1, b, a), new, old)
    return (new, opt_state, count + 1), now


def warmed(state, old, now, loss_fn, batch, rate=lambda count: (count + 1) / 2):
    new, opt_state, count = state
    by = jnp.minimum(1.0, rate(count))
    new = jax.tree.map(lambda a, b: b + by * (a - b), new, old)
    return (new, opt_state, count + 1), now


def decaying(state, old, now, loss_fn, batch):
    new, opt_state, count = state
    new = jax.tree.map(lambda a, b: b + 0.9**count * (a - b), new, old)
    return (new, opt_state, count + 1), now


def mean_loss(state, old, now, loss_fn, batch):
    new, opt_state, (count, total) = state
    return (new, opt_state, (count + 1, total + now)), (total + now) / (count + 1)


def noisy(grads, _):
    leaves, tree = jax.tree.flatten(grads)
    keys = jax.random.split(jax.random.key(0), len(leaves))
    size = 1e-2 * jnp.std(jnp.concatenate([leaf.ravel() for leaf in leaves]))
    noise = [
        jax.random.normal(key, x.shape, jnp.float32) for key, x in zip(keys, leaves, strict=True)
    ]
    return jax.tree.map(lambda x, each: x + size * each, grads, tree.unflatten(noise))


def summed(problem, mesh):
    """Gradients are added to those of the steps before."""
    right, loss_fn = jit_spmd.build(problem, mesh), problem.loss_function()

    @partial(jax.jit, out_shardings=NamedSharding(mesh, P()))
    def step(state, batch):
        params, opt_state, kept = state
        loss, grads = jax.value_and_grad(loss_fn)(params, batch)
        kept = jax.tree.map(jnp.add, grads, kept)
        updates, opt_state = problem.optimizer.update(kept, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state, kept), loss

    zeros = jax.tree.map(jnp.zeros_like, right.state[0])
    return replace(right, state=(*right.state[:2], zeros), step=step, params=lambda state: state[0])


def in_bfloat16(problem, mesh):
    """The parameters in the state are bfloat16."""
    right = jit_spmd.build(problem, mesh)

    def cast(state, dtype):
        return jax.tree.map(lambda leaf: leaf.astype(dtype), state[0]), *state[1:]

    own = jax.tree.leaves(right.state[0])[0].dtype

    @jax.jit
    def step(state, batch):
        state, loss = right.step(cast(state, own), batch)
        return cast(state, jnp.bfloat16), loss

    return replace(right, state=cast(right.state, jnp.bfloat16), step=step)


def decayed_again(state, old, now, loss_fn, batch):
    new, *others = state
    return (jax.tree.map(lambda leaf: leaf * (1 - 1e-6), new), *others), now


def rounded_to(dtype):
    return lambda grads, _: jax.tree.map(lambda x: x.astype(dtype).astype(x.dtype), grads)


def sharded(reduced):
    """A step by jax.shard_map with gradients that are reduced as told."""

    def build(problem, mesh):
        right = jit_spmd.build(problem, mesh)
        loss_fn, whole = problem.loss_function(), P()

        @jax.jit
        @partial(
            jax.shard_map, mesh=mesh, in_specs=(whole, P("data")), out_specs=whole, check_vma=False
        )
        def step(state, batch):
            loss, grads = jax.value_and_grad(loss_fn)(state[0], batch)
            updates, opt_state = problem.optimizer.update(reduced(grads), state[1], state[0])
            new = optax.apply_updates(state[0], updates)
            return (new, opt_state, state[2]), jax.lax.pmean(loss, "data")

        return replace(right, step=step)

    return type("Implementation", (), {"build": staticmethod(build)})


def biases_of_one_shard(grads):
    first = jax.lax.axis_index("data") == 0
    own = jax.lax.psum(jax.tree.map(lambda x: jnp.where(first, x, 0), grads), "data")
    mean = jax.lax.pmean(grads, "data")
    return jax.tree.map(lambda a, b: a if a.ndim == 1 else b, own, mean)


def clipped_before(grads):
    clipped, _ = optax.clip_by_global_norm(0.1).update(grads, optax.EmptyState())
    return jax.lax.pmean(clipped, "data")


def last_row_twice(batch):
    return jax.tree.map(lambda x: jnp.concatenate([x[:7], x[6:7]]), batch)


def first_loss(state, old, now, loss_fn, batch):
    new, opt_state, (count, first) = state
    loss = jnp.where(count == 0, now, first)
    return (new, opt_state, (count + 1, loss)), loss


def cached_loss(state, old, now, loss_fn, batch):
    new, opt_state, (count, last) = state
    loss = jnp.where(count % 2 == 0, now, last)
    return (new, opt_state, (count + 1, loss)), loss


def keeping_the_batch(problem, mesh):
    right, kept = jit_spmd.build(problem, mesh), []

    def place(batch):
        kept.append(right.place(batch))
        return kept[0]

    return replace(right, place=place)


def at_the_start(problem, mesh):
    """The function that is differentiated has closed over the initial parameters."""
    right, (start, loss_fn) = jit_spmd.build(problem, mesh), problem.functional()

    @partial(jax.jit, out_shardings=NamedSharding(mesh, P()))
    def step(state, batch):
        loss, grads = jax.value_and_grad(loss_fn)(start, batch)
        updates, opt_state = problem.optimizer.update(grads, state[1], state[0])
        return (optax.apply_updates(state[0], updates), opt_state, state[2]), loss

    return replace(right, step=step)


def of_other_parameters(problem, mesh):
    """Begin at other parameters than the problem's; all steps from there are right."""
    right = jit_spmd.build(problem, mesh)
    params = jax.tree.map(lambda leaf: 1.001 * leaf, right.state[0])
    return replace(right, state=(params, *right.state[1:]))


def of_copy(params):
    return jax.tree.map(jnp.copy, params)


def kept(state):
    return state[2]


def updates_in_place_of_parameters(problem, grads, opt_state, params):
    """Forget optax.apply_updates: adding the result to the parameters gives the updates."""
    updates, opt_state = problem.optimizer.update(grads, opt_state, params)
    return jax.tree.map(jnp.subtract, updates, params), opt_state


MISTAKES = {
    "frozen": (
        made(grads=first_gradient_missing),
        r"update of \['layers'\]\S+ is missing: it does not change, and that of",
    ),
    "biases": (made(grads=doubled_biases), r"bias'\].* is 2 times what it should be, and that of"),
    "L2": (made(grads=with_l2), "off by -1e-05 times the parameters: .* or an L2 penalty is added"),
    "not applied": (
        made(updated=updates_in_place_of_parameters),
        r"kernel'\] replaces the parameters, to which it should be added, and that of the other 3",
    ),
    "no decay": (
        made(updated=by_another(optax.adamw(1e-3, weight_decay=0.0))),
        "the first update of .* is off by 1e-07 times the parameters: a weight decay is left out",
    ),
    "no decay of biases": (
        made(updated=without_decay_of_biases),
        r"its first step is right, and later updates of \['layers'\]\[0\]\['bias'\], .* are not",
    ),
    "scaled": (
        made(updated=scaled_updates),
        "the updates of the first steps are 0.75, 0.75, 0.75 times what they should be",
    ),
    "b2": (
        made(updated=by_another(optax.adamw(1e-3, b2=0.95))),
        "the optimizer is not applied as given: its first step is right, a later one not",
    ),
    "another optimizer": (
        type("Implementation", (), {"build": staticmethod(hardcoded)}),
        "the step does not use problem.optimizer",
    ),
    "average": (
        made(loss=averaged, extra=of_copy, params=kept),
        "the first update is 0.5 times what it should be, and later ones are not",
    ),
    "late parameters": (
        made(loss=late_params, extra=of_copy, params=kept),
        "`params` returns the parameters of the step before",
    ),
    "late loss": (
        made(loss=late_loss, extra=lambda _: jnp.zeros(())),
        "the loss is that of the step before",
    ),
    "stale": (
        made(loss=stale, extra=lambda params: jax.tree.map(jnp.zeros_like, params)),
        "the gradients are those of the step before",
    ),
    "skipping": (
        made(loss=skipping, extra=lambda _: jnp.zeros((), jnp.int32)),
        "the updates of the first steps are 1, 0, 1 times what they should be",
    ),
    "warm-up": (
        made(loss=warmed, extra=lambda _: jnp.zeros((), jnp.int32)),
        "the updates of the first steps are 0.5, 1, 1 times what they should be",
    ),
    "warm-up from 0": (
        made(
            loss=partial(warmed, rate=lambda count: count / 100),
            extra=lambda _: jnp.zeros((), jnp.int32),
        ),
        "the updates of the first steps are 0, 0.01, 0.02 times what they should be",
    ),
    "decaying": (
        made(loss=decaying, extra=lambda _: jnp.zeros((), jnp.int32)),
        "the updates of the first steps are 1, 0.9, 0.81 times what they should be",
    ),
    "summed": (
        type("Implementation", (), {"build": staticmethod(summed)}),
        "the gradients of all steps so far are summed",
    ),
    "parameters in bfloat16": (
        type("Implementation", (), {"build": staticmethod(in_bfloat16)}),
        r"parameters are in narrower dtypes than their own: \['layers'\]",
    ),
    "a second decay": (made(loss=decayed_again), "is off by -1e-06 times the parameters"),
    "bfloat16": (made(grads=rounded_to("bfloat16")), "the gradients are rounded to bfloat16"),
    "first loss": (
        made(loss=first_loss, extra=lambda _: (jnp.zeros((), jnp.int32), jnp.zeros(()))),
        "the loss is that of the first step",
    ),
    "a loss of every second step": (
        made(loss=cached_loss, extra=lambda _: (jnp.zeros((), jnp.int32), jnp.zeros(()))),
        "^the losses are wrong, and the updates are right",
    ),
    "first batch": (
        type("Implementation", (), {"build": staticmethod(keeping_the_batch)}),
        "every step takes the first batch",
    ),
    "other parameters": (
        type("Implementation", (), {"build": staticmethod(of_other_parameters)}),
        r"^the initial parameters are not those of the problem, in \['",
    ),
    "at the start": (
        type("Implementation", (), {"build": staticmethod(at_the_start)}),
        "the gradients are those of the initial parameters",
    ),
    "delayed parameters": (
        made_with(at_old_parameters),
        "the gradients are those of the parameters before the last update",
    ),
    "an accumulator in float32": (
        made_with(in_float32),
        r"; here, the state's \[2\]\[0\]\['layers'\]\[0\]\['bias'\] is float32\)",
    ),
    "two steps": (
        made_with(every_second),
        "the gradients of every two steps are averaged for one update",
    ),
    "summed rows": (
        made(grads=lambda grads, _: jax.tree.map(lambda x: 8 * x, grads)),
        "8 times what they should be, as if they were summed over the rows and not divided",
    ),
    "loss after": (made(loss=loss_after), "the loss is that of the parameters after the update"),
}


UNNAMED = {
    "a row twice": made(batch=last_row_twice),
    "rows left out": made(
        batch=lambda batch: jax.tree.map(lambda x: x[:6], batch),
        grads=lambda grads, _: jax.tree.map(lambda x: 0.75 * x, grads),
    ),
    "unreduced biases": sharded(biases_of_one_shard),
    "clipped shards": sharded(clipped_before),
    "augmented": made_with(augmented),
    "momentum": made_with(averaging(lambda kept, grads, count: 0.8 * kept + grads)),
    "average from the first": made_with(
        averaging(lambda kept, grads, n: jnp.where(n == 0, grads, 0.7 * kept + 0.3 * grads))
    ),
    "average loss": made(loss=average_loss, extra=lambda _: jnp.zeros(())),
    "mean loss": made(loss=mean_loss, extra=lambda _: (jnp.zeros((), jnp.int32), jnp.zeros(()))),
    "labels": made(batch=shifted_labels),
    "rounded inputs": made(batch=lambda batch: (rounded(batch[0]), batch[1])),
    "rounded parameters": made_with(with_rounded_parameters),
    "noise": made(grads=noisy),
    "each clipped": made(grads=lambda grads, _: jax.tree.map(lambda x: x.clip(-1e-2, 1e-2), grads)),
    "each clipped by its norm": made(
        grads=lambda grads, _: jax.tree.map(
            lambda x: x * jnp.minimum(1, 0.05 / jnp.linalg.norm(x)), grads
        )
    ),
    "L1": made(grads=with_l1),
    "largest": sharded(lambda grads: jax.lax.pmax(grads, "data")),
}


@pytest.mark.parametrize("name", UNNAMED)
def test_a_mistake_without_a_name_is_refused(gate, name):
    with pytest.raises(WrongStepError, match=r"\(fp64 sgd: relative error of the loss") as caught:
        gate.prove_exact(UNNAMED[name])
    # The rest is too far off to be accepted as approximate, or returns another loss.
    near = name in ("noise", "L1", "rounded inputs")
    assert ("it can declare `approximate`" in str(caught.value)) == near, caught.value


SLOW_TO_NAME = ("scaled", "no decay of biases")


@pytest.mark.parametrize(
    "name", [*slow(*SLOW_TO_NAME), *(name for name in MISTAKES if name not in SLOW_TO_NAME)]
)
def test_a_mistake_is_named(gate, name):
    implementation, diagnosis = MISTAKES[name]
    with pytest.raises(WrongStepError) as caught:
        gate.prove_exact(implementation)
    assert re.search(diagnosis, str(caught.value)), caught.value
    assert "no known mistake" not in str(caught.value)


def test_the_steps_from_which_mistakes_are_made_are_right(gate, mesh):
    proved(gate, mesh, made())
    proved(gate, mesh, made(extra=of_copy))


def unsynchronized(problem, mesh):
    """Moments that the second device does not write, and an update that is the first one's."""
    right = jit_spmd.build(problem, mesh)
    loss_fn = problem.loss_function()

    @jax.jit
    @partial(jax.shard_map, mesh=mesh, in_specs=(P(), P("data")), out_specs=P(), check_vma=False)
    def step(state, batch):
        loss, grads = jax.lax.pmean(jax.value_and_grad(loss_fn)(state[0], batch), "data")
        updates, opt_state = problem.optimizer.update(grads, state[1], state[0])
        at = jax.lax.axis_index("data")
        updates = jax.lax.psum(jax.tree.map(lambda u: jnp.where(at == 0, u, 0), updates), "data")
        opt_state = jax.tree.map(lambda x: jnp.where(at == 1, 0, x) if x.ndim else x, opt_state)
        return (optax.apply_updates(state[0], updates), opt_state, state[2]), loss

    return replace(right, step=step)


def test_replicas_of_the_optimizers_state_are_compared(gate):
    wrong = type("Implementation", (), {"build": staticmethod(unsynchronized)})
    with pytest.raises(WrongStepError, match=r"replicas drift: the state's \[1\].*mu.*is not the"):
        gate.prove_exact(wrong)


def with_narrow_moments(problem, mesh):
    """Adam's first moment is float16, unless the proof is in float64."""
    right = jit_spmd.build(problem, mesh)
    if jax.config.jax_enable_x64 or not stateful(problem):
        return right

    def cast(state, dtype):
        adam, *others = state[1]
        mu = jax.tree.map(lambda leaf: leaf.astype(dtype), adam.mu)
        return state[0], (adam._replace(mu=mu), *others), state[2]

    @jax.jit
    def step(state, batch):
        state, loss = right.step(cast(state, jnp.float32), batch)
        return cast(state, jnp.float16), loss

    return replace(right, state=cast(right.state, jnp.float16), step=step)


def test_moments_in_a_narrower_dtype_are_named(gate, mesh):
    wrong = type("Implementation", (), {"build": staticmethod(with_narrow_moments)})
    with pytest.raises(WrongStepError, match=r"the state's \[1\].*mu.* is float16, narrower than"):
        proved(gate, mesh, wrong)


def hidden(problem, mesh):
    """The state is in a closure, and what the step returns is a count."""
    right = jit_spmd.build(problem, mesh)
    box = [right.state]

    def step(state, batch):
        box[0], loss = right.step(box[0], batch)
        return state + 1, loss

    return replace(right, state=0, step=step, params=lambda _: right.params(box[0]))


def test_state_outside_of_the_state_is_refused(gate, mesh):
    wrong = type("Implementation", (), {"build": staticmethod(hidden)})
    with pytest.raises(WrongStepError, match="the step keeps something outside of `state`"):
        proved(gate, mesh, wrong)


@pytest.mark.parametrize("spoilt", [0, -1])
def test_a_parameter_that_is_nan_when_the_first_step_is_repeated_is_refused(gate, mesh, spoilt):
    def build(problem, mesh):
        right = jit_spmd.build(problem, mesh)
        calls = itertools.count()

        def step(state, batch):
            (params, *rest), loss = right.step(state, batch)
            leaves, tree = jax.tree.flatten(params)
            if next(calls) >= STEPS:
                leaves[spoilt] *= jnp.nan
            return (jax.tree.unflatten(tree, leaves), *rest), loss

        return replace(right, step=step)

    wrong = type("Implementation", (), {"build": staticmethod(build)})
    with pytest.raises(WrongStepError, match="the step keeps something outside of `state`"):
        proved(gate, mesh, wrong)


def test_placing_may_not_reduce_the_batch(gate, mesh):
    def build(problem, mesh):
        right = jit_spmd.build(problem, mesh)
        return replace(right, place=lambda batch: right.place((batch[0][:4], batch[1][:4])))

    wrong = type("Implementation", (), {"build": staticmethod(build)})
    with pytest.raises(WrongStepError, match=r"`place` makes \d+ elements of a batch of \d+: it"):
        gate.prove_exact(wrong)
    batch = gate.timed.batch(0)
    check_placed(batch, [batch, batch])


def test_a_state_that_is_no_tree_is_named():
    with pytest.raises(WrongStepError, match="the state holds a object at its root"):
        check_waitable(object(), jnp.zeros(()))
