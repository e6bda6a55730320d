"""What is read of a step that was compiled and not run is what is read of one that was run."""

from __future__ import annotations

import re
from textwrap import dedent

import jax
import pytest

from bench.records.cells import Block, StepOptions
from bench.records.mesh import MeshShape
from bench.records.paths import ROOT
from bench.worker.answer import compile_only
from bench.worker.answer.abstract_step import NotAbstractError, abstract_step, stand_in
from bench.worker.file_loader import implementation_files, load
from bench.worker.problems import load_workload, make_mesh, make_problem
from bench.worker.read.programs import communication, compilers_cost, product_flops
from tests.slow import LIKE_OTHERS, slow

MESHES = {
    "fsdp_shard_map": "data=2,fsdp=2",
    "fsdp_spmd": "data=2,fsdp=2",
    "tensor_parallel_shard_map": "data=2,model=2",
    "tensor_parallel_spmd": "data=2,model=2",
    "tensor_parallel_spmd_activations": "data=2,model=2",
    **dict.fromkeys(
        ("fsdp_tensor_parallel_shard_map", "fsdp_tensor_parallel_spmd"), "data=2,fsdp=2,model=2"
    ),
    **dict.fromkeys(
        ("pipeline_gpipe", "pipeline_interleaved", "pipeline_1f1b", "pipeline_zero_bubble"),
        "data=2,pipe=2",
    ),
    **dict.fromkeys(("context_gathered", "context_ring", "context_ulysses"), "data=2,context=2"),
    **dict.fromkeys(
        ("expert_all_to_all", "expert_replicated", "expert_tensor_parallel"), "data=2,expert=2"
    ),
}
"""Of implementations that are for others than `data=4`."""

ALL = sorted(
    name
    for name, path in implementation_files([]).items()
    if name != "python_loop" and path.parent.name != "foreign"
)
EACH_WAY = ("pmap", "fsdp_shard_map", "explicit_sharding", "nnx_jit_cached", "tensor_parallel_spmd")
"""One of each way to say how arrays are divided; `slow` tries more, with a transformer."""


def request(implementation, mesh="data=4", workload="mlp", size="tiny", batch=16, **more):
    return {
        "workload": workload,
        "size": size,
        "mesh": mesh,
        "batch": batch,
        "options": "fp32,microbatches=2",
        "implementation": implementation,
        "implementation_paths": [],
        "workload_paths": [],
        "elsewhere": True,
        **more,
    }


def outside(folder, text):
    """A request for a file of one's own."""
    path = folder / "own_step.py"
    path.write_text(dedent(text), encoding="utf-8")
    return request("own_step", implementation_paths=[str(path)])


def in_both_ways(asked):
    """A cell's step compiled without running it, and run."""
    block = Block.of(asked)
    mesh = make_mesh(block.mesh)
    problem = make_problem(load_workload(block, []), block, "fp32")
    implementation = load(
        implementation_files(asked["implementation_paths"])[asked["implementation"]]
    )
    batch = stand_in(problem.batch(0), block.batch)
    read = compile_only.compile_step(implementation, problem, mesh, batch)
    return read, compile_only.run_step(implementation, problem, mesh), mesh


def check_equal(asked):
    read, run, mesh = in_both_ways(asked)
    assert communication(read.programs, mesh) == communication(run.programs, mesh) != []
    assert compilers_cost(read.programs) == compilers_cost(run.programs)
    assert product_flops(read.programs) == product_flops(run.programs)
    memory = compile_only.largest_program
    assert memory(read.programs) == memory(run.programs)
    assert read.state_bytes == run.state_bytes
    if run.traced_flops:  # a step that sets its mesh cannot be traced where it runs
        assert read.traced_flops == run.traced_flops


@pytest.mark.parametrize("implementation", [*EACH_WAY[:2], *slow(*EACH_WAY[2:])])
def test_nothing_need_run(implementation):
    check_equal(request(implementation, MESHES.get(implementation, "data=4")))


@pytest.mark.slow
@pytest.mark.parametrize(
    "implementation", sorted({*ALL} - LIKE_OTHERS - {"equinox_jit", "linen_jit"})
)
def test_nothing_need_run_for_a_transformer(implementation):
    mesh = MESHES.get(implementation, "data=4")
    workload = ("gpt2", "deep" if "pipe" in mesh else "tiny")
    workload = ("moe", "tiny") if "expert" in mesh else workload
    check_equal(request(implementation, mesh, *workload, 8))


def test_the_readmes_example_is_read(tmp_path):
    text = (ROOT / "README.md").read_text("utf-8")
    found = re.search(r"--implementation-path .*?```python\n(.*?)```", text, re.DOTALL)
    check_equal(outside(tmp_path, found[1]))


OWN = """
import jax
import numpy as np
import optax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from bench.contract import TrainStep
from bench.contract.placement import create_data_parallel_sharding, place_batch_on_shards

def why_unsupported(problem, mesh):
    return None

def build(problem, mesh):
    params, loss_fn = problem.functional()
    params = {placed}
    opt_state = {opt_state}
    sharding = create_data_parallel_sharding(mesh)

    @jax.jit
    def step(state, batch):
        params, opt_state = state
        loss, grads = jax.value_and_grad(loss_fn)(params, batch)
        updates, opt_state = problem.optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), loss

    return TrainStep(
        state=(params, opt_state),
        place=lambda batch: place_batch_on_shards(batch, sharding),
        step=step,
        params=lambda state: state[0],
    )
"""
REPLICATED = "jax.device_put(params, NamedSharding(mesh, P()))"


def test_what_no_sharding_was_given_to_is_as_the_compiler_decides(tmp_path):
    """So are results of single operations."""
    placed = f"jax.tree.map(lambda x: -x, jax.jit(lambda p: p)({REPLICATED}))"
    init = "jax.jit(problem.optimizer.init, out_shardings=NamedSharding(mesh, P()))(params)"
    check_equal(outside(tmp_path, OWN.format(placed=placed, opt_state=init)))


@pytest.mark.parametrize("init", ["problem.optimizer.init", "jax.jit(problem.optimizer.init)"])
def test_what_nothing_divides_is_not_guessed(tmp_path, monkeypatch, init):
    """Zeros like a placed array are as that is, which does not show where they are traced."""
    asked = outside(tmp_path, OWN.format(placed=REPLICATED, opt_state=f"{init}(params)"))
    ran = compile_only.answer(asked)
    assert ran["row"]["state_bytes"] > 0
    monkeypatch.setattr(compile_only, "RUN_DEVICES", 2)
    refused = compile_only.answer(asked)
    assert refused["row"] is None
    assert "nothing shows how its state[1][0].mu['layers'][0]" in refused["reason"]
    assert "out_shardings" in refused["reason"]


def test_a_build_that_wants_values_is_run_where_it_is_small(tmp_path, monkeypatch):
    placed = REPLICATED.replace("params,", "jax.tree.map(np.asarray, params),")
    init = "jax.device_put(problem.optimizer.init(params), NamedSharding(mesh, P()))"
    asked = outside(tmp_path, OWN.format(placed=placed, opt_state=init))
    assert compile_only.answer(asked)["row"]["communication"][0]["kind"] == "all-reduce"
    for limit in ("RUN_DEVICES", "RUN_FLOPS"):
        with monkeypatch.context() as patch:
            patch.setattr(compile_only, limit, 2)
            assert compile_only.answer(asked)["reason"].startswith("TracerArrayConversionError")


def test_a_step_of_many_programs_has_a_reason():
    shape = MeshShape.parse("data=4")
    block = Block("mlp", "tiny", shape, 16, StepOptions())
    problem = make_problem(load_workload(block, []), block, "fp32")
    loop = load(implementation_files([])["python_loop"])
    with pytest.raises(NotAbstractError, match=r"not one compiled function but 10 operations"):
        abstract_step(loop, problem, make_mesh(shape), problem.batch(0))
    answer = compile_only.answer(request("python_loop"))
    assert answer["reason"] == "none of its programs shows what its devices communicate"
    # What it holds here is known all the same.
    here = compile_only.answer(request("python_loop", elsewhere=False))
    assert here["row"]["memory_bytes"] > here["row"]["state_bytes"] / 4 > 0


def sums(implementation, mesh, precision="fp32"):
    """Payload by kind and dtype."""
    asked = request(implementation, mesh, options=precision)
    answer = compile_only.answer(asked)
    assert answer["row"] is not None, answer["reason"]
    found = {}
    for row in answer["row"]["communication"]:
        key = (row["kind"], *row["dtypes"])
        found[key] = found.get(key, 0) + row["payload_bytes"]
    return found


@pytest.mark.parametrize(
    ("implementation", "mesh"),
    [("jit_spmd", "data=4"), *slow(("tensor_parallel_shard_map", "data=2,model=2"))],
)
def test_bfloat16_is_sent_as_it_is_elsewhere(implementation, mesh):
    """XLA:CPU sends it as float32."""
    exact, short = sums(implementation, mesh), sums(implementation, mesh, "bf16")
    assert set(exact) == {("all-reduce", "f32")}
    wide = short.pop(("all-reduce", "f32"), 0)
    assert short == {("all-reduce", "bf16"): (exact["all-reduce", "f32"] - wide) // 2}
    assert short["all-reduce", "bf16"] > 0


def test_what_is_compiled_for_here_is_read_as_it_is_here():
    def read(implementation, mesh, precision):
        asked = request(implementation, mesh, options=precision, elsewhere=False)
        communicated = compile_only.compile_only(asked).communication
        return {(row["kind"], dtype) for row in communicated for dtype in row["dtypes"]}

    assert read("tensor_parallel_shard_map", "data=2,model=2", "bf16") == {("all-reduce", "f32")}
    assert ("reduce-scatter", "f32") not in read("fsdp_spmd", "fsdp=4", "fp32")


def test_gradients_that_are_reduced_for_slices_alone_are_scattered():
    written, decided = (sums(name, "fsdp=4") for name in ("fsdp_shard_map", "fsdp_spmd"))
    key = ("reduce-scatter", "f32")
    assert decided[key] == written[key] > 10 * decided["all-reduce", "f32"]
    assert set(sums("jit_spmd", "data=4")) == {("all-reduce", "f32")}


def test_what_cannot_run_says_so():
    answer = compile_only.answer(request("fsdp_spmd", "data=2,model=2"))
    assert (answer["row"], answer["lack"]) == (None, "unsupported")
    assert answer["reason"].startswith("distributes only over data")


def test_a_compiler_that_has_too_little_memory_says_so(monkeypatch):
    def compile_(cell):
        raise jax.errors.JaxRuntimeError(
            "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 63.80G of 30.75G"
        )

    monkeypatch.setattr(compile_only, "read_programs", compile_)
    answer = compile_only.answer(request("jit_spmd"))
    assert (answer["row"], answer["lack"]) == (None, "oom")
    assert answer["reason"].startswith("RESOURCE_EXHAUSTED: Ran out of memory")


def test_no_array_is_made_and_jax_is_left_as_it_was():
    sharding, set_mesh = vars(jax.core.Tracer)["sharding"], jax.set_mesh
    before = {id(array) for array in jax.live_arrays()}
    row = compile_only.compile_only(request("nnx_jit"))
    made = [array for array in jax.live_arrays() if id(array) not in before]
    # Numbers that jax keeps, and none of the 476 parameters.
    assert row.state_bytes > 476 * 4
    assert sum(array.nbytes for array in made) < 200
    assert vars(jax.core.Tracer)["sharding"] is sharding
    assert jax.set_mesh is set_mesh


def test_a_stand_in_has_the_shapes_and_no_memory():
    block = Block("gpt2", "tiny", MeshShape.parse("data=1"), 1, StepOptions())
    problem = make_problem(load_workload(block, []), block, "fp32")
    batch = stand_in(problem.batch(0), 10**6)
    assert (batch.shape, batch.dtype) == ((10**6, 17), problem.batch(0).dtype)
    assert batch.strides == (0, 0)
