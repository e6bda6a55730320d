"""Workloads: published sizes, reproducible data, losses that fall."""

from __future__ import annotations

import re

import jax
import numpy as np
import pytest
from flax import nnx

from bench.contract.workloads import gpt2, linear, mlp, resnet
from bench.records.mesh import MeshShape
from bench.worker.file_loader import load, workload_files
from bench.worker.problems import make_mesh
from implementations import jit_spmd

WORKLOADS = {name: load(path) for name, path in workload_files([]).items()}
every_workload = pytest.mark.parametrize("name", WORKLOADS)


def parameters(config, make_model):
    shapes = nnx.state(nnx.eval_shape(make_model), nnx.Param)
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(shapes))


@pytest.mark.parametrize(
    ("workload", "size", "expected"),
    [
        (gpt2, "124m", 124_439_808 + (50_304 - 50_257) * 768),
        (mlp, "base", 256 * 1024 + 1024 + 1024 * 1024 + 1024 + 1024 * 256 + 256),
        (linear, "base", 64 * 8 + 8),
        (resnet, "20", 269_722),  # He et al. state 0.27 million
    ],
)
def test_parameter_count(workload, size, expected):
    config = workload.SIZES[size]()
    assert parameters(config, workload.problem(config, 8, "fp32").make_model) == expected


def test_sizes_have_the_parameters_that_their_comments_state():
    stated = [
        (name, *found)
        for name, path in workload_files([]).items()
        for found in re.findall(
            r'"(\w+)": .*# ([\d.]+) (thousand|million) parameters', path.read_text()
        )
    ]
    assert {name for name, *_ in stated} == {"mlp", "resnet", "vae"}
    for name, size, number, unit in stated:
        config = WORKLOADS[name].SIZES[size]()
        count = parameters(config, WORKLOADS[name].problem(config, 8, "fp32").make_model)
        in_units = count / {"thousand": 1e3, "million": 1e6}[unit]
        digits = len(number.partition(".")[2])
        assert round(in_units, digits) == float(number), (name, size)


@every_workload
def test_data_and_parameters_are_the_same_every_time(name):
    workload = WORKLOADS[name]
    config = next(iter(workload.SIZES.values()))()
    one, two = (workload.problem(config, 4, "fp32") for _ in range(2))
    jax.tree.map(np.testing.assert_array_equal, one.batch(1), two.batch(1))
    params = [problem.functional_with_state()[0] for problem in (one, two)]
    jax.tree.map(np.testing.assert_array_equal, *params)
    first, second = jax.tree.leaves(one.batch(0))[0], jax.tree.leaves(one.batch(1))[0]
    assert not np.array_equal(first, second)


@every_workload
def test_mean_of_equal_shards_is_the_mean_of_the_batch(name):
    """What data parallelism relies on, and the gate with it, where no statistics are shared."""
    workload = WORKLOADS[name]
    with jax.enable_x64(True):
        problem = workload.problem(next(iter(workload.SIZES.values()))(), 4, "fp64")
        if problem.state_names:
            pytest.skip("statistics of its rows may be shared")
        params, loss_fn = problem.functional()
        batch = problem.batch(0)
        halves = [jax.tree.map(lambda leaf, i=i: leaf[2 * i : 2 * i + 2], batch) for i in (0, 1)]
        loss_fn = jax.jit(loss_fn)
        losses = [loss_fn(params, half) for half in halves]
        np.testing.assert_allclose(np.mean(losses), loss_fn(params, batch), rtol=1e-12)


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", "bf16"), ("fp16", "f16")])
@every_workload
def test_keeps_parameters_in_float32(name, precision, dtype):
    workload = WORKLOADS[name]
    problem = workload.problem(next(iter(workload.SIZES.values()))(), 4, precision)
    params, model_state = jax.eval_shape(lambda: (problem.draw(), problem.draw_state()))
    loss_fn, arguments = problem.loss_with_state(), (params, model_state, problem.batch(0))
    (_, after), grads = jax.eval_shape(jax.value_and_grad(loss_fn, has_aux=True), *arguments)
    assert {str(leaf.dtype) for leaf in jax.tree.leaves((params, grads))} == {"float32"}
    jax.tree.map(lambda a, b: np.testing.assert_equal(a.dtype, b.dtype), model_state, after)
    assert f":{dtype}[" in str(jax.make_jaxpr(loss_fn)(*arguments))


@every_workload
def test_model_flops_are_about_the_compilers(name):
    """The formula counts matrix products; the compiler also counts what is elementwise."""
    workload = WORKLOADS[name]
    problem = workload.problem(workload.SIZES[workload.DEFAULT_SIZE](), 16, "fp32")
    state = jax.eval_shape(lambda: (problem.draw(), problem.draw_state()))
    step = jax.jit(jax.value_and_grad(problem.loss_with_state(), has_aux=True))
    lowered = step.lower(*state, problem.batch(0))
    analysis = lowered.cost_analysis()
    assert analysis["flops"] == pytest.approx(problem.model_flops, rel=0.15)


@pytest.mark.slow
def test_language_models_loss_falls():
    """From the entropy of a uniform byte to that of English letters, and below."""
    problem = gpt2.problem(gpt2.SIZES["nano"](), 16, "fp32")
    train_step = jit_spmd.build(problem, make_mesh(MeshShape.parse("data=2")))
    state, losses = train_step.state, []
    for index in range(80):
        state, loss = train_step.step(state, train_step.place(problem.batch(index)))
        losses.append(float(loss))
    assert losses[0] == pytest.approx(np.log(256), abs=0.15)
    assert np.mean(losses[-5:]) < 3.3


def test_text_is_real_and_tokens_are_its_bytes():
    tokens = gpt2.problem(gpt2.SIZES["tiny"](), 2, "fp32").batch(0)
    assert tokens.shape == (2, 17)
    assert bytes(tokens[0].astype(np.uint8)) in gpt2.text().tobytes()
    assert len(gpt2.text()) > 300_000
