"""One conformance suite over every implementation there is, found as the suite finds them."""

from __future__ import annotations

import ast
import gc
import inspect
import re
import sys
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bench.contract.workloads import gpt2
from bench.records.cells import StepOptions
from bench.records.mesh import MeshShape
from bench.records.paths import ROOT
from bench.worker.file_loader import implementation_files, load, workload_files
from bench.worker.problems import make_mesh, with_options
from bench.worker.prove.failures import WrongStepError, approximation
from bench.worker.prove.gate import Gate
from bench.worker.read.compilation import remembered_programs
from implementations.python_loop import distributed_train_step
from tests.slow import LIKE_OTHERS, slow

MODULES = {name: load(path) for name, path in implementation_files([]).items()}
IMPLEMENTATIONS = {name: one for name, one in MODULES.items() if not hasattr(one, "FOREIGN")}
APPROXIMATE = {name for name, one in IMPLEMENTATIONS.items() if approximation(one)}
"""Proved in tests/worker/test_statistical_proof.py."""
WORKLOADS = {name: load(path) for name, path in workload_files([]).items()}
BATCH = 8
every_implementation = pytest.mark.parametrize("name", IMPLEMENTATIONS)


PLAIN = StepOptions()
SCANNED = StepOptions(remat="dots", scan_layers=True)


@dataclass(frozen=True)
class Case:
    """A block that an implementation is proved in."""

    workload: str
    mesh: str
    options: StepOptions = PLAIN
    config: Any = None
    """The smallest size if None."""

    def __str__(self) -> str:
        return f"{self.workload}-{self.mesh}-{self.options}"


DEEP = gpt2.Config(layers=4, heads=2, width=16, context=16, vocabulary=256)
"""For pipelines."""

PAIR = gpt2.Config(layers=2, heads=2, width=16, context=16, vocabulary=256)
"""For a pipeline of two stages."""

THREE = gpt2.Config(layers=3, heads=2, width=16, context=16, vocabulary=256)
"""For layers that are stacked or computed again."""

WIDE = gpt2.Config(layers=1, heads=8, width=16, context=32, vocabulary=256)
"""For eight parts of heads and sequences."""

KINDS = {
    "data parallel": {
        *("python_loop", "pmap", "jit_spmd", "nnx_jit", "nnx_jit_cached", "explicit_sharding"),
        *("shard_map_pmean", "shard_map_psum", "shard_map_in_backward", "shard_map_bucketed"),
        *("zero1", "zero2"),
    },
    "fully sharded": {"fsdp_spmd", "fsdp_shard_map", "hierarchical_shard_map"},
    "tensor parallel": {
        *("tensor_parallel_spmd", "tensor_parallel_spmd_activations", "tensor_parallel_shard_map"),
    },
    "fully sharded and tensor parallel": {
        *("fsdp_tensor_parallel_spmd", "fsdp_tensor_parallel_shard_map"),
    },
    "context parallel": {"context_ring", "context_gathered", "context_ulysses"},
    "expert parallel": {"expert_all_to_all", "expert_replicated", "expert_tensor_parallel"},
    "pipeline": {
        *("pipeline_gpipe", "pipeline_interleaved", "pipeline_1f1b", "pipeline_zero_bubble"),
    },
    "other libraries": {"equinox_jit", "linen_jit"},
    "whole matrices": {"owner_computes"},
    "approximate": APPROXIMATE,
}

STATEFUL = {
    "resnet": ["explicit_sharding", "fsdp_spmd", "jit_spmd", "nnx_jit", "nnx_jit_cached", "pmap",
               "shard_map_bucketed", "shard_map_in_backward", "shard_map_pmean", "shard_map_psum",
               "zero1", "zero2"],
    "resnet_local": ["pmap", "python_loop", "shard_map_bucketed", "shard_map_psum", "zero1"],
}  # fmt: skip
"""Those that carry model state, by the workload whose statistics they compute; of those with local
ones, one of each way to average."""

MATRICES = {
    "data=2": ["python_loop", "jit_spmd", "nnx_jit", "shard_map_psum", "fsdp_spmd"],
    "data=1": ["pmap", "zero1"],
    "data=1,model=2": ["tensor_parallel_spmd"],
}
"""Those of other kinds whose Muon is proved, by the mesh."""

SOME = {
    Case("gpt2", "data=2", StepOptions("fp16")): ["jit_spmd", "fsdp_shard_map"],
    Case("gpt2", "data=2,model=2", StepOptions("fp16")): ["tensor_parallel_shard_map"],
    Case("gpt2", "fsdp=2,model=2", StepOptions("fp16")): ["fsdp_tensor_parallel_shard_map"],
    Case("gpt2", "data=2", SCANNED, THREE): ["jit_spmd", "nnx_jit", "shard_map_psum", "zero2"],
    Case("gpt2", "data=1,context=1"): ["context_ulysses"],
    Case("gpt2", "data=1,context=2", SCANNED, THREE): ["context_gathered"],
    Case("gpt2", "data=1,context=2", StepOptions("fp16")): ["context_ring"],
    Case("gpt2", "data=1,context=8", config=WIDE): ["context_ring"],
    Case("gpt2", "data=1,pipe=2", StepOptions("fp16", 2), PAIR): ["pipeline_zero_bubble"],
    Case("moe", "data=1,expert=1"): ["expert_all_to_all"],
    Case("moe", "data=1,expert=2", SCANNED): ["expert_tensor_parallel"],
    Case("moe", "data=1,expert=2", StepOptions("fp16")): ["expert_all_to_all"],
    Case("moe", "data=1,expert=8"): ["expert_all_to_all"],
    Case("moe", "data=2"): ["jit_spmd", "shard_map_psum"],
    Case("resnet", "data=2", StepOptions("bf16")): ["nnx_jit", "zero2"],
    Case("resnet", "data=2", StepOptions(microbatches=2)): ["jit_spmd", "nnx_jit_cached"],
    Case("resnet_local", "data=2", StepOptions("bf16")): ["pmap"],
}
"""Those that are proved for all of their kind in blocks where only the model's code is new, or the
mesh's shape. The others are proved with other models or meshes, and with `mlp` in each precision.
"""

PACKAGES = {"equinox_jit": "equinox"}
"""What some need that need not be installed."""

CASES = {
    "approximate": [],
    "data parallel": [
        Case("linear", "data=1"),
        Case("mlp", "data=4"),
        Case("mlp", "data=8"),
        Case("mlp", "data=2", StepOptions("bf16")),
        Case("mlp", "data=2", StepOptions("fp16")),
        Case("mlp", "data=2", StepOptions(microbatches=2, remat="full", clip_norm=0.1)),
        Case("vae", "data=4"),
        Case("gpt2", "data=2"),
    ],
    "fully sharded": [
        Case("linear", "data=1"),
        Case("mlp", "data=8"),
        Case("mlp", "data=2,fsdp=4"),
        Case("mlp", "fsdp=2", StepOptions("bf16")),
        Case("mlp", "data=2", StepOptions("fp16")),
        Case("mlp", "data=2,fsdp=2", StepOptions(microbatches=2, remat="full", clip_norm=0.1)),
        Case("vae", "fsdp=4"),
        Case("gpt2", "fsdp=2"),
        Case("gpt2", "fsdp=2", SCANNED, THREE),
    ],
    "tensor parallel": [
        Case("mlp", "data=8,model=1"),
        Case("mlp", "data=4,model=2"),
        Case("mlp", "data=2,model=4"),
        Case("mlp", "data=1,model=8"),
        Case("mlp", "data=2,model=2", StepOptions("bf16")),
        Case("mlp", "data=2,model=2", StepOptions("fp16")),
        Case("mlp", "data=2,model=2", StepOptions(microbatches=2, remat="full", clip_norm=0.1)),
        Case("vae", "data=2,model=4"),
        Case("gpt2", "data=2,model=2"),
        Case("gpt2", "data=1,model=2", SCANNED, THREE),
    ],
    "fully sharded and tensor parallel": [
        Case("mlp", "data=2,fsdp=2,model=2"),
        Case("mlp", "data=1,model=1"),
        Case("mlp", "data=4,model=2"),
        Case("mlp", "fsdp=2,model=4"),
        Case("mlp", "data=2,fsdp=4,model=1"),
        Case("mlp", "data=1,fsdp=1,model=8"),
        Case("mlp", "fsdp=2,model=2", StepOptions("bf16")),
        Case("mlp", "data=2,model=2", StepOptions("fp16")),
        Case("mlp", "fsdp=2,model=2", StepOptions(microbatches=2, remat="full", clip_norm=0.1)),
        Case("vae", "fsdp=2,model=4"),
        Case("gpt2", "data=2,fsdp=2,model=2"),
        Case("gpt2", "fsdp=2,model=2", SCANNED, THREE),
    ],
    "context parallel": [
        Case("gpt2", "data=2,context=2"),
        Case("gpt2", "data=2,context=4", config=WIDE),
        Case("gpt2", "data=1,context=2", StepOptions("bf16", 2, remat="full", clip_norm=0.1)),
    ],
    "expert parallel": [
        Case("moe", "data=2,expert=2"),
        Case("moe", "data=2,expert=4"),
        Case("moe", "data=1,expert=2", StepOptions("bf16", 2, remat="full", clip_norm=0.1)),
    ],
    "pipeline": [
        Case("gpt2", "data=2,pipe=2", StepOptions(microbatches=4), DEEP),
        Case("gpt2", "data=2,model=2,pipe=2", StepOptions(microbatches=2), DEEP),
        Case("gpt2", "data=1,pipe=2", StepOptions("bf16", 2, remat="full", clip_norm=0.1), DEEP),
    ],
    "other libraries": [
        Case("linear", "data=1"),
        Case("linear", "data=2", StepOptions(remat="full")),
        Case("mlp", "data=4"),
        Case("mlp", "data=8"),
        Case("mlp", "data=2", StepOptions("bf16")),
        Case("mlp", "data=2", StepOptions("fp16")),
        Case("mlp", "data=2", StepOptions(microbatches=2, remat="full", clip_norm=0.1)),
    ],
    "whole matrices": [
        Case("gpt2_muon", "data=2"),
        Case("gpt2_muon", "data=1"),
        Case("gpt2_muon", "data=2", config=THREE),
        Case("gpt2_muon", "data=8", config=PAIR),
        Case("gpt2_muon", "data=2", SCANNED, THREE),
        Case("gpt2_muon", "data=2", StepOptions("fp16")),
        Case("gpt2_muon", "data=2", StepOptions("bf16", 2, remat="full", clip_norm=0.1), PAIR),
    ],
}


def tiny_problem(case, precision):
    workload = WORKLOADS[case.workload]
    config = case.config or next(iter(workload.SIZES.values()))()
    more = {"scan_layers": True} if case.options.scan_layers else {}
    problem = workload.problem(config, BATCH, precision, case.options.remat, **more)
    return with_options(problem, case.options)


def block_of(case):
    problem = tiny_problem(case, case.options.precision)
    # As a worker does: drawing parameters takes longer than copying them.
    start, start_state = jax.device_get((problem.draw(), problem.draw_state()))
    problem = replace(problem, start=start, start_state=start_state)
    return problem, make_mesh(MeshShape.parse(case.mesh))


@pytest.fixture(scope="module")
def gates(programs):
    """A block's gate, made once."""
    made = {}

    def gate(case):
        if case not in made:
            with jax.enable_x64(True):
                exact = tiny_problem(case, "fp64")
                plain = replace(case.options, remat="", scan_layers=False)
                reference = tiny_problem(replace(case, options=plain), "fp64")
            problem, mesh = block_of(case)
            shards = MeshShape.parse(case.mesh).batch_shards
            proof = Gate(problem, exact, mesh, shards, case.options.precision, programs, reference)
            made[case] = problem, mesh, proof
        return made[case]

    return gate


ALWAYS = {
    "data parallel": "mlp-data=4-fp32",
    "fully sharded": "mlp-data=2,fsdp=4-fp32",
    "tensor parallel": "mlp-data=2,model=4-fp32",
    "fully sharded and tensor parallel": "mlp-data=2,fsdp=2,model=2-fp32",
    "other libraries": "mlp-data=4-fp32",
}
"""Proved in every run of the tests, for every implementation of a kind; the others in
`nox -s conformance`."""


def marks(kind, name, case):
    always = str(case) == ALWAYS.get(kind)
    return () if always else (pytest.mark.slow,)


def test_every_implementation_is_of_one_kind():
    assert sorted(name for names in KINDS.values() for name in names) == sorted(IMPLEMENTATIONS)


@pytest.mark.parametrize(
    ("name", "case"),
    [
        pytest.param(name, case, id=f"{case}-{name}", marks=marks(kind, name, case))
        for kind, names in KINDS.items()
        for case in CASES[kind]
        for name in sorted(names)
    ]
    + [
        pytest.param(name, case, id=f"{case}-{name}", marks=pytest.mark.slow)
        for workload, names in STATEFUL.items()
        for case in [Case(workload, "data=4")]
        for name in names
    ]
    + [
        pytest.param(name, case, id=f"{case}-{name}", marks=pytest.mark.slow)
        for case, names in SOME.items()
        for name in names
    ]
    + [
        pytest.param(name, case, id=f"{case}-{name}", marks=pytest.mark.slow)
        for mesh, names in MATRICES.items()
        for case in [Case("gpt2_muon", mesh)]
        for name in names
    ]
    + [
        pytest.param(name, case, id=f"{case}-{name}", marks=pytest.mark.slow)
        for name in ("pipeline_gpipe", "pipeline_1f1b")
        for case in [Case("gpt2_muon", "data=1,pipe=2", StepOptions(microbatches=2), PAIR)]
    ],
)
def test_passes_the_gate(gates, programs, name, case):
    pytest.importorskip(PACKAGES.get(name, "jax"))
    problem, mesh, gate = gates(case)
    implementation = IMPLEMENTATIONS[name]
    assert implementation.why_unsupported(problem, mesh) is None
    gate.prove_exact(implementation)
    gate.prove_rounding(implementation)
    with remembered_programs(programs):
        gate.prove_timed(
            implementation.build(problem, mesh), lambda: implementation.build(problem, mesh)
        )


def kind_of(name):
    return next(kind for kind, names in KINDS.items() if name in names)


SLOW_TO_BUILD = {"pipeline_interleaved", "pipeline_1f1b", "pipeline_zero_bubble"}
SLOW_TO_RUN_TWICE = {*SLOW_TO_BUILD, *LIKE_OTHERS, "pipeline_gpipe", "expert_all_to_all"}


def case_of(name):
    """A small block that the implementation can run."""
    return {
        "data parallel": Case("mlp", "data=4"),
        "fully sharded": Case("mlp", "data=2,fsdp=4"),
        "tensor parallel": Case("mlp", "data=2,model=4"),
        "fully sharded and tensor parallel": Case("mlp", "data=2,fsdp=2,model=2"),
        "other libraries": Case("mlp", "data=4"),
        "approximate": Case("mlp", "data=4"),
        "whole matrices": Case("gpt2_muon", "data=2"),
        "context parallel": Case("gpt2", "data=1,context=2"),
        "expert parallel": Case("moe", "data=1,expert=2"),
        "pipeline": Case(
            "gpt2",
            "data=2,pipe=2",
            StepOptions(microbatches=4),
            DEEP if name in SLOW_TO_BUILD else PAIR,
        ),
    }[kind_of(name)]


@pytest.mark.parametrize(
    "name",
    [
        *(name for name in IMPLEMENTATIONS if name not in SLOW_TO_RUN_TWICE),
        *slow(*sorted(SLOW_TO_RUN_TWICE)),
    ],
)
def test_donates_its_state_and_shares_nothing_with_another_build(programs, name):
    """Stepping one must not delete or move the other's state: the A/A twin relies on it."""
    pytest.importorskip(PACKAGES.get(name, "jax"))
    problem, mesh = block_of(case_of(name))
    if kind_of(name) not in {*ALWAYS, "whole matrices"}:  # else it is compiled already, or Muon's
        problem = replace(problem, optimizer=optax.sgd(1e-2, momentum=0.9))
    with remembered_programs(programs):
        one, two = (IMPLEMENTATIONS[name].build(problem, mesh) for _ in range(2))
        start = jax.device_get(two.params(two.state))
        before = [x for x in jax.tree.leaves(one.state) if isinstance(x, jax.Array)]
        jax.block_until_ready(one.step(one.state, one.place(problem.batch(0)))[1])
    assert before
    assert all(leaf.is_deleted() for leaf in before)
    jax.tree.map(np.testing.assert_array_equal, start, jax.device_get(two.params(two.state)))


@every_implementation
def test_says_why_it_cannot_use_a_mesh_it_does_not_know(name):
    problem, _ = block_of(Case("mlp", "data=2"))
    meshes = {
        "data parallel": "data=2,pipe=4",
        "fully sharded": "data=2,fsdp=2,pipe=2",
        "tensor parallel": "data=2,model=2,pipe=2",
        "fully sharded and tensor parallel": "data=2,model=2,pipe=2",
        "context parallel": "data=2,context=2,pipe=2",
        "expert parallel": "data=2,expert=2,pipe=2",
        "pipeline": "data=2,pipe=2,fsdp=2",
        "other libraries": "data=2,pipe=4",
        "whole matrices": "data=2,pipe=4",
        "approximate": "data=2,pipe=4",
    }
    mesh = make_mesh(MeshShape.parse(meshes[kind_of(name)]))
    reason = IMPLEMENTATIONS[name].why_unsupported(problem, mesh)
    assert reason is not None
    unknown = "fsdp" if kind_of(name) == "pipeline" else "pipe"
    assert f"this mesh also has {unknown}" in reason


@pytest.mark.parametrize("name", sorted(KINDS["other libraries"]))
def test_says_which_models_and_packages_it_lacks(name, monkeypatch):
    problem, mesh = block_of(Case("gpt2", "data=2"))
    assert "linear and mlp only" in IMPLEMENTATIONS[name].why_unsupported(problem, mesh)
    if name in PACKAGES:
        monkeypatch.setitem(sys.modules, PACKAGES[name], None)
        problem, mesh = block_of(Case("mlp", "data=2"))
        reason = IMPLEMENTATIONS[name].why_unsupported(problem, mesh)
        assert reason == f"the package {PACKAGES[name]} is not installed (extra `equinox`)"


@pytest.mark.parametrize(
    ("name", "mesh", "parts"),
    [
        ("zero1", "data=2", "data=2"),
        ("zero2", "data=2", "data=2"),
        ("fsdp_shard_map", "data=2,fsdp=4", "fsdp=4"),
        ("tensor_parallel_shard_map", "data=2,model=2", "model=2"),
        ("fsdp_tensor_parallel_shard_map", "data=2,model=2", "data=2 and model=2"),
        ("pipeline_gpipe", "data=1,model=2,pipe=2", "model=2"),
    ],
)
def test_no_device_updates_a_shard_of_a_matrix(name, mesh, parts):
    reasons = [
        IMPLEMENTATIONS[name].why_unsupported(*block_of(case))
        for workload in ("gpt2", "gpt2_muon")
        for case in [Case(workload, mesh, StepOptions(microbatches=2), PAIR)]
    ]
    update = f"each device would update its shards over {parts} by itself"
    assert reasons == [None, f"the optimizer needs whole matrices, and {update}"]


def test_no_device_owns_layers_in_vain():
    reasons = [
        IMPLEMENTATIONS["owner_computes"].why_unsupported(*block_of(case))
        for case in (Case("mlp", "data=2"), Case("gpt2_muon", "data=2"))
    ]
    assert reasons == ["no update needs whole arrays, and zero1 divides the work evenly", None]


@pytest.mark.slow
def test_shards_of_matrices_would_be_found_wrong(gates):
    gate = gates(Case("gpt2_muon", "data=2"))[2]
    with pytest.raises(WrongStepError, match="the optimizer is not applied as given"):
        gate.prove_exact(IMPLEMENTATIONS["zero1"])


@every_implementation
def test_reads_like_a_page(name):
    source = inspect.getsource(IMPLEMENTATIONS[name])
    docstring = ast.get_docstring(ast.parse(source))
    assert len(source.splitlines()) <= 110
    assert docstring
    assert len(docstring.splitlines()[0]) <= 100
    moves = ("all-reduce", "psum", "pmean", "copy of the parameters", "reduce-scatter", "ppermute")
    assert any(word in docstring for word in moves), "what is communicated?"


@every_implementation
def test_a_mesh_without_its_axis_is_unsupported_not_a_crash(name):
    problem, _ = block_of(Case("mlp", "data=2"))
    reason = IMPLEMENTATIONS[name].why_unsupported(problem, make_mesh(MeshShape.parse("model=2")))
    assert reason is not None
    assert "data" in reason.removesuffix(", which this mesh lacks")


@pytest.mark.parametrize("name", sorted(APPROXIMATE))
def test_what_is_approximate_fails_the_proof_of_exact_steps(gates, name):
    gate = gates(Case("mlp", "data=4"))[2]
    with pytest.raises(WrongStepError):
        gate.prove_exact(IMPLEMENTATIONS[name])


def test_the_readmes_example_passes_the_gate(gates, tmp_path):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    (example,) = [block for block in blocks if "def build(" in block]
    (tmp_path / "my_step.py").write_text(example)
    problem, mesh, gate = gates(Case("mlp", "data=4"))
    implementation = load(tmp_path / "my_step.py")
    assert implementation.why_unsupported(problem, mesh) is None
    gate.prove_exact(implementation)
    gate.prove_timed(
        implementation.build(problem, mesh), lambda: implementation.build(problem, mesh)
    )


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


@pytest.mark.parametrize(
    ("shards", "message"), [(3, "does not divide evenly into 3"), (0, "at least 1")]
)
def test_reference_function_rejects_bad_shards(shards, message):
    x, y = np.zeros((4, 3), "f"), np.zeros((4, 1), "f")
    with pytest.raises(ValueError, match=message):
        distributed_train_step(0, x, y, shards, 0.1)


def test_shard_map_checks_replication_unless_each_device_updates_by_its_own_gradients():
    paths = implementation_files([])
    unchecked = {name for name, path in paths.items() if "check_vma=False" in path.read_text()}
    assert unchecked == {"top_k", "local_steps"}


def test_a_compressed_step_keeps_no_array_beside_its_state():
    problem, mesh = block_of(case_of("compressed_bf16"))
    before = {id(each) for each in jax.live_arrays()}
    step = IMPLEMENTATIONS["compressed_bf16"].build(problem, mesh)
    gc.collect()
    held = before | {id(each) for each in jax.tree.leaves(step.state)}
    kept = [each.shape for each in jax.live_arrays() if id(each) not in held and each.size > 1]
    assert not kept
