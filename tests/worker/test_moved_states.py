"""States are moved to other memory between rounds, and only where the step cannot notice."""

from __future__ import annotations

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from bench.worker.read.compilation import CompilationLog
from bench.worker.time.clock import Arm, measure
from bench.worker.time.moved_states import MOVED_EVERY, is_rebuilt, moved


def addresses(array):
    return [shard.data.unsafe_buffer_pointer() for shard in array.addressable_shards]


def committed(value):
    return jax.device_put(value, SingleDeviceSharding(jax.devices()[0]))


def until(rounds):
    return lambda turns: [] if turns[-1]["round"] + 1 == rounds else None


@jax.jit(donate_argnums=0)
def donating(state, _):
    return {"w": state["w"] + 1, "count": state["count"] + 1}, state["w"].sum()


def donating_arm(name="a"):
    state = {"w": committed(jnp.zeros(4096)), "count": committed(0)}
    return Arm(name, donating, state, None).warm_up()


def test_a_donated_state_gets_other_memory_without_compiling():
    """The address stays the same between moves, and is another after each."""
    arm, seen = donating_arm(), []

    def after_round(turns):
        seen.append(addresses(arm.state["w"])[0])
        return until(3 * MOVED_EVERY)(turns)

    with CompilationLog() as log:
        _, compiled = measure([arm], 1, 0, log, after_round)
    stays = [earlier == later for earlier, later in pairwise(seen)]
    moves = {MOVED_EVERY - 1, 2 * MOVED_EVERY - 1}
    assert {at for at, stayed in enumerate(stays) if not stayed} == moves
    assert not compiled
    assert int(arm.state["count"]) == int(arm.state["w"][0]) == arm.steps


@pytest.mark.parametrize("spec", [P(), P("data")], ids=str)
def test_a_copy_has_the_same_shards_in_other_memory(spec):
    mesh = jax.make_mesh((2,), ("data",), devices=jax.devices()[:2])
    array = jax.device_put(jnp.arange(64.0), NamedSharding(mesh, spec))
    copy = moved(array, rebuilt=True)
    assert not set(addresses(copy)) & set(addresses(array))
    assert copy.format == array.format
    assert copy.weak_type == array.weak_type
    np.testing.assert_array_equal(copy, array)


def test_replicas_that_differ_still_differ_in_the_copy():
    mesh = jax.make_mesh((2,), ("data",), devices=jax.devices()[:2])
    pieces = [jax.device_put(jnp.full(3, float(at)), own) for at, own in enumerate(mesh.devices)]
    array = jax.make_array_from_single_device_arrays((3,), NamedSharding(mesh, P()), pieces)
    assert [float(shard.data[0]) for shard in moved(array, rebuilt=True).addressable_shards] == [
        0.0,
        1.0,
    ]


def test_uncommitted_arrays_keys_and_other_leaves_stay():
    state = {"w": jnp.zeros(4), "key": committed(jax.random.key(0)), "count": 3}
    copy = moved(state, rebuilt=True)
    assert all(copy[name] is leaf for name, leaf in state.items())


@pytest.mark.parametrize("cached", [False, True])
def test_objects_that_a_step_holds_on_to_stay_and_their_arrays_move(cached):
    """The step updates its module in place; it would ignore another module."""
    model = nnx.Linear(64, 64, rngs=nnx.Rngs(0))
    nnx.update(model, jax.tree.map(committed, nnx.state(model)))

    @nnx.jit(donate_argnums=0)
    def step(model):
        model.kernel[...] = model.kernel[...] + 1
        return model.kernel[...].sum()

    run = nnx.cached_partial(step, model) if cached else lambda: step(model)
    arm = Arm("a", lambda state, _: (state, run()), (model,), None).warm_up()
    before, state, values = addresses(model.kernel.get_value()), arm.state, np.array(model.kernel)
    arm.state = moved(arm.state, rebuilt=arm.rebuilds_state)
    assert not arm.rebuilds_state
    assert arm.state is state
    assert state[0] is model
    assert addresses(model.kernel.get_value()) != before
    with CompilationLog() as log:
        arm.run(1)
    assert not log.programs
    np.testing.assert_array_equal(model.kernel, values + 1)


def test_other_objects_that_a_step_returns_are_left_alone():
    kept = {"w": committed(jnp.zeros(4))}
    arm = Arm("a", lambda state, _: (state, state["w"].sum()), kept, None).warm_up()
    before = kept["w"]
    arm.state = moved(arm.state, rebuilt=arm.rebuilds_state)
    assert arm.state is kept
    assert kept["w"] is before


def test_a_changed_dictionary_is_no_new_one():
    state = {"params": {"w": jnp.zeros(2)}, "none": None, "empty": ()}
    assert is_rebuilt(state, {"params": {"w": state["params"]["w"]}, "none": None, "empty": ()})
    assert not is_rebuilt(state, {"params": state["params"], "none": None, "empty": ()})
    assert not is_rebuilt((state,), (state,))
    assert is_rebuilt(jnp.zeros(2), jnp.zeros(2))


def test_the_move_belongs_to_the_arm_and_to_no_turn():
    """The supervisor is told whose state moves, and a span's time does not contain it."""
    arm, names = donating_arm(), []
    with CompilationLog() as log:
        measure([arm], 1, 0, log, until(MOVED_EVERY + 1), names.append)
    assert names[: MOVED_EVERY * 2] == ["a", ""] * MOVED_EVERY
    assert names[MOVED_EVERY * 2 :] == ["a", "", "a", "", "a", ""]
