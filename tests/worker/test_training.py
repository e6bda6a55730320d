"""Training: the same start and data for all, a right reference, and reasons for failures."""

from __future__ import annotations

import itertools
import math
from functools import partial
from types import SimpleNamespace

import jax
import pytest

from bench.contract import TrainStep
from bench.records.arms import IN_PARTS, WHOLE_BATCH
from bench.records.mesh import MeshShape
from bench.worker.phases.training import reference_steps, trained
from bench.worker.problems import make_mesh
from bench.worker.prove.timed_reference import TimedReference
from bench.worker.prove.trajectory import whole_batch_steps
from implementations import jit_spmd

STEPS = 5


def references(reference, problem, progress=lambda *_: None):
    """Trains the reference; returns its curves by name."""
    return {
        name: trained(build, problem.batch, STEPS, partial(progress, name))
        for name, build in reference_steps(reference).items()
    }


@pytest.fixture(scope="module")
def found(gate, problem):
    seen = []
    curves = references(gate.reference, problem, lambda *begun: seen.append(begun))
    assert seen == [*itertools.product((WHOLE_BATCH, IN_PARTS), range(STEPS))]
    return curves


def test_the_reference_is_what_the_gate_compares_with(problem, found):
    params, model_state, loss_fn = problem.functional_with_state()
    batches = [problem.batch(number) for number in range(STEPS)]
    loss_and_gradients = jax.jit(jax.value_and_grad(loss_fn, has_aux=True))
    right = whole_batch_steps(params, model_state, loss_and_gradients, problem.optimizer, batches)
    assert found[WHOLE_BATCH] == (pytest.approx(right.losses.tolist(), rel=1e-5), "")


def test_another_order_differs_by_rounding_alone(found):
    (right, _), (others, _) = found[WHOLE_BATCH], found[IN_PARTS]
    assert others == pytest.approx(right, rel=1e-4)
    assert others != right


@pytest.mark.parametrize(
    ("parts", "state", "names"),
    [
        (2, {}, [WHOLE_BATCH, IN_PARTS]),
        (1, {"mean": 0}, [WHOLE_BATCH, IN_PARTS]),
        (1, {}, [WHOLE_BATCH]),
    ],
)
def test_the_reference_trains_again_if_it_has_another_order(parts, state, names):
    assert [*reference_steps(SimpleNamespace(parts=parts, start_state=state))] == names


def test_a_batch_that_fits_nowhere_says_what_is_missing(gate, problem):
    for losses, reason in references(TimedReference(gate, 1000), problem).values():
        assert losses == []
        assert reason.startswith("oom: the reference, in ")
        assert "sharded over all 2 devices of this process, needs " in reason
        assert "on each, where 0.977" in reason


def test_an_implementation_starts_over_and_follows_the_reference(problem, found):
    mesh = make_mesh(MeshShape.parse("data=2"))
    build = partial(jit_spmd.build, problem, mesh)
    once, again = (trained(build, problem.batch, STEPS, lambda _: None) for _ in range(2))
    assert once == again
    assert once[0] == pytest.approx(found[WHOLE_BATCH][0], rel=1e-5)


def stepping(values):
    """A step whose losses are these."""
    left = iter(values)
    return TrainStep(
        state=None,
        place=lambda batch: batch,
        step=lambda state, _: (state, jax.numpy.float32(next(left))),
        params=lambda state: state,
    )


def test_a_curve_ends_where_the_loss_is_no_number():
    curve = trained(lambda: stepping([2, 1, math.nan, 1]), lambda _: None, 4, lambda _: None)
    assert curve == ([2.0, 1.0], "the loss of step 3 is nan")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (MemoryError("RESOURCE_EXHAUSTED: 1 EiB"), "oom: RESOURCE_EXHAUSTED: 1 EiB"),
        (SystemExit(3), "crashed: it calls sys.exit(3)"),
    ],
)
def test_what_is_raised_is_the_reason(error, reason):
    def build():
        raise error

    losses, why = trained(build, lambda _: None, 4, lambda _: None)
    assert losses == []
    assert why.startswith(reason)


def test_what_was_trained_before_a_failure_is_kept():
    def batch(number):
        if number == 2:
            raise RuntimeError("no such batch")

    losses, reason = trained(lambda: stepping([2, 1, 1]), batch, 3, lambda _: None)
    assert losses == [2.0, 1.0]
    assert reason.startswith("crashed: RuntimeError: no such batch")
