"""PyTorch's steps against the same truth as JAX's, where PyTorch is installed."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from bench.contract.workloads import gpt2, linear, mlp
from bench.records.cells import StepOptions
from bench.records.mesh import MeshShape
from bench.worker.block_rounds import warm_arm
from bench.worker.file_loader import implementation_files, load
from bench.worker.problems import make_mesh, with_options
from bench.worker.prove.gate import Gate

NAMES = sorted(
    name for name, path in implementation_files([]).items() if path.parent.name == "foreign"
)
needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="PyTorch is not installed (extra torch)"
)

CASES = {
    "linear": (linear, "data=1", StepOptions()),
    "mlp": (mlp, "data=2", StepOptions(microbatches=2, remat="full", clip_norm=0.1)),
    "gpt2": (gpt2, "data=2", StepOptions()),
    "gpt2 bf16": (gpt2, "data=2", StepOptions("bf16", microbatches=2)),
}


def problem_of(case, precision):
    workload, _, options = CASES[case]
    problem = workload.problem(workload.SIZES["tiny"](), 8, precision, options.remat)
    return with_options(problem, options)


@needs_torch
@pytest.mark.parametrize(("remat", "times"), [("", 1), ("full", 2)])
def test_hidden_layers_are_computed_again_if_asked(remat, times):
    torch = importlib.import_module("torch")
    torch_models = importlib.import_module("implementations.foreign._torch_models")
    model = torch_models.MLP([4, 3, 2], remat)
    calls = []
    model.layers[0].register_forward_hook(lambda *_: calls.append(None))
    model(torch.ones(2, 4)).sum().backward()
    assert len(calls) == times


@pytest.fixture(params=NAMES)
def module(request):
    yield (found := load(implementation_files([])[request.param]))
    if found.spare:
        found.spare.close()


@pytest.fixture(scope="module")
def gates(tmp_path_factory):
    made = {}

    def gate(case):
        if case not in made:
            _, mesh, options = CASES[case]
            with jax.enable_x64(True):
                exact = problem_of(case, "fp64")
            problem = problem_of(case, options.precision)
            problem = replace(problem, start=jax.device_get(problem.draw()))
            shape = MeshShape.parse(mesh)
            folder = tmp_path_factory.mktemp("programs")
            proof = Gate(
                problem, exact, make_mesh(shape), shape.batch_shards, options.precision, folder
            )
            made[case] = problem, proof
        return made[case]

    return gate


@needs_torch
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_passes_the_gate(module, gates, case):
    problem, gate = gates(case)
    assert module.why_unsupported(problem, gate.mesh) is None
    gate.prove_exact(module)
    gate.prove_rounding(module)
    step = module.build(problem, gate.mesh)
    _, state = gate.prove_timed(step, lambda: module.build(problem, gate.mesh))
    arm = warm_arm("torch", step, state, problem)
    assert step.described(arm)["versions"].keys() == {"python", "torch"}
    step.children.close()


@needs_torch
@pytest.mark.slow
def test_what_it_cannot_do_is_unsupported(module):
    problem = problem_of("mlp", "fp16")
    assert "loss scaling" in module.why_unsupported(problem, make_mesh(MeshShape.parse("data=1")))
    problem, mesh = problem_of("mlp", "fp32"), make_mesh(MeshShape.parse("data=1,model=2"))
    assert "this mesh also has model" in module.why_unsupported(problem, mesh)
    mesh, config = make_mesh(MeshShape.parse("data=1")), gpt2.SIZES["tiny"]()
    for options in ({"remat": "dots"}, {"scan_layers": True}):
        assert module.why_unsupported(gpt2.problem(config, 8, "fp32", **options), mesh)
    problem = problem_of("mlp", "fp32")
    other = replace(problem, outline={**problem.outline, "model": "conv"})
    assert "not conv on cpu" in module.why_unsupported(other, mesh)


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="PyTorch is installed")
def test_each_is_unsupported_with_a_reason_where_torch_is_not_installed(module):
    problem = problem_of("linear", "fp32")
    reason = module.why_unsupported(problem, make_mesh(MeshShape.parse("data=1")))
    assert reason == "it needs the package torch, which is not installed"


@needs_torch
def test_an_mlp_of_more_than_ten_layers_has_them_in_order(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    models = importlib.import_module("implementations.foreign._torch_models")
    widths = list(range(3, 16))
    params = {}
    for number, shape in sorted(enumerate(pairwise(widths)), key=lambda layer: str(layer[0])):
        params[f"layers/{number}/bias"] = np.full(shape[1], number, np.float32)
        kernel = "product/kernel" if number % 2 else "kernel"
        params[f"layers/{number}/{kernel}"] = np.full(shape, number, np.float32)
    problem = SimpleNamespace(model="mlp", params=params, platform="cpu", remat="")
    model = models.make_model(problem)
    assert [layer.in_features for layer in model.layers] == widths[:-1]
    assert model(models.torch.ones(2, 3)).shape == (2, 15)
    for name, array in models.params_of(model, params).items():
        np.testing.assert_array_equal(array, params[name])
