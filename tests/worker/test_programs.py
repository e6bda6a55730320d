"""What a step's programs say of themselves: communication by axis, bytes on the wire, cost."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jaxlib._hlo import hlo_module_from_text

from bench.records.collective_kinds import bus_factor
from bench.records.mesh import MeshShape
from bench.worker.problems import make_mesh
from bench.worker.read.collectives import Collective
from bench.worker.read.programs import (
    FirstCall,
    axes_of,
    communication,
    compilers_cost,
    library_kernels,
    live_programs,
    new_programs,
    product_flops,
    program_figures,
)

MESH = MeshShape.parse("data=2,model=2,pipe=2")


@pytest.mark.parametrize(
    ("kind", "groups", "axes"),
    [
        ("all-reduce", ((0, 4), (1, 5), (2, 6), (3, 7)), ("data",)),
        ("all-reduce", ((0, 2), (1, 3), (4, 6), (5, 7)), ("model",)),
        ("all-gather", ((0, 1, 4, 5), (2, 3, 6, 7)), ("data", "pipe")),
        ("all-reduce", ((7, 6, 5, 4, 3, 2, 1, 0),), ("data", "model", "pipe")),
        ("collective-permute", ((0, 1), (2, 3)), ("pipe",)),
        ("collective-permute", ((0, 2), (6, 4)), ("model",)),
        ("all-reduce", ((0, 1, 2), (3, 4, 5)), ()),
    ],
)
def test_groups_are_told_by_axes(kind, groups, axes):
    one = Collective(kind, ("f32",), 4, groups, 1, returned=False)
    assert axes_of(one, make_mesh(MESH)) == axes


@pytest.mark.parametrize(
    ("kind", "sent"),
    [
        ("all-reduce", 150.0),
        ("all-gather", 75.0),
        ("reduce-scatter", 75.0),
        ("all-to-all", 75.0),
        ("collective-permute", 100.0),
    ],
)
def test_bytes_on_a_ring(kind, sent):
    assert 100 * bus_factor(kind, 4) == sent


def test_collectives_of_a_kind_over_the_same_axes_are_added_up():
    mesh = make_mesh(MeshShape.parse("data=2,model=2"))

    def local(x):
        def over_model(total, _):
            return jax.lax.psum(total, "model"), None

        return jax.lax.psum(jax.lax.scan(over_model, x, None, length=3)[0], "data")

    step = jax.jit(
        jax.shard_map(local, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False),
    )
    before = live_programs()
    step(jnp.ones((4, 4))).block_until_ready()
    found = communication(new_programs(live_programs(), before), mesh)
    by_axes = {tuple(row["axes"]): row for row in found}
    assert set(by_axes) == {("data",), ("model",)}
    model = by_axes["model",]
    assert (model["kind"], model["members"], model["dtypes"]) == ("all-reduce", 2, ["f32"])
    assert (model["count"], model["payload_bytes"], model["wire_bytes"]) == (3, 3 * 64, 3 * 64)
    assert by_axes["data",]["count"] == 1
    assert (model["times"], by_axes["data",]["times"]) == (3, 1)


def test_the_compilers_count_is_of_all_devices_and_programs():
    mesh = make_mesh(MeshShape.parse("data=4"))
    sharding = jax.NamedSharding(mesh, P("data"))
    x = jax.device_put(jnp.ones((8, 16)), sharding)
    w = jax.device_put(jnp.ones((16, 32)), jax.NamedSharding(mesh, P()))
    before = live_programs()
    jax.jit(jnp.dot)(x, w).block_until_ready()
    programs = new_programs(live_programs(), before)
    cost = compilers_cost(programs)
    assert cost["flops"] == pytest.approx(2 * 8 * 16 * 32, rel=0.01)
    assert cost["accessed_bytes"] >= 4 * (8 * 16 + 8 * 32)
    assert compilers_cost([*programs, *programs])["flops"] == 2 * cost["flops"]


def test_a_backend_without_figures_has_no_cost():
    def unimplemented():
        raise jax.errors.JaxRuntimeError("UNIMPLEMENTED")

    assert compilers_cost([SimpleNamespace(cost_analysis=unimplemented)]) is None
    assert compilers_cost([]) is None


def compiled(function, *arguments):
    return [jax.jit(function).lower(*arguments).compile().runtime_executable()]


def test_what_was_compiled_before_the_first_call_is_unknown_unless_it_is_the_step_itself():
    mesh = make_mesh(MeshShape.parse("data=2"))

    @jax.shard_map(mesh=mesh, in_specs=(P(), P("data")), out_specs=(P(), P()))
    def step(state, batch):
        return state + jax.lax.psum(batch.sum(), "data"), jax.lax.psum(batch.sum(), "data")

    state = jax.device_put(jnp.zeros(()), NamedSharding(mesh, P()))
    batch = jax.device_put(jnp.ones(8), NamedSharding(mesh, P("data")))
    plain = FirstCall(jax.jit(step))
    plain(state, batch)
    ahead = jax.jit(step).lower(state, batch).compile()
    compiled, wrapped = FirstCall(ahead), FirstCall(partial(ahead))
    compiled(state, batch)
    wrapped(state, batch)
    assert plain.compile["compile_s"] > 0
    assert compiled.compile is wrapped.compile is None, "not 0 s"
    figures = program_figures(plain.programs, mesh)
    assert [row["kind"] for row in figures["communication"]] == ["all-reduce"]
    assert program_figures(compiled.programs, mesh) == figures
    assert program_figures(wrapped.programs, mesh) == {}, "not a step without collectives"


def test_products_are_counted_as_often_as_they_run_and_where_they_do():
    """Large ones: XLA:CPU makes other operations of small products."""
    mesh = make_mesh(MeshShape.parse("data=2,model=4"))
    w = jnp.ones((128, 128))
    product = 2 * 256 * 128 * 128

    def steps(x, w):
        return jax.lax.scan(lambda x, _: (jnp.tanh(x @ w), None), x, None, length=5)[0]

    def branches(x, w):
        inside = lambda x: jax.lax.cond(x[0, 1] > 0, lambda x: x @ w @ w, lambda x: x, x)  # noqa: E731
        return jax.lax.cond(x[0, 0] > 0, inside, lambda x: x, x)

    x = jnp.ones((256, 128))
    assert product_flops(compiled(steps, x, w)) == 5 * product
    assert product_flops(compiled(branches, x, w), 0.25) == 2 * product / 4
    # Over `model` nothing is divided, so that its four devices compute the same.
    x = jax.device_put(x, NamedSharding(mesh, P("data")))
    assert product_flops(compiled(steps, x, jax.device_put(w, NamedSharding(mesh, P())))) == (
        4 * 5 * product
    )


def test_kernels_of_libraries_are_the_targets_of_custom_calls():
    @jax.jit
    def called(x):
        return jnp.linalg.cholesky(x @ x.T + jnp.eye(8))

    found = library_kernels(compiled(called, jnp.ones((8, 8))))
    assert found
    assert all("potrf" in name for name in found)
    assert library_kernels(compiled(jnp.tanh, jnp.ones(8))) == []


def test_a_convolution_is_counted_by_its_kernel():
    image, kernel = jnp.ones((2, 16, 16, 8)), jnp.ones((3, 3, 8, 32))

    def convolve(image, kernel):
        return jax.lax.conv_general_dilated(
            image, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    expected = 2 * (2 * 16 * 16 * 32) * (3 * 3 * 8)
    assert product_flops(compiled(convolve, image, kernel)) == expected


@pytest.mark.parametrize("argument", [0, 1])
def test_zeros_that_the_gradient_of_a_strided_convolution_inserts_are_no_work(argument):
    image, kernel = jnp.ones((2, 16, 16, 8)), jnp.ones((3, 3, 8, 32))

    def convolved(image, kernel):
        return jax.lax.conv_general_dilated(
            image, kernel, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        ).sum()

    expected = 2 * (2 * 8 * 8 * 32) * (3 * 3 * 8)
    assert product_flops(compiled(jax.grad(convolved, argument), image, kernel)) == expected


@pytest.mark.parametrize(
    ("made", "given", "target"),
    [
        ("2,8,8,32", ("2,16,16,8", "3,3,8,32"), "convForward"),
        ("2,16,16,8", ("2,8,8,32", "3,3,8,32"), "convBackwardInput"),
        ("3,3,8,32", ("2,16,16,8", "2,8,8,32"), "convBackwardFilter"),
    ],
)
def test_a_convolution_of_cudnn_counts_what_the_forward_one_does(made, given, target):
    x, y = given
    text = f"""HloModule jit_step
ENTRY e {{ x = f32[{x}]{{3,2,1,0}} parameter(0)
 y = f32[{y}]{{3,2,1,0}} parameter(1)
 ROOT z = (f32[{made}]{{3,2,1,0}}, u8[64]{{0}}) custom-call(x, y), window={{size=3x3 stride=2x2
   pad=0_1x0_1}}, dim_labels=b01f_01io->b01f, custom_call_target="__cudnn${target}" }}"""
    program = SimpleNamespace(
        hlo_modules=lambda: [hlo_module_from_text(text)], local_devices=lambda: [0]
    )
    assert product_flops([program]) == 2 * (2 * 8 * 8 * 32) * (3 * 3 * 8)


LIBRARIES = """HloModule jit_step, is_scheduled=true

ENTRY e { x = bf16[64,32]{1,0} parameter(0)
 y = bf16[16,32]{1,0} parameter(1)
 q = bf16[2,8,4,16]{3,2,1,0} parameter(2)
 product = (bf16[64,16]{1,0}, s8[4096]{0}) custom-call(x, y),
   custom_call_target="__cublas$lt$matmul",
   backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_batch_dimensions":[],
   "lhs_contracting_dimensions":["1"],"rhs_batch_dimensions":[],
   "rhs_contracting_dimensions":["1"]},"epilogue":"DEFAULT"}}
 tok = token[] after-all()
 called = token[] custom-call(tok), custom_call_target="xla_ffi_python_gpu_callback"
 attention = (bf16[2,4,8,16]{3,1,2,0}, f32[2,4,8]{2,1,0}, u8[256]{0}) custom-call(q, q, q),
   custom_call_target="__cudnn$fmhaSoftmax"
 gradients = (bf16[2,4,8,16]{3,1,2,0}, bf16[2,4,8,16]{3,1,2,0}, bf16[2,4,8,16]{3,1,2,0},
   u8[4096]{0}) custom-call(q, q, q), custom_call_target="__cudnn$fmhaSoftmaxBackward"
 ROOT t = ((bf16[64,16]{1,0}, s8[4096]{0})) tuple(product) }
"""


@pytest.mark.parametrize("counted", [0.0, 1e9])
def test_calls_of_libraries_are_added_unless_the_compiler_counts_them(counted):
    """Their form is that of gpt2-124m as XLA compiles it for an H200, where it does not."""
    program = SimpleNamespace(
        hlo_modules=lambda: [hlo_module_from_text(LIBRARIES)],
        local_devices=lambda: [0],
        cost_analysis=lambda: {"flops": 100.0 + counted, "bytes accessed": 1000.0},
    )
    scores = 2 * 2 * 4 * 8 * 8 * 16  # of one of attention's products
    assert product_flops([program]) == 2 * 64 * 16 * 32 + (2 + 5) * scores
    whole, sequence = 2 * (64 * 32 + 16 * 32 + 64 * 16), 2 * 2 * 8 * 4 * 16
    forward = 4 * sequence + 4 * 2 * 4 * 8
    moved = whole + forward + 6 * sequence
    cost = compilers_cost([program])
    assert cost["flops"] == 100 + (counted or product_flops([program]))
    assert cost["accessed_bytes"] == 1000 + (0 if counted else moved)
