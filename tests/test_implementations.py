"""One conformance suite over every implementation there is, found as the suite finds them."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bench.mesh import MeshShape
from bench.worker.block import make_mesh
from bench.worker.discover import implementation_files, load, workload_files
from bench.worker.gate import Gate
from implementations.python_loop import distributed_train_step

IMPLEMENTATIONS = {name: load(path) for name, path in implementation_files([]).items()}
WORKLOADS = {name: load(path) for name, path in workload_files([]).items()}
BATCH = 8
every_implementation = pytest.mark.parametrize("name", IMPLEMENTATIONS)


def tiny_problem(workload, precision):
    return workload.problem(next(iter(workload.SIZES.values()))(), BATCH, precision)


@pytest.fixture(scope="module")
def gates(tmp_path_factory):
    """A block's gate, made once."""
    made = {}
    folder = tmp_path_factory.mktemp("programs")

    def gate(workload_name, devices, precision):
        key = workload_name, devices, precision
        if key not in made:
            workload = WORKLOADS[workload_name]
            with jax.enable_x64(True):
                exact = tiny_problem(workload, "fp64")
            mesh = make_mesh(MeshShape.parse(f"data={devices}"))
            problem = tiny_problem(workload, precision)
            made[key] = problem, mesh, Gate(problem, exact, mesh, devices, precision, folder)
        return made[key]

    return gate


@every_implementation
@pytest.mark.parametrize(
    ("workload", "devices", "precision"),
    [
        ("linear", 1, "fp32"),
        ("mlp", 8, "fp32"),
        ("mlp", 2, "bf16"),
        ("gpt2", 2, "fp32"),
    ],
)
def test_passes_the_gate(gates, name, workload, devices, precision):
    problem, mesh, gate = gates(workload, devices, precision)
    implementation = IMPLEMENTATIONS[name]
    assert implementation.why_unsupported(problem, mesh) is None
    gate.prove_exact(implementation)
    gate.prove_timed(implementation.build(problem, mesh))


@every_implementation
def test_donates_its_state(gates, name):
    problem, mesh, _ = gates("mlp", 2, "fp32")
    train_step = IMPLEMENTATIONS[name].build(problem, mesh)
    before = [x for x in jax.tree.leaves(train_step.state) if isinstance(x, jax.Array)]
    state, loss = train_step.step(train_step.state, train_step.place(problem.batch(0)))
    jax.block_until_ready((state, loss))
    assert before
    assert all(leaf.is_deleted() for leaf in before)


@every_implementation
def test_two_builds_share_nothing(gates, name):
    """Stepping one must not delete or move the other's state: the A/A twin relies on it."""
    problem, mesh, _ = gates("mlp", 2, "fp32")
    one, two = (IMPLEMENTATIONS[name].build(problem, mesh) for _ in range(2))
    start = jax.device_get(two.params(two.state))
    one.step(one.state, one.place(problem.batch(0)))
    after = jax.device_get(two.params(two.state))
    jax.tree.map(np.testing.assert_array_equal, start, after)


@every_implementation
def test_says_why_it_cannot_use_a_mesh_it_does_not_know(gates, name):
    problem, _, _ = gates("mlp", 2, "fp32")
    reason = IMPLEMENTATIONS[name].why_unsupported(
        problem, make_mesh(MeshShape.parse("data=2,pipe=4"))
    )
    assert reason is not None
    assert "pipe" in reason


@every_implementation
def test_reads_like_a_page(name):
    source = inspect.getsource(IMPLEMENTATIONS[name])
    docstring = ast.get_docstring(ast.parse(source))
    assert len(source.splitlines()) <= 150
    assert docstring
    assert len(docstring.splitlines()[0]) <= 100
    moves = ("all-reduce", "psum", "pmean", "copy of the parameters")
    assert any(word in docstring for word in moves), "what is communicated?"


@every_implementation
def test_a_mesh_without_its_axis_is_unsupported_not_a_crash(gates, name):
    problem, _, _ = gates("mlp", 2, "fp32")
    reason = IMPLEMENTATIONS[name].why_unsupported(problem, make_mesh(MeshShape.parse("model=2")))
    assert reason is not None
    assert "no data" in reason


def test_the_readmes_example_passes_the_gate(gates, tmp_path):
    readme = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    (tmp_path / "my_step.py").write_text(example)
    problem, mesh, gate = gates("mlp", 2, "bf16")
    implementation = load(tmp_path / "my_step.py")
    assert implementation.why_unsupported(problem, mesh) is None
    gate.prove_exact(implementation)
    gate.prove_timed(implementation.build(problem, mesh))


def test_reference_function_takes_the_mean_over_shards():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(8, 3)).astype("f"), rng.normal(size=(8, 2)).astype("f")
    losses = [distributed_train_step(0, x, y, shards, 0.1) for shards in (1, 2, 8)]
    for loss in losses:
        assert loss.shape == (1,)
        assert loss.dtype == jnp.float32
        np.testing.assert_allclose(loss, losses[0], rtol=1e-6)
    assert losses[0] != distributed_train_step(1, x, y, 1, 0.1), "the seed sets the parameters"


def test_reference_function_computes_the_squared_error():
    x, y = np.zeros((4, 3), "f"), np.array([[1.0], [1.0], [3.0], [3.0]], "f")
    # With zero inputs and a zero bias the prediction is 0: the mean of 1, 1, 9, 9.
    np.testing.assert_allclose(distributed_train_step(0, x, y, 2, 0.1), [5.0])


@pytest.mark.parametrize(("shards", "message"), [(3, "does not divide into 3"), (0, "at least 1")])
def test_reference_function_rejects_bad_shards(shards, message):
    x, y = np.zeros((4, 3), "f"), np.zeros((4, 1), "f")
    with pytest.raises(ValueError, match=message):
        distributed_train_step(0, x, y, shards, 0.1)
