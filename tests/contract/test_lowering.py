"""Steps of gpt2-124m in bf16, lowered for accelerators that are not here.

Lowering shows what a program asks for: kernels, donation, dtypes of matrix products, and the
collectives that an implementation writes itself. It does not show what a compiler for that platform
makes of it, for which there must be a device: fusions, memory, and the collectives that XLA's
partitioner inserts for the implementations of AUTOMATIC.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace

import jax
import pytest

from bench.contract import divided_sequences
from bench.contract.logical_axes import shapes_of_params
from bench.contract.workloads import gpt2
from bench.records.mesh import MeshShape
from bench.worker.answer.abstract_step import NotAbstractError, abstract_step, stand_in
from bench.worker.file_loader import implementation_files, load
from bench.worker.problems import make_mesh
from tests.slow import slow

FILES = implementation_files([])
BATCH = 32

AUTOMATIC = {
    *("jit_spmd", "nnx_jit", "nnx_jit_cached", "explicit_sharding", "fsdp_spmd"),
    *("tensor_parallel_spmd", "tensor_parallel_spmd_activations", "fsdp_tensor_parallel_spmd"),
}
"""XLA's partitioner inserts their collectives, after lowering."""

FSDP = "all_gather reduce_scatter all_reduce"
PIPELINE = "collective_permute reduce_scatter all_gather all_reduce"
WRITTEN = {
    **dict.fromkeys(("pmap", "shard_map_pmean", "shard_map_psum"), "all_reduce"),
    **dict.fromkeys(("shard_map_bucketed", "shard_map_in_backward"), "all_reduce"),
    "tensor_parallel_shard_map": "all_reduce",
    **dict.fromkeys(("zero1", "zero2"), "reduce_scatter all_reduce"),
    **dict.fromkeys(("fsdp_shard_map", "fsdp_tensor_parallel_shard_map"), FSDP),
    "hierarchical_shard_map": FSDP,
    **dict.fromkeys(("compressed_bf16", "compressed_int8"), "all_to_all all_gather all_reduce"),
    "top_k": "all_gather all_reduce",
    "local_steps": "all_reduce",
    "context_ring": "collective_permute all_reduce",
    "context_gathered": FSDP,
    "context_ulysses": "all_to_all all_reduce",
    **dict.fromkeys(("pipeline_1f1b", "pipeline_zero_bubble"), "collective_permute all_reduce"),
    **dict.fromkeys(("pipeline_gpipe", "pipeline_interleaved"), PIPELINE),
}
"""Collectives of the others on eight devices."""

MESHES = {
    **dict.fromkeys(("fsdp_shard_map", "fsdp_spmd"), "data=2,fsdp=4"),
    "hierarchical_shard_map": "data=2,fsdp=4",
    **dict.fromkeys(
        ("tensor_parallel_spmd", "tensor_parallel_spmd_activations", "tensor_parallel_shard_map"),
        "data=2,model=4",
    ),
    **dict.fromkeys(
        ("fsdp_tensor_parallel_spmd", "fsdp_tensor_parallel_shard_map"), "data=2,fsdp=2,model=2"
    ),
    **dict.fromkeys(("context_ring", "context_gathered", "context_ulysses"), "data=2,context=4"),
    **dict.fromkeys(
        ("pipeline_gpipe", "pipeline_1f1b", "pipeline_interleaved", "pipeline_zero_bubble"),
        "data=4,pipe=2",
    ),
}
"""Of eight devices, where they are not `data=8`."""

BY_SCORES = {"context_ring", "context_gathered"}
"""Attend to parts of a sequence without a kernel."""

IN_LOOPS = {"pipeline_gpipe", "pipeline_1f1b", "pipeline_interleaved", "pipeline_zero_bubble"}
"""Have their blocks in loops, which are in the text once."""


@dataclass(frozen=True)
class Case:
    """A step and where it is lowered for."""

    name: str
    mesh: str
    platform: str
    layers: int = 12

    def __str__(self) -> str:
        return f"{self.name}-{self.mesh}-{self.platform}-{self.layers}"


QUICK = [
    Case("jit_spmd", "data=1", "cuda", 2),
    Case("jit_spmd", "data=1", "tpu", 2),
    Case("jit_spmd", "data=8", "cuda", 2),
    Case("fsdp_shard_map", "data=2,fsdp=4", "cuda", 2),
    Case("explicit_sharding", "data=8", "cuda", 2),
]
SLOW = [
    case
    for name in sorted(AUTOMATIC | WRITTEN.keys())
    for mesh in ("data=1", MESHES.get(name, "data=8"))
    for platform in (("cuda",) if mesh == "data=1" else ("cuda", "tpu"))
    # All twelve layers once; they are equal.
    for layers in [12 if name == "jit_spmd" else 4 if name in IN_LOOPS else 2]
    for case in [Case(name, mesh, platform, layers)]
    if case not in QUICK and ("data=1" not in mesh or name not in MESHES)
]


@pytest.fixture
def cudnn(monkeypatch):
    """As with cuDNN, which lowering does not call."""
    monkeypatch.setattr(
        "jax._src.cudnn.fused_attention_stablehlo.check_cudnn_version", lambda: 91_000
    )
    divided_sequences.cudnn_is_here.cache_clear()
    yield
    divided_sequences.cudnn_is_here.cache_clear()


def lowered(case):
    mesh = make_mesh(MeshShape.parse(case.mesh))
    config = replace(gpt2.SIZES["124m"](), layers=case.layers)
    problem = replace(
        gpt2.problem(config, BATCH, "bf16"), microbatches=4 if case.name in IN_LOOPS else 1
    )
    implementation = load(FILES[case.name])
    assert implementation.why_unsupported(problem, mesh) is None
    batch = stand_in(gpt2.problem(config, 1, "bf16").batch(0), BATCH)
    traced, *_ = abstract_step(implementation, problem, mesh, batch)
    return problem, traced.lower(lowering_platforms=(case.platform,))


def counts(pattern, text):
    return Counter(re.findall(pattern, text))


@pytest.mark.parametrize("case", [*QUICK, *slow(*SLOW)], ids=str)
@pytest.mark.usefixtures("cudnn")
def test_lowers_for_an_accelerator(case):
    problem, program = lowered(case)
    text = program.as_text()
    alone = MeshShape.parse(case.mesh).size == 1
    calls = counts(r"stablehlo\.custom_call @([\w$]+)", text)
    if case.name in BY_SCORES or case.platform == "tpu":
        assert "CustomSPMDPartitioning" not in calls
    elif not alone and case.name in AUTOMATIC - {"explicit_sharding"}:
        # The partitioner asks jax to divide the kernel over batch and heads.
        assert calls["CustomSPMDPartitioning"] == 2 * case.layers
    elif case.name in IN_LOOPS:
        assert calls["__cudnn$fmhaSoftmaxBackward"] == 1
    else:
        assert calls["__cudnn$fmhaSoftmax"] == case.layers
        assert calls["__cudnn$fmhaSoftmaxBackward"] == case.layers
    fused = calls.keys() & {"__cudnn$fmhaSoftmax", "CustomSPMDPartitioning"}
    if fused and case.name not in IN_LOOPS:
        assert "x1024x1024x" not in text, "scores of all pairs of tokens"

    dtypes = counts(r"dot_general.*\(tensor<[\dx]*x(\w+)>, tensor<[\dx]*x(\w+)>\)", text)
    assert dtypes.keys() <= {("bf16", "bf16")}

    donated = text.count("tf.aliasing_output") + text.count("jax.buffer_donor")
    parameters = len(jax.tree.leaves(shapes_of_params(problem)))
    if case.name in IN_LOOPS:  # blocks are stacked
        parameters -= 12 * (case.layers - 1)
    assert donated >= 3 * parameters, "parameters and the moments of Adam"

    if not alone:
        kinds = {"all_reduce", "all_gather", "reduce_scatter", "collective_permute", "all_to_all"}
        found = {kind for kind in kinds if f"stablehlo.{kind}" in text}
        assert found == set(WRITTEN.get(case.name, "").split())


@pytest.mark.usefixtures("cudnn")
def test_a_loop_over_devices_says_that_it_cannot_be_lowered():
    with pytest.raises(NotAbstractError, match="not one compiled function"):
        lowered(Case("python_loop", "data=8", "cuda", 1))


def test_every_implementation_is_lowered_or_says_why_not():
    # As above; and without gpt2, or for Muon alone.
    other = {"python_loop", "equinox_jit", "linen_jit", "owner_computes"}
    other |= {name for name in FILES if name.startswith(("expert_", "torch_"))}  # nor these
    assert {*FILES} == AUTOMATIC | WRITTEN.keys() | other
