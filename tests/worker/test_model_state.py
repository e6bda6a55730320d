"""Models with state beside parameters: what the gate proves of it, and which mistakes it names."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P

from bench.contract import PRECISIONS, Problem, TrainStep
from bench.contract.layers import SampleDropout
from bench.contract.model_state import LOCAL, SYNCHRONIZED, is_float
from bench.contract.placement import (
    create_data_parallel_sharding,
    place_batch_on_shards,
    place_model_state_on_shards,
)
from bench.records.mesh import MeshShape
from bench.records.paths import ROOT
from bench.worker.file_loader import load
from bench.worker.problems import make_mesh
from bench.worker.prove.failures import (
    WrongStepError,
    why_state_unsupported,
    why_unsupported,
)
from bench.worker.prove.gate import Gate
from bench.worker.prove.state_reader import StateReader
from bench.worker.read.programs import flops_of
from implementations import fsdp_shard_map, jit_spmd, nnx_jit, python_loop, shard_map_pmean, zero2
from tests.slow import slow
from tests.worker.conftest import on_the_host
from tests.worker.test_spot_checks import AFTER, checked

DEVICES = 2
ROWS = 8
WIDTH = 8


@pytest.fixture(scope="module")
def mesh():
    return make_mesh(MeshShape.parse(f"data={DEVICES}"))


class PlainDropout(nnx.Module):
    """Draws masks by the position in the batch, and so the same ones for all shards."""

    def __init__(self, rngs):
        self.stream = rngs.dropout.fork()

    def __call__(self, x, _numbers):
        return jnp.where(jax.random.uniform(self.stream(), x.shape, jnp.float32) < 0.5, 0, x)


class Net(nnx.Module):
    def __init__(self, dtypes, rngs, dropout):
        options = dtypes.of_layer(rngs)
        self.first = nnx.Linear(WIDTH, WIDTH, use_bias=False, **options)
        self.norm = nnx.BatchNorm(WIDTH, momentum=0.9, **options)
        self.dropout = dropout(rngs)
        self.last = nnx.Linear(WIDTH, 1, **options)

    def __call__(self, x, numbers):
        return self.last(self.dropout(nnx.relu(self.norm(self.first(x))), numbers))


def squared_error(model, batch):
    inputs, targets, numbers = batch
    return jnp.mean((model(inputs, numbers).astype(targets.dtype) - targets) ** 2)


HALF = partial(SampleDropout, 0.5)


def problem(precision="fp32", statistics=SYNCHRONIZED, dropout=HALF):
    dtypes = PRECISIONS[precision]

    def batch(index):
        inputs = np.random.default_rng((1, index)).normal(size=(ROWS, WIDTH)).astype(dtypes.params)
        numbers = index * ROWS + np.arange(ROWS, dtype=np.int32)
        return inputs, inputs.sum(1, keepdims=True), numbers

    return Problem(
        make_model=lambda: Net(dtypes, nnx.Rngs(0), lambda rngs: dropout(rngs=rngs)),
        loss=squared_error,
        statistics=statistics,
        optimizer=optax.adam(1e-3),
        batch=batch,
        batch_size=ROWS,
        model_flops=1.0,
        units_per_step=ROWS,
    )


@pytest.fixture(scope="module")
def gates(mesh, programs):
    """Gates by statistics, dropout and the number of microbatches."""
    made = {}

    def gate(statistics=SYNCHRONIZED, dropout=None, microbatches=1):
        key = statistics, dropout, microbatches
        if key not in made:
            more = {"dropout": dropout} if dropout else {}
            timed = on_the_host(problem(statistics=statistics, **more))
            timed = replace(timed, microbatches=microbatches)
            with jax.enable_x64(True):
                exact = replace(problem("fp64", statistics, **more), microbatches=microbatches)
            made[key] = Gate(timed, exact, mesh, DEVICES, "fp32", programs)
        return made[key]

    return gate


@dataclass
class Module:
    """An implementation that is shard_map_pmean with changes."""

    change: Any = lambda _problem: _problem
    """Changes the problem whose loss is computed."""
    keep: Any = lambda _old, new: new
    """Chooses the next model state, of the step's old and new one, on each shard."""
    given: Any = lambda state: state
    """Changes the model state that the loss function gets."""
    axis: str = "data"

    def why_unsupported(self, problem, mesh):
        return None

    def build(self, problem, mesh):
        params, model_state, _ = problem.functional_with_state()
        loss_fn = self.change(problem).functional_with_state(self.axis)[2]
        sharding = create_data_parallel_sharding(mesh)

        def step(state, batch):
            params, opt_state, old = state
            gradients = jax.value_and_grad(loss_fn, has_aux=True)
            (loss, new), grads = gradients(params, self.given(old), batch)
            loss, grads = jax.lax.pmean((loss, grads), "data")
            updates, opt_state = problem.optimizer.update(grads, opt_state, params)
            return (optax.apply_updates(params, updates), opt_state, self.keep(old, new)), loss

        spread = jax.shard_map(
            step, mesh=mesh, in_specs=(P(), P("data")), out_specs=P(), check_vma=False
        )
        state = params, problem.optimizer.init(params), model_state
        return TrainStep(
            state=place_model_state_on_shards(state, mesh),
            place=partial(place_batch_on_shards, sharding=sharding),
            step=jax.jit(spread),
            params=lambda state: state[0],
            model_state=lambda state: state[2],
        )


def choose(floats, others):
    """Keep floats or other leaves of the old state, as told."""

    def keep(old, new):
        return jax.tree.map(lambda a, b: a if (floats if is_float(a) else others) else b, old, new)

    return keep


def of_shard_0(_old, new):
    def first(leaf):
        return jax.lax.all_gather(leaf, "data")[0] if is_float(leaf) else leaf

    return jax.tree.map(first, new)


def first_draws(state):
    """The model state with the count of draws at its beginning."""
    return jax.tree.map(lambda x: x * 0 if x.dtype == jnp.uint32 else x, state)


def counted(old, new):
    """Count every step, whatever was drawn."""
    return jax.tree.map(lambda a, b: a + 1 if a.dtype == jnp.uint32 else b, old, new)


def local(problem):
    return replace(problem, statistics=LOCAL)


def synchronized(problem):
    return replace(problem, statistics=SYNCHRONIZED)


@pytest.mark.parametrize(
    ("statistics", "implementation", "microbatches"),
    [
        *slow((SYNCHRONIZED, jit_spmd, 1), (LOCAL, python_loop, 2)),
        *slow((SYNCHRONIZED, Module(), 1), (LOCAL, Module(), 1), (LOCAL, python_loop, 1)),
        *slow((SYNCHRONIZED, shard_map_pmean, 2), (SYNCHRONIZED, jit_spmd, 2)),
        *slow((LOCAL, shard_map_pmean, 2), (SYNCHRONIZED, zero2, 2)),
    ],
)
def test_a_right_step_passes_with_its_state(gates, mesh, statistics, implementation, microbatches):
    gate = gates(statistics, microbatches=microbatches)
    timed = gate.timed
    checks = [*gate.prove_exact(implementation), gate.prove_rounding(implementation)]

    def build():
        return implementation.build(timed, mesh)

    check, state = gate.prove_timed(build(), build)
    for one in (*checks, check):
        assert one["state_error"] <= one["state_tolerance"]
    assert checks[0]["state_tolerance"] == pytest.approx(2.0**-26)
    assert check["state_tolerance"] < 1e-3
    counts = jax.tree.leaves(implementation.build(timed, mesh).model_state(state)["dropout"])
    assert [int(leaf) for leaf in counts if leaf.dtype == jnp.uint32] == [3 * microbatches]


@pytest.mark.slow
@pytest.mark.parametrize("statistics", [LOCAL, SYNCHRONIZED])
def test_statistics_of_a_whole_batch_are_wrong_for_microbatches(gates, statistics):
    with pytest.raises(WrongStepError, match=r"gradients|loss|model state"):
        gates(statistics, microbatches=2).prove_exact(Module())


@pytest.mark.parametrize(
    ("statistics", "dropout", "wrong", "diagnosis"),
    [
        pytest.param(
            SYNCHRONIZED, None, Module(keep=choose(floats=True, others=False)),
            r"\['norm'\]\['mean'\], .*do not change: statistics are not updated",
            id="statistics not updated",
        ),
        pytest.param(
            SYNCHRONIZED, None, Module(keep=choose(floats=False, others=True)),
            r"\['count'\] does not change: every step draws the same random numbers",
            id="count not carried",
        ),
        pytest.param(
            SYNCHRONIZED, None, Module(given=first_draws, keep=counted),
            "every step draws the same random numbers",
            id="same mask each step",
        ),
        pytest.param(
            SYNCHRONIZED, None, Module(change=local),
            "every shard is normalized by its own statistics: they are not synchronized",
            id="local where synchronized is declared",
        ),
        pytest.param(
            SYNCHRONIZED, PlainDropout, Module(),
            "the masks of dropout repeat over the shards",
            id="mask repeated over shards",
        ),
        pytest.param(
            LOCAL, None, Module(axis=""),
            r"replicas drift: the model state's \['norm'\]\['mean'\] is not the same on device",
            id="averages of each device",
        ),
        pytest.param(
            LOCAL, None, Module(axis="", keep=of_shard_0),
            "the running averages are those of shard 0 alone",
            id="averages of one shard",
        ),
        pytest.param(
            LOCAL, None, Module(change=synchronized),
            "the statistics are those of the global batch, but the workload declares local ones",
            id="synchronized where local is declared",
        ),
    ],
)  # fmt: skip
def test_a_wrong_state_is_caught_and_named(gates, statistics, dropout, wrong, diagnosis):
    with pytest.raises(WrongStepError, match=diagnosis):
        gates(statistics, dropout).prove_exact(wrong)


def test_masks_by_position_are_right_under_jit(gates, mesh):
    gates(SYNCHRONIZED, PlainDropout).prove_exact(jit_spmd)


def test_a_model_that_draws_float64_numbers_is_refused_with_advice(gates):
    with pytest.raises(WrongStepError, match=r"draw them as float32, as .*SampleDropout does"):
        gates(SYNCHRONIZED, lambda rngs: Numberless(nnx.Dropout(0.5, rngs=rngs)))


class Numberless(nnx.Module):
    """Calls a layer without samples' numbers."""

    def __init__(self, layer):
        self.layer = layer

    def __call__(self, x, _numbers):
        return self.layer(x)


def test_state_is_read_with_its_keys_and_outlives_its_donation(mesh):
    timed = problem()
    train_step = jit_spmd.build(timed, mesh)
    state, batch = train_step.state, train_step.place(timed.batch(0))
    reader = StateReader(train_step, timed, state)
    held = reader.read(state, reader.parts(state))
    train_step.step(state, batch)
    stream = held.model_state["dropout"]["stream"]
    assert int(stream["count"]) == 0
    assert jnp.issubdtype(stream["key"].dtype, jax.dtypes.prng_key)
    assert not stream["key"].is_deleted()
    assert held.opt_state is not None


@pytest.mark.parametrize(
    ("statistics", "change", "diagnosis"),
    [
        (SYNCHRONIZED, lambda old, new: new, ""),
        (
            LOCAL,
            choose(floats=True, others=False),
            r"in round 1: .*\['mean'\], .*do not change: statistics are not updated",
        ),
        (
            SYNCHRONIZED,
            choose(floats=False, others=True),
            r"in round 1: .*\['count'\] does not change: every step draws the same random numbers",
        ),
    ],
)
def test_state_that_goes_wrong_in_the_rounds_is_named(gates, mesh, statistics, change, diagnosis):
    gate = gates(statistics)
    right = Module().build(gate.timed, mesh)
    calls = itertools.count()

    def step(state, batch):
        kept = jax.tree.map(jnp.copy, state[2])
        (params, opt_state, model_state), loss = right.step(state, batch)
        if next(calls) >= AFTER:
            model_state = change(kept, model_state)
        return (params, opt_state, model_state), loss

    why, _ = checked(gate, replace(right, step=step), gate.timed)
    assert re.search(diagnosis, why) if diagnosis else not why, why


class Bound(nnx.Module):
    """Holds an infinity that never changes, as a causal mask does."""

    def __init__(self, rngs):
        self.least = nnx.Variable(jnp.array(-jnp.inf))

    def __call__(self, x, _numbers):
        return jnp.maximum(x, self.least[...])


def test_constant_infinities_in_the_state_are_right(gates, mesh):
    gate = gates(SYNCHRONIZED, Bound)
    gate.prove_exact(jit_spmd)
    why, _ = checked(gate, jit_spmd.build(gate.timed, mesh), gate.timed)
    assert not why


def test_says_who_carries_which_state(mesh):
    one = make_mesh(MeshShape.parse("data=1"))
    timed, shard = problem(), problem(statistics=LOCAL)
    assert why_unsupported(fsdp_shard_map, timed, mesh).startswith("it carries no model state, and")
    assert "dropout/stream/count" in why_unsupported(fsdp_shard_map, timed, mesh)
    assert "computes only local ones" in why_unsupported(python_loop, timed, mesh)
    assert why_unsupported(python_loop, timed, one) == ""
    assert "computes only synchronized ones" in why_unsupported(jit_spmd, shard, mesh)
    assert [why_unsupported(shard_map_pmean, each, mesh) for each in (timed, shard)] == ["", ""]
    for step in (jit_spmd, nnx_jit):
        assert why_unsupported(step, replace(timed, microbatches=2), mesh) == ""
    outside = why_state_unsupported(SimpleNamespace(FOREIGN={}), timed, mesh)
    assert outside.startswith("it runs in a process of its own, which is given only parameters")


def test_the_manuals_workload_carries_its_state(tmp_path):
    page = (ROOT / "docs/model-state.md").read_text(encoding="utf-8")
    example = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0]
    (tmp_path / "own.py").write_text(example)
    own = load(tmp_path / "own.py")
    made = own.problem(own.SIZES[own.DEFAULT_SIZE](), 4, "bf16")
    params, model_state, loss_fn = made.functional_with_state()
    arguments = params, model_state, made.batch(0)
    loss, after = jax.eval_shape(loss_fn, *arguments)
    assert (loss.shape, loss.dtype) == ((), jnp.float32)
    assert jax.tree.structure(after) == jax.tree.structure(model_state)
    gradients = jax.make_jaxpr(jax.value_and_grad(loss_fn, has_aux=True))(*arguments)
    assert flops_of(gradients) == made.model_flops


def test_a_samples_mask_does_not_depend_on_its_batch():
    layer = SampleDropout(0.5, nnx.Rngs(0))
    definition, state = nnx.split(layer)
    state = nnx.to_pure_dict(state)
    x, numbers = jnp.ones((8, 16)), jnp.arange(8)

    def drop(rows):
        return nnx.merge(definition, state)(x[rows], numbers[rows])

    whole = drop(slice(None))
    np.testing.assert_array_equal(whole[3:5], drop(slice(3, 5)))
    assert set(np.unique(whole)) == {0, 2}
    assert not np.array_equal(layer(x, numbers), layer(x, numbers)), "each call draws anew"
