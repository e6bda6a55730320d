"""Blocks go to their stages and come back; what cannot be a pipeline says why."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest

from bench.contract.pipelines import from_stages, to_stages, why_no_pipeline
from bench.contract.workloads import gpt2, mlp, moe
from bench.records.mesh import MeshShape
from bench.worker.problems import make_mesh
from implementations import (
    pipeline_1f1b,
    pipeline_gpipe,
    pipeline_interleaved,
    pipeline_zero_bubble,
)

CONFIG = gpt2.Config(layers=4, heads=2, width=8, context=8, vocabulary=256)


@pytest.mark.parametrize(("stages", "chunks"), [(1, 1), (2, 1), (4, 1), (2, 2)])
def test_stages_hold_all_blocks_and_give_them_back(stages, chunks):
    params = jax.device_get(gpt2.problem(CONFIG, 8, "fp32").draw())
    ends, stacked = to_stages(params, stages, chunks)
    assert "blocks" not in ends
    kernel = stacked["up"]["kernel"]
    assert kernel.shape == (stages, chunks, 4 // stages // chunks, 8, 32)
    # The second stage's first run begins where the first stage's ended.
    if stages > 1:
        after = params["blocks"][4 // stages // chunks]["up"]["kernel"]
        np.testing.assert_array_equal(kernel[1, 0, 0], after)
    back = from_stages(ends, jax.tree.map(jax.numpy.array, stacked))
    jax.tree.map(np.testing.assert_array_equal, back, params)


@pytest.mark.parametrize(
    ("mesh", "microbatches", "batch", "chunks", "reason"),
    [
        ("data=2,pipe=2", 2, 8, 1, None),
        ("data=2,model=2,pipe=2", 4, 8, 2, None),
        ("data=2", 2, 8, 1, "needs the axis pipe, which this mesh lacks"),
        ("data=1,fsdp=2,pipe=2", 2, 8, 1, "but this mesh also has fsdp"),
        ("data=1,pipe=8", 8, 8, 1, "4 blocks do not divide evenly into 8 stages"),
        (
            "data=1,pipe=4",
            4,
            8,
            2,
            "4 blocks do not divide evenly into 4 stages of 2 runs of blocks each",
        ),
        (
            "data=1,pipe=4",
            2,
            8,
            1,
            "4 stages need a multiple of 4 microbatches to be busy, not 2",
        ),
        ("data=1,pipe=2", 3, 9, 1, "2 stages need a multiple of 2 microbatches to be busy, not 3"),
        (
            "data=2,pipe=2",
            8,
            8,
            1,
            "a device's batch of 4 does not divide evenly into 8 microbatches",
        ),
        ("data=1,model=4,pipe=2", 2, 8, 1, "`heads` has size 2, which is not divisible by model=4"),
    ],
)
def test_what_cannot_be_a_pipeline_says_why(mesh, microbatches, batch, chunks, reason):
    problem = replace(gpt2.problem(CONFIG, batch, "fp32"), microbatches=microbatches)
    found = why_no_pipeline(problem, make_mesh(MeshShape.parse(mesh)), chunks)
    assert found == reason or (reason is not None and reason in (found or "")), found


def test_a_model_of_one_block_is_named_in_the_singular():
    problem = replace(gpt2.problem(replace(CONFIG, layers=1), 8, "fp32"), microbatches=2)
    found = why_no_pipeline(problem, make_mesh(MeshShape.parse("data=1,pipe=2")), 1)
    assert found == "1 block does not divide evenly into 2 stages"


def test_a_workload_without_a_chain_says_so():
    mesh = make_mesh(MeshShape.parse("data=2,pipe=2"))
    for workload in (mlp, moe):  # moe's blocks are equal, but return more than a chain passes on
        problem = replace(workload.problem(workload.SIZES["tiny"](), 8, "fp32"), microbatches=2)
        reason = "the workload declares no chain of equal blocks (`make_stages`)"
        assert why_no_pipeline(problem, mesh) == reason
    scanned = gpt2.problem(gpt2.SIZES["deep"](), 8, "fp32", scan_layers=True)
    assert why_no_pipeline(replace(scanned, microbatches=2), mesh) == (
        "a pipeline already loops over each stage's blocks, so it takes no stacked layers"
    )


@pytest.mark.slow
def test_the_bubble_is_that_of_the_schedule():
    problem = replace(gpt2.problem(CONFIG, 8, "fp32"), microbatches=4)
    mesh = make_mesh(MeshShape.parse("data=1,pipe=2"))
    assert pipeline_gpipe.build(problem, mesh).bubble == 1 / 5
    assert pipeline_interleaved.build(problem, mesh).bubble == 1 / 9
    assert pipeline_1f1b.build(problem, mesh).bubble == 1 / 5
    assert pipeline_zero_bubble.build(problem, mesh).bubble == 1 / 13


def activation_bytes(implementation, microbatches):
    """Planned for a device with microbatches of four samples."""
    problem = gpt2.problem(CONFIG, 4 * microbatches, "fp32")
    problem = replace(problem, microbatches=microbatches)
    step = implementation.build(problem, make_mesh(MeshShape.parse("data=1,pipe=2")))
    compiled = step.step.lower(step.state, step.place(problem.batch(0))).compile()
    return compiled.memory_analysis().temp_size_in_bytes


@pytest.mark.slow
def test_microbatches_in_flight_take_memory():
    """In GPipe all are in flight; in the others, no more than the number of stages demands."""
    grown = {
        one: activation_bytes(one, 8) - activation_bytes(one, 4)
        for one in (pipeline_gpipe, pipeline_1f1b, pipeline_zero_bubble)
    }
    # A microbatch's input of one block: (4, 8, 8) in float32.
    assert grown[pipeline_gpipe] > 4 * 2 * (4 * 4 * 8 * 8)
    assert max(grown[pipeline_1f1b], grown[pipeline_zero_bubble]) < 4 * 4 * 4 * 8 * 8


@pytest.mark.parametrize(("stages", "count"), [(1, 1), (2, 2), (2, 8), (3, 12), (4, 8), (8, 32)])
def test_a_zero_bubble_schedule_is_a_third_as_idle_as_1f1b_in_the_same_memory(stages, count):
    slots = np.array(pipeline_zero_bubble.schedule(stages, count))
    does, number = slots[..., 0], slots[..., 1]
    assert len(slots) == 3 * count + stages - 1
    assert (np.sum(does == pipeline_zero_bubble.IDLE, axis=0) == stages - 1).all()

    def when(which):
        """Slots in which each stage runs a pass of each microbatch, (stages, microbatches)."""
        ran = [np.flatnonzero(own) for own in (does == which).T]
        for stage, at in enumerate(ran):
            np.testing.assert_array_equal(number[at, stage], np.arange(count))
        return np.stack(ran)

    forward, of_input, of_weights = map(when, range(3))
    # Nothing runs before what it needs, which takes a slot to arrive from another stage.
    assert (forward[1:] > forward[:-1]).all()
    assert (of_input[:-1] > of_input[1:]).all()
    assert (of_input > forward).all()
    assert (of_weights > of_input).all()
    # 1F1B's first stage has a microbatch for every stage in flight.
    now = np.arange(len(slots))[:, None, None]
    in_flight = np.sum((forward <= now) & (of_weights >= now), axis=-1)
    assert in_flight.max() == stages
